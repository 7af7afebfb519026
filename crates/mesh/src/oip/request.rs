//! A REST inference body becomes a request.

use std::time::Duration;

use berth_spec::{InferError, InferRequest, Signature};
use bytes::Bytes;

use super::Layout;

/// An inference as it came in, whichever protocol it came by.
#[derive(Debug, Clone, Default)]
pub struct Decoded {
    /// What goes to the model.
    pub request: InferRequest,
    /// How the caller wants the answer.
    pub form: AnswerForm,
    /// What the caller asks of the server rather than of the model.
    pub options: Options,
}

/// Request parameters that the protocol reserves; they are taken out of `request.parameters`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// `timeout` (microseconds on the wire; 0 means none).
    pub timeout: Option<Duration>,
    /// `priority`: 1 is highest, 0 the default.
    pub priority: u64,
    /// `triton_enable_empty_final_response`: answers on a stream carry `triton_final_response`.
    pub final_response: bool,
}

/// How the caller wants the answer: kept while the model runs, given to `encode`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnswerForm {
    /// Outputs that do not say otherwise are binary (REST) or raw (gRPC).
    pub binary: bool,
    /// Outputs that say something of their own; empty costs nothing.
    pub(super) outputs: Vec<OutputForm>,
}

/// What a requested output says of its own form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OutputForm {
    pub(super) name: String,
    pub(super) binary: Option<bool>,
    pub(super) classification: Option<u32>,
}

/// Decodes a decompressed body. `signature` is the model's: raw bodies are understood by it, the others do not need it.
/// Blobs are slices of `body`.
pub fn decode(body: &Bytes, layout: Layout, signature: &Signature) -> Result<Decoded, InferError> {
    let _ = (body, layout, signature);
    Err(InferError::Unsupported("not yet".to_owned()))
}
