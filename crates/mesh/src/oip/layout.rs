//! The layout of a REST inference body: the binary tensor extension's header decides.

use berth_spec::InferError;

/// The header of the binary tensor extension: the number of bytes of the JSON part.
pub const HEADER_LENGTH: &str = "inference-header-content-length";

/// The parts of a decompressed body of an inference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// JSON alone: the request has no [`HEADER_LENGTH`].
    Json,
    /// This many bytes of JSON, then the blobs of the inputs that have `binary_data_size`, in their order.
    Binary {
        /// The bytes of the JSON part; at least 1 and at most the body's.
        json: usize,
    },
    /// The header said 0: the body is the data of the model's one input.
    Raw,
}

impl Layout {
    /// From the value of [`HEADER_LENGTH`], if the request has one, and the length of the decompressed body in bytes.
    pub fn of(header: Option<&[u8]>, body: usize) -> Result<Self, InferError> {
        let Some(value) = header else { return Ok(Self::Json) };
        let digits = value.trim_ascii();
        let all_digits = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
        // Twenty digits overflow u64: what does not parse is out of range like anything beyond the body.
        let length =
            str::from_utf8(digits).ok().filter(|_| all_digits).map(|text| text.parse::<usize>().unwrap_or(usize::MAX));
        match length {
            None => Err(InferError::Invalid(format!(
                "header Inference-Header-Content-Length is {:?}: it must be the number of bytes of the JSON part",
                String::from_utf8_lossy(&value[..value.len().min(32)])
            ))),
            Some(0) => Ok(Self::Raw),
            Some(json) if json <= body => Ok(Self::Binary { json }),
            Some(json) => Err(InferError::Invalid(format!(
                "header Inference-Header-Content-Length says {json} bytes of JSON, but the body has {body}"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_must_be_a_length_within_the_body() {
        for (header, layout) in [
            (None, Some(Layout::Json)),
            (Some("0"), Some(Layout::Raw)),
            (Some("7"), Some(Layout::Binary { json: 7 })),
            (Some(" 10 "), Some(Layout::Binary { json: 10 })),
            (Some("11"), None),
            (Some("-1"), None),
            (Some("+1"), None),
            (Some(""), None),
            (Some("1.0"), None),
            (Some("0x1"), None),
            (Some("99999999999999999999999999"), None),
        ] {
            assert_eq!(Layout::of(header.map(str::as_bytes), 10).ok(), layout, "{header:?}");
        }
        assert!(Layout::of(Some(b"\xff"), 10).is_err());
    }
}
