//! Model cards and the settings of registries against changed seeds: a short fuzz run, the same each time (`cargo xtask fuzz` for a long one).

#[path = "../../../../fuzz/mutator.rs"]
mod mutator;
#[path = "../../../../fuzz/properties/registry.rs"]
mod properties;

#[test]
fn fuzz_registry() {
    mutator::run("registry", properties::registry);
}
