//! Manifests against changed seeds: a short fuzz run, the same each time (`cargo xtask fuzz` for a long one).

#[path = "../../../../fuzz/mutator.rs"]
mod mutator;
#[path = "../../../../fuzz/properties/manifest.rs"]
mod properties;

#[test]
fn fuzz_manifest() {
    mutator::run("manifest", properties::manifest);
}
