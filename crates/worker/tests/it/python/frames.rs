//! Frames of models against changed seeds: a short fuzz run, the same each time (`cargo xtask fuzz` for a long one).

#[path = "../../../../../fuzz/mutator.rs"]
mod mutator;
#[path = "../../../../../fuzz/properties/frame.rs"]
mod properties;

#[test]
fn fuzz_frame() {
    mutator::run("frame", properties::frame);
}
