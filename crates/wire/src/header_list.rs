//! The bound on the headers, and the trailers, of answers of others that are passed on. Connections between nodes are shared, and HTTP/2 ends
//! one on which far more comes than it takes.

use http::HeaderMap;

/// Most bytes that are passed on, as HTTP/2 counts them. A request may have as many.
pub const MAX_HEADER_BYTES: usize = 64 << 10;

/// Bytes that each field counts beside its name and its value (RFC 9113 §6.5.2).
const FIELD: usize = 32;

/// Headers that are not passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} bytes, and at most {MAX_HEADER_BYTES} are passed on")]
pub struct TooLong(usize);

/// Bounds headers or trailers.
///
/// # Errors
/// They have more than [`MAX_HEADER_BYTES`] bytes.
pub fn check(headers: &HeaderMap) -> Result<(), TooLong> {
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD).sum();
    if bytes > MAX_HEADER_BYTES { Err(TooLong(bytes)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn every_value_counts_with_its_name() {
        let mut headers = HeaderMap::new();
        headers.append("name", HeaderValue::from_static("short"));
        let rest = MAX_HEADER_BYTES - (4 + 5 + FIELD) - (4 + FIELD);
        headers.append("name", HeaderValue::from_str(&"x".repeat(rest)).expect("a value"));
        assert_eq!(check(&headers), Ok(()));
        headers.append("n", HeaderValue::from_static(""));
        let error = check(&headers).expect_err("too long");
        assert_eq!(error.to_string(), "65569 bytes, and at most 65536 are passed on");
    }
}
