//! Names in places that take fewer characters than a name has: URLs, headers, file names.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use sha2::{Digest as _, Sha256};

/// The characters that RFC 3986 calls unreserved stay; all others are coded.
const CODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The longest file name that is made of a name, in bytes: leaves a suffix room in the 255 bytes that file systems take,
/// and a socket's path room in its 108.
pub(super) const MAX_FILE_NAME: usize = 64;

/// Characters of the hash at the end of a shortened file name: 64 bits, so that two names do not meet.
const HASH: usize = 16;

/// Codes a text so that it is one segment of a URL's path, a header's value or a gRPC metadata value.
#[must_use]
pub fn percent_encode(text: &str) -> Cow<'_, str> {
    utf8_percent_encode(text, CODED).into()
}

/// Reverses [`percent_encode`]; `None` where the bytes are not UTF-8. A `%` that is followed by something else than two
/// hex digits stays as it is.
#[must_use]
pub fn percent_decode(text: &str) -> Option<Cow<'_, str>> {
    percent_decode_str(text).decode_utf8().ok()
}

/// Codes a text so that it is a file name on every file system: lower-case letters, digits, `-`, `_` and inner dots stay,
/// and what is longer than [`MAX_FILE_NAME`] ends in `~` and a hash.
pub(super) fn file_name(text: &str) -> String {
    let mut name = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
            b'.' if !name.is_empty() => name.push('.'),
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    if name.len() > MAX_FILE_NAME {
        name.truncate(MAX_FILE_NAME - HASH - 1);
        name.push('~');
        for byte in &Sha256::digest(text)[..HASH / 2] {
            name.push_str(&format!("{byte:02x}"));
        }
    }
    name
}
