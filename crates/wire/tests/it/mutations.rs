//! Tokens of strangers and keys of issuers against changed seeds: a short fuzz run, the same each time (`cargo xtask fuzz` for a long one).

#[path = "../../../../fuzz/mutator.rs"]
mod mutator;
#[path = "../../../../fuzz/properties/tokens.rs"]
mod properties;

#[test]
fn fuzz_token() {
    mutator::run("token", properties::token);
}

#[test]
fn fuzz_jwks() {
    mutator::run("jwks", properties::keys);
}
