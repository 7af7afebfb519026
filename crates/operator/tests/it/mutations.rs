//! Questions to the webhooks against changed seeds: a short fuzz run, the same each time (`cargo xtask fuzz` for a long one).

#[path = "../../../../fuzz/mutator.rs"]
mod mutator;
#[path = "../../../../fuzz/properties/admission.rs"]
mod properties;

#[test]
fn fuzz_admission() {
    mutator::run("admission", properties::admission);
}

#[test]
fn fuzz_conversion() {
    mutator::run("conversion", properties::conversion);
}
