//! See the property of the same name.

#![no_main]

#[path = "../properties/git_url.rs"]
mod properties;

libfuzzer_sys::fuzz_target!(|data: &[u8]| properties::git_url(data));
