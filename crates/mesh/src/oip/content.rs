//! Content codings: gzip and deflate, both ways, bounded.

use std::io::{self, Read, Write};

use berth_spec::{ByteSize, InferError};
use bytes::Bytes;
use flate2::{
    Compression,
    bufread::{DeflateDecoder, MultiGzDecoder, ZlibDecoder},
    write::{GzEncoder, ZlibEncoder},
};

/// Answers below this many bytes go as they are: they fit one packet.
const WORTH_COMPRESSING: usize = 1024;

/// The first reservation for a decompressed body; it grows from there, up to its limit. A larger one would take memory
/// that many small requests do not use.
const FIRST_RESERVED: usize = 64 * 1024;

/// The most that a body may grow by: numbers shrink to a tenth, images of one colour to a hundredth; what shrinks more is
/// made to grow.
const MAX_RATIO: usize = 200;

/// A body that is no larger than this may have shrunk by any ratio.
const MIN_CHECKED_BYTES: usize = 1 << 20;

/// A content coding of request and answer bodies over REST (RFC 9110 §8.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// No coding.
    Identity,
    /// `gzip`, RFC 1952.
    Gzip,
    /// RFC 1950 (zlib), which is what HTTP calls deflate. Bare RFC 1951, which some clients send under that name, is read too.
    Deflate,
}

impl Coding {
    /// From `Content-Encoding`. Anything else is unsupported; the message says what is supported, and the answer should
    /// have [`ACCEPTED`] as its `Accept-Encoding`.
    pub fn of_request(content_encoding: Option<&[u8]>) -> Result<Self, InferError> {
        let Some(name) = content_encoding.map(<[u8]>::trim_ascii) else { return Ok(Self::Identity) };
        Self::named(name).ok_or_else(|| {
            InferError::Unsupported(format!(
                "content encoding {:?} is not supported: use gzip, deflate or none",
                String::from_utf8_lossy(&name[..name.len().min(32)])
            ))
        })
    }

    /// The best that `Accept-Encoding` allows: the highest quality, of equals gzip before deflate before identity.
    /// Identity when it is absent.
    #[must_use]
    pub fn accepted(accept_encoding: Option<&[u8]>) -> Self {
        let entries = accept_encoding.unwrap_or_default().split(|&byte| byte == b',');
        entries
            .filter_map(|entry| {
                let mut parts = entry.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
                let coding = match parts.next()? {
                    b"*" => Self::Gzip,
                    name => Self::named(name)?,
                };
                let quality = parts.find_map(|part| part.strip_prefix(b"q="));
                let quality: f32 = quality.map_or(Some(1.0), |text| str::from_utf8(text).ok()?.parse().ok())?;
                (quality > 0.0 && quality <= 1.0).then(|| ((quality * 1000.0) as u16, coding.preference(), coding))
            })
            .max_by_key(|&(quality, preference, _)| (quality, preference))
            .map_or(Self::Identity, |(_, _, coding)| coding)
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

    fn named(name: &[u8]) -> Option<Self> {
        match name.to_ascii_lowercase().as_slice() {
            b"" | b"identity" => Some(Self::Identity),
            b"gzip" | b"x-gzip" => Some(Self::Gzip),
            b"deflate" => Some(Self::Deflate),
            _ => None,
        }
    }

    const fn preference(self) -> u8 {
        match self {
            Self::Identity => 0,
            Self::Deflate => 1,
            Self::Gzip => 2,
        }
    }
}

/// The codings that requests may have, for the `Accept-Encoding` of the answer to another one.
pub const ACCEPTED: &str = "gzip, deflate";

/// The decompressed body, or `TooLarge` as soon as it would have more than `limit` bytes, or more than [`MAX_RATIO`] times
/// those that came. Identity costs nothing. `grow` is told the bytes that are about to be held, and may refuse them.
pub fn decompress(
    body: Bytes,
    coding: Coding,
    limit: ByteSize,
    mut grow: impl FnMut(usize) -> Result<(), InferError>,
) -> Result<Bytes, InferError> {
    let most = usize::try_from(limit.0).unwrap_or(usize::MAX);
    let mut decoder: Box<dyn Read + '_> = match coding {
        Coding::Identity if body.len() <= most => return Ok(body),
        Coding::Identity => return Err(too_large(limit)),
        Coding::Gzip => Box::new(MultiGzDecoder::new(body.as_ref())),
        Coding::Deflate if has_zlib_header(&body) => Box::new(ZlibDecoder::new(body.as_ref())),
        Coding::Deflate => Box::new(DeflateDecoder::new(body.as_ref())),
    };
    let dense = body.len().saturating_mul(MAX_RATIO).max(MIN_CHECKED_BYTES);
    let mut whole = Vec::with_capacity(FIRST_RESERVED.min(most));
    loop {
        if whole.len() == whole.capacity() {
            let larger = whole.len().saturating_mul(2).max(FIRST_RESERVED).min(most.saturating_add(1));
            grow(larger)?;
            whole.reserve_exact(larger - whole.len());
        }
        // One byte more than the limit at most: whether it is there tells whether the limit holds.
        let room = (whole.capacity().min(most.saturating_add(1)) - whole.len()) as u64;
        let read = decoder.by_ref().take(room).read_to_end(&mut whole).map_err(|error| {
            let name = coding.name().unwrap_or("identity");
            InferError::Invalid(format!("the body is not valid {name}: {error}"))
        })?;
        if whole.len() > most {
            return Err(too_large(limit));
        }
        if whole.len() > dense {
            return Err(InferError::TooLarge(format!(
                "the body is more than {MAX_RATIO} times as large once decompressed: send it with less compression"
            )));
        }
        if (read as u64) < room {
            drop(decoder);
            return Ok(whole.into());
        }
    }
}

