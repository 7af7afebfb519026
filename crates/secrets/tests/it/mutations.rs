//! A short fuzz run over the files in `fuzz/corpus`, the same each time.

use std::path::PathBuf;

#[path = "../../../../fuzz/mutator.rs"]
mod mutator;
#[path = "../../../../fuzz/properties/secrets.rs"]
mod properties;

#[test]
fn files_of_secrets() {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/secrets");
    mutator::run(&corpus, 3_000, properties::secrets);
}
