//! A short fuzz run over the manifests in `fuzz/corpus`, the same each time.

use std::path::PathBuf;

#[path = "../../../../fuzz/mutator.rs"]
mod mutator;
#[path = "../../../../fuzz/properties/manifest.rs"]
mod properties;

/// Changed seeds: about a second in a build without optimizations.
const ROUNDS: usize = 5_000;

#[test]
fn manifests() {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/manifest");
    mutator::run(&corpus, ROUNDS, properties::manifest);
}