/// The compressed body and its coding: identity for what is small or does not get smaller.
#[must_use]
pub fn compress(body: Bytes, coding: Coding) -> (Bytes, Coding) {
    if body.len() < WORTH_COMPRESSING {
        return (body, Coding::Identity);
    }
    let room = Vec::with_capacity(body.len() / 2);
    let compressed = match coding {
        Coding::Identity => return (body, coding),
        Coding::Gzip => write_all(GzEncoder::new(room, Compression::fast()), &body, GzEncoder::finish),
        Coding::Deflate => write_all(ZlibEncoder::new(room, Compression::fast()), &body, ZlibEncoder::finish),
    };
    match compressed {
        Ok(smaller) if smaller.len() < body.len() => (smaller.into(), coding),
        _ => (body, Coding::Identity),
    }
}

fn write_all<W: Write>(
    mut encoder: W,
    body: &[u8],
    finish: impl FnOnce(W) -> io::Result<Vec<u8>>,
) -> io::Result<Vec<u8>> {
    encoder.write_all(body)?;
    finish(encoder)
}

/// RFC 1950: method 8, and the first two bytes are a multiple of 31.
fn has_zlib_header(body: &[u8]) -> bool {
    matches!(body, [method, flags, ..] if method & 0x0F == 8 && u16::from_be_bytes([*method, *flags]).is_multiple_of(31))
}

