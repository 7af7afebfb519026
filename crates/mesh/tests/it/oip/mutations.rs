//! The Open Inference Protocol against changed seeds: a short fuzz run, the same each time (`cargo xtask fuzz` for a long one).

#[path = "../../../../../fuzz/properties/oip.rs"]
mod properties;

use crate::mutator;

#[test]
fn fuzz_oip_json() {
    mutator::run("oip_json", properties::oip_json);
}

#[test]
fn fuzz_binary_body() {
    mutator::run("binary_body", properties::binary_body);
}

#[test]
fn fuzz_plain() {
    mutator::run("plain", properties::plain);
}

#[test]
fn fuzz_grpc_contents() {
    mutator::run("grpc_contents", properties::grpc_contents);
}
