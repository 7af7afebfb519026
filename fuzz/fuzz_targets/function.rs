//! See the property of the same name.

#![no_main]

#[path = "../properties/functions.rs"]
mod properties;

libfuzzer_sys::fuzz_target!(|data: &[u8]| properties::function(data));
