//! A response becomes a REST body.

use berth_spec::{InferError, InferResponse};
use bytes::Bytes;

use super::AnswerForm;

/// An encoded answer: the head, then blobs (binary outputs) that are the model's own buffers, to be written without a copy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Encoded {
    /// The JSON.
    pub json: Bytes,
    /// Binary outputs, in order. Empty when all is JSON.
    pub blobs: Vec<Bytes>,
    /// Whether `Inference-Header-Content-Length: json.len()` and `Content-Type: application/octet-stream` go with it.
    pub binary: bool,
}

impl Encoded {
    /// The bytes of the whole body.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "an answer is never empty")]
    pub fn len(&self) -> usize {
        self.json.len() + self.blobs.iter().map(Bytes::len).sum::<usize>()
    }

    /// The value of `Content-Type`.
    #[must_use]
    pub const fn content_type(&self) -> &'static str {
        if self.binary { "application/octet-stream" } else { "application/json" }
    }

    /// The whole body in one piece; free when there are no blobs.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        if self.blobs.is_empty() {
            return self.json;
        }
        let mut whole = Vec::with_capacity(self.len());
        whole.extend_from_slice(&self.json);
        for blob in &self.blobs {
            whole.extend_from_slice(blob);
        }
        whole.into()
    }
}

/// Encodes an answer in the form that its caller wanted.
pub fn encode(response: &InferResponse, form: &AnswerForm) -> Result<Encoded, InferError> {
    let _ = (response, form);
    Err(InferError::Unsupported("not yet".to_owned()))
}

/// The body of an error: `{"error": message}`, with `reason` (a word for machines) beside it.
#[must_use]
pub fn error_body(message: &str, reason: &str) -> Vec<u8> {
    let mut body = Vec::with_capacity(message.len() + reason.len() + 32);
    body.extend_from_slice(b"{\"error\":");
    super::json::write_string(&mut body, message);
    body.extend_from_slice(b",\"reason\":");
    super::json::write_string(&mut body, reason);
    body.push(b'}');
    body
}
