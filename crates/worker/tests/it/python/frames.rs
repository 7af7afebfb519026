//! A short fuzz run over the frames in `fuzz/corpus`, the same each time.

use std::path::PathBuf;

#[path = "../../../../../fuzz/mutator.rs"]
mod mutator;
#[path = "../../../../../fuzz/properties/frame.rs"]
mod properties;

#[test]
fn frames_of_a_model() {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/frame");
    mutator::run(&corpus, 3_000, properties::frame);
}
