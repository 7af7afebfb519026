//! Objects of functions against changed seeds: a short fuzz run, the same each time (`cargo xtask fuzz` for a long one).

#[path = "../../../../fuzz/mutator.rs"]
mod mutator;
#[path = "../../../../fuzz/properties/functions.rs"]
mod properties;

#[test]
fn fuzz_function() {
    mutator::run("function", properties::function);
}
