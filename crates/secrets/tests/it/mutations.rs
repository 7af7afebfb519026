//! Files of secrets against changed seeds: a short fuzz run, the same each time (`cargo xtask fuzz` for a long one).

#[path = "../../../../fuzz/mutator.rs"]
mod mutator;
#[path = "../../../../fuzz/properties/secrets.rs"]
mod properties;

#[test]
fn fuzz_secrets() {
    mutator::run("secrets", properties::secrets);
}
