//! Tensors to a runtime that serves the Open Inference Protocol over gRPC: what REST requests and validation inferences need.

use std::time::{Duration, Instant};

use berth_mesh::{
    exchange,
    oip::grpc::{message, outputs},
};
use berth_spec::{InferError, InferRequest, Tensor, inference::Shed};
use berth_wire::{
    grpc_timeout::{self, GRPC_TIMEOUT},
    oip::ModelInferResponse,
};
use bytes::{BufMut as _, Bytes, BytesMut};
use futures::{FutureExt as _, future::BoxFuture};
use http::{HeaderValue, Request, header};
use http_body_util::{BodyExt as _, Collected, Limited};
use prost::Message as _;
use tonic::{Code, Status};

use super::{body::full, lost, model::SpiModel};
use crate::runtime::batch::join::RunTimings;

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
pub(super) const STREAM_INFER: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// The longest answer. Larger tensors go over gRPC, which passes them on as they come.
const MAX_ANSWER_BYTES: usize = 256 << 20;

/// A flag and a length.
const PREFIX: usize = 5;

/// Runs one request.
pub(super) async fn infer(
    model: &SpiModel,
    request: InferRequest,
    deadline: Instant,
) -> Result<Vec<Tensor>, InferError> {
    let left = deadline.saturating_duration_since(Instant::now());
    let message = message(&model.request.model_id, "", request);
    let parts = Request::post(INFER)
        .header(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"))
        .header(GRPC_TIMEOUT, grpc_timeout::value(left))
        .extension(exchange::Deadline(deadline))
        .body(())
        .map_err(|error| InferError::Internal(error.to_string()))?
        .into_parts()
        .0;
    let answer = model.call(&parts, full(framed(&message))).await?;
    let (head, body) = answer.into_parts();
    if let Some(status) = lost::of(&head.headers).filter(|status| status.code() != Code::Ok) {
        return Err(error_of(&status));
    }
    let collected = collected(body).await.map_err(|error| {
        InferError::Lost(format!("the answer of runtime {} broke off: {error}", model.process.name))
    })?;
    if let Some(status) = collected.trailers().and_then(lost::of).filter(|status| status.code() != Code::Ok) {
        return Err(error_of(&status));
    }
    let answer = unframed(collected.to_bytes()).and_then(|message| ModelInferResponse::decode(message).ok());
    outputs(answer.ok_or_else(|| InferError::Model("the model's answer is no ModelInferResponse".to_owned()))?)
}

/// A whole answer. Boxed here, because the compiler cannot prove the body's error type within a larger future.
fn collected(body: exchange::Body) -> BoxFuture<'static, Result<Collected<Bytes>, exchange::BoxError>> {
    Limited::new(body, MAX_ANSWER_BYTES).collect().boxed()
}

fn framed(message: &impl prost::Message) -> Bytes {
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(PREFIX + length);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // A growing buffer takes any message.
    let _ = message.encode(&mut framed);
    framed.freeze()
}

fn unframed(mut body: Bytes) -> Option<Bytes> {
    let &[0, a, b, c, d] = body.first_chunk::<PREFIX>()? else { return None };
    let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).ok()?;
    (body.len() == PREFIX + length).then(|| body.split_off(PREFIX))
}

/// The model's own status as an error of an inference.
fn error_of(status: &Status) -> InferError {
    let message = match status.message() {
        "" => format!("the model's runtime answered {:?}", status.code()),
        message => message.to_owned(),
    };
    match status.code() {
        Code::InvalidArgument | Code::OutOfRange => InferError::Invalid(message),
        Code::NotFound => InferError::NotFound(message),
        Code::Unimplemented => InferError::Unsupported(message),
        Code::DeadlineExceeded => InferError::TimedOut(message),
        Code::Cancelled => InferError::Cancelled,
        Code::ResourceExhausted => InferError::shed(Shed::QueueFull, message, Duration::from_millis(500)),
        _ => InferError::Model(message),
    }
}

/// The time of a run that was all the runtime's.
pub(super) fn timings(took: Duration) -> RunTimings {
    RunTimings { infer: took, ..RunTimings::default() }
}
