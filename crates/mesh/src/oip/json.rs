//! Reading and writing JSON without a tree.

/// Writes a JSON string.
pub(super) fn write_string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a Vec takes everything, and a string is always JSON");
}
