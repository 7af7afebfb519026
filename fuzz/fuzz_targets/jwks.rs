//! See the property of the same name.

#![no_main]

#[path = "../properties/tokens.rs"]
#[expect(dead_code, reason = "the other property has a target of its own")]
mod properties;

libfuzzer_sys::fuzz_target!(|data: &[u8]| properties::keys(data));
