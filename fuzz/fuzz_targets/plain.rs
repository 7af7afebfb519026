//! See the property of the same name.

#![no_main]

#[path = "../properties/oip.rs"]
mod properties;

libfuzzer_sys::fuzz_target!(|data: &[u8]| properties::plain(data));
