//! Datagrams of gossip against changed seeds: a short fuzz run, the same each time (`cargo xtask fuzz` for a long one).

#[path = "../../../../fuzz/mutator.rs"]
mod mutator;
#[path = "../../../../fuzz/properties/gossip.rs"]
mod properties;

#[test]
fn fuzz_gossip() {
    mutator::run("gossip", properties::gossip);
}