fn too_large(limit: ByteSize) -> InferError {
    InferError::TooLarge(format!("the body has more than the {limit} that a request may have once decompressed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: ByteSize = ByteSize::mib(1);

    fn decompress(body: Bytes, coding: Coding, limit: ByteSize) -> Result<Bytes, InferError> {
        super::decompress(body, coding, limit, |_| Ok(()))
    }

    #[test]
    fn request_codings() {
        for (header, coding) in [
            (None, Some(Coding::Identity)),
            (Some("identity"), Some(Coding::Identity)),
            (Some(" GZIP "), Some(Coding::Gzip)),
            (Some("deflate"), Some(Coding::Deflate)),
            (Some("br"), None),
            (Some("gzip, gzip"), None),
        ] {
            assert_eq!(Coding::of_request(header.map(str::as_bytes)).ok(), coding, "{header:?}");
        }
        assert!(matches!(Coding::of_request(Some(b"zstd")), Err(InferError::Unsupported(_))));
    }

    #[test]
    fn accepted_codings() {
        for (header, coding) in [
            (None, Coding::Identity),
            (Some(""), Coding::Identity),
            (Some("gzip, deflate, br"), Coding::Gzip),
            (Some("deflate"), Coding::Deflate),
            (Some("gzip;q=0.5, deflate;q=0.9"), Coding::Deflate),
            (Some("gzip;q=0"), Coding::Identity),
            (Some("identity, gzip;q=0.5"), Coding::Identity),
            (Some("*"), Coding::Gzip),
            (Some("br, zstd"), Coding::Identity),
            (Some("gzip;q=x"), Coding::Identity),
        ] {
            assert_eq!(Coding::accepted(header.map(str::as_bytes)), coding, "{header:?}");
        }
    }

    #[test]
    fn there_and_back() {
        let body: Bytes = b"0.125,".repeat(1000).into();
        for wanted in [Coding::Identity, Coding::Gzip, Coding::Deflate] {
            let (packed, coding) = compress(body.clone(), wanted);
            assert_eq!(coding, wanted);
            assert_eq!(decompress(packed, coding, LIMIT).ok(), Some(body.clone()));
        }
        assert_eq!(compress(Bytes::from_static(b"small"), Coding::Gzip).1, Coding::Identity);
    }

    #[test]
    fn bare_deflate_and_several_gzip_members_are_read() {
        let mut bare = flate2::write::DeflateEncoder::new(Vec::new(), Compression::fast());
        bare.write_all(b"bare").expect("a Vec takes everything");
        let bare = bare.finish().expect("a Vec takes everything");
        assert_eq!(decompress(bare.into(), Coding::Deflate, LIMIT).ok().as_deref(), Some(b"bare".as_slice()));

        let body: Bytes = b"0.125,".repeat(1000).into();
        let (member, coding) = compress(body.clone(), Coding::Gzip);
        let twice = decompress(member.repeat(2).into(), coding, LIMIT);
        assert_eq!(twice.ok().as_deref(), Some(body.repeat(2).as_slice()));
    }

    #[test]
    fn bombs_and_broken_bodies() {
        // Packed as well as can be, which nobody does with an honest request.
        let mut best = flate2::write::GzEncoder::new(Vec::new(), Compression::best());
        best.write_all(&vec![0; 8 << 20]).expect("a Vec takes everything");
        let (bomb, coding) = (Bytes::from(best.finish().expect("a Vec takes everything")), Coding::Gzip);
        assert!(matches!(decompress(bomb.clone(), coding, LIMIT), Err(InferError::TooLarge(_))));
        assert!(bomb.len() * MAX_RATIO < 8 << 20, "it shrank by more than is credible");
        assert!(matches!(decompress(bomb.clone(), coding, ByteSize::mib(8)), Err(InferError::TooLarge(_))));
        let dense: Bytes =
            (0..4_u32 << 20).flat_map(|n| ((n / 8).wrapping_mul(2_654_435_761) as u16).to_le_bytes()).collect();
        let (packed, coding) = compress(dense.clone(), Coding::Gzip);
        assert_eq!(
            decompress(packed.clone(), coding, ByteSize::mib(8)).ok(),
            Some(dense),
            "exactly the limit is allowed"
        );
        let refused = super::decompress(packed, coding, ByteSize::mib(8), |bytes| {
            if bytes > 1 << 20 { Err(InferError::Cancelled) } else { Ok(()) }
        });
        assert!(matches!(refused, Err(InferError::Cancelled)), "before it is held");
        assert!(matches!(
            decompress(bomb.slice(..100), coding, LIMIT),
            Err(InferError::Invalid(_) | InferError::TooLarge(_))
        ));
        for coding in [Coding::Gzip, Coding::Deflate] {
            let broken = decompress(Bytes::from_static(b"\xff\xff not compressed"), coding, LIMIT);
            assert!(matches!(broken, Err(InferError::Invalid(_))), "{coding:?}");
        }
        let large = decompress(vec![0; (1 << 20) + 1].into(), Coding::Identity, LIMIT);
        assert!(matches!(large, Err(InferError::TooLarge(_))));
    }
}
