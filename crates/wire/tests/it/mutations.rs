//! Tokens of strangers, keys of issuers and words of other nodes against changed seeds: a short fuzz run, the same each time (`cargo
//! xtask fuzz` for a long one).

#[path = "../../../../fuzz/mutator.rs"]
mod mutator;
#[path = "../../../../fuzz/properties/tokens.rs"]
mod properties;
#[path = "../../../../fuzz/properties/fleet.rs"]
mod words;

#[test]
fn fuzz_token() {
    mutator::run("token", properties::token);
}

#[test]
fn fuzz_jwks() {
    mutator::run("jwks", properties::keys);
}

#[test]
fn fuzz_fleet() {
    mutator::run("fleet", words::fleet);
}
