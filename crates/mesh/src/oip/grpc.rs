//! gRPC messages to and from requests and responses.

use berth_spec::{InferError, InferResponse};
use berth_wire::oip::{ModelInferRequest, ModelInferResponse};

use super::{AnswerForm, Decoded};

/// Decodes an inference. Raw contents stay slices of the message's buffer. `model_name` and `model_version` are the
/// caller's to read before.
pub fn decode(message: ModelInferRequest) -> Result<Decoded, InferError> {
    let _ = message;
    Err(InferError::Unsupported("not yet".to_owned()))
}

/// Encodes an answer: raw when the request was raw, typed otherwise (raw too where an output has no typed form).
pub fn encode(response: InferResponse, form: &AnswerForm) -> Result<ModelInferResponse, InferError> {
    let _ = (response, form);
    Err(InferError::Unsupported("not yet".to_owned()))
}
