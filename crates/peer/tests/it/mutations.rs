//! Datagrams of gossip and requests of nodes that join against changed seeds: a short fuzz run, the same each time
//! (`cargo xtask fuzz` for a long one).

#[path = "../../../../fuzz/mutator.rs"]
mod mutator;

#[path = "../../../../fuzz/properties/gossip.rs"]
mod gossip;
#[path = "../../../../fuzz/properties/join.rs"]
mod join;

#[test]
fn fuzz_gossip() {
    mutator::run("gossip", gossip::gossip);
}

#[test]
fn fuzz_join() {
    mutator::run("join", join::join);
}
