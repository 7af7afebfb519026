//! A short fuzz run over the places in `fuzz/corpus`, the same each time.

use std::path::PathBuf;

#[path = "../../../../fuzz/mutator.rs"]
mod mutator;
#[path = "../../../../fuzz/properties/git_url.rs"]
mod properties;

#[test]
fn places_of_repositories() {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/git_url");
    mutator::run(&corpus, 20_000, properties::git_url);
}
