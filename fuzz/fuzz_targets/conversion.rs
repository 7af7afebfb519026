//! See the property of the same name.

#![no_main]

#[path = "../properties/admission.rs"]
#[expect(dead_code, reason = "the other property has a target of its own")]
mod properties;

libfuzzer_sys::fuzz_target!(|data: &[u8]| properties::conversion(data));
