//! A short fuzz run over the seeds in `fuzz/corpus`, the same each time.

use std::path::PathBuf;

#[path = "../../../../../fuzz/mutator.rs"]
mod mutator;
#[path = "../../../../../fuzz/properties/oip.rs"]
mod properties;

/// Changed seeds per target: a second or two in all, in a build without optimizations.
const ROUNDS: usize = 50_000;

fn corpus(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

#[test]
fn json_bodies() {
    mutator::run(&corpus("oip_json"), ROUNDS, properties::oip_json);
}

#[test]
fn binary_bodies() {
    mutator::run(&corpus("binary_body"), ROUNDS, properties::binary_body);
}

#[test]
fn grpc_messages() {
    mutator::run(&corpus("grpc_contents"), ROUNDS, properties::grpc_contents);
}
