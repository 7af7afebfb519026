//! See the property of the same name.

#![no_main]

#[path = "../properties/fleet.rs"]
mod properties;

libfuzzer_sys::fuzz_target!(|data: &[u8]| properties::fleet(data));
