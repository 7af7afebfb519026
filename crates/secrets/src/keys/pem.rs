//! Keys as text between BEGIN and END lines (RFC 7468).

use base64::{Engine as _, engine::general_purpose::STANDARD};
use zeroize::Zeroizing;

/// The first block of a text: its label and content.
pub(super) fn read(text: &str) -> Option<(&str, Zeroizing<Vec<u8>>)> {
    let (_, rest) = text.split_once("-----BEGIN ")?;
    let (label, rest) = rest.split_once("-----")?;
    let (body, _) = rest.split_once(&format!("-----END {label}-----"))?;
    let body = Zeroizing::new(body.split_ascii_whitespace().collect::<String>());
    Some((label, Zeroizing::new(STANDARD.decode(&*body).ok()?)))
}

/// A block, in lines of 64 characters.
pub(super) fn write(label: &str, content: &[u8]) -> Zeroizing<String> {
    let encoded = Zeroizing::new(STANDARD.encode(content));
    let mut out = Zeroizing::new(String::with_capacity(encoded.len() + encoded.len() / 64 + 2 * label.len() + 40));
    out.push_str(&format!("-----BEGIN {label}-----\n"));
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(64));
        out.push_str(line);
        out.push('\n');
        rest = more;
    }
    out.push_str(&format!("-----END {label}-----\n"));
    out
}
