//! The one message of a gRPC body, and inferences in it, both ways.

use std::sync::Arc;

use berth_spec::{ByteSize, InferError, InferResponse};
use berth_wire::oip::ModelInferRequest;
use bytes::Bytes;
use futures::future::Either;
use http::{HeaderMap, HeaderName};
use prost::Message;
use tonic::{Code, Status};

use crate::{
    body::memory::{Charge, MIN_COUNTED_BYTES, RequestMemory},
    ingress::grpc::status,
    offload,
    oip::{
        self, AnswerForm, Decoded,
        content::{Coding, decompress},
        grpc::{
            effort,
            frame::{FRAME_PREFIX, framed},
            raw_message,
        },
    },
};

/// The header that says how the compressed messages of a call are compressed.
static ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// The coding of compressed messages of a call; `None`: one that is not known here.
pub(in crate::ingress) fn coding(headers: &HeaderMap) -> Option<Coding> {
    match headers.get(&ENCODING).map(http::HeaderValue::as_bytes) {
        None | Some(b"identity") => Some(Coding::Identity),
        Some(b"gzip") => Some(Coding::Gzip),
        Some(b"deflate") => Some(Coding::Deflate),
        Some(_) => None,
    }
}

/// The status of a call whose messages are compressed in a way that is not known here.
pub(in crate::ingress) fn unknown_coding() -> Status {
    Status::unimplemented("this grpc-encoding is not supported: use gzip, deflate or identity")
}

/// The one message of a body, decompressed. `limit` is in bytes.
pub(in crate::ingress) async fn unframed(
    body: Bytes,
    coding: Coding,
    limit: usize,
    memory: &Arc<RequestMemory>,
) -> Result<Bytes, Status> {
    let (message, compressed) = split(body, coding)?;
    if !compressed {
        return Ok(message);
    }
    let weight = message.len().saturating_mul(4);
    let limit = ByteSize(limit as u64);
    let mut charge = memory.charge();
    let read = move || {
        let message = decompress(message, coding, limit, |bytes| charge.grow_to(bytes))?;
        Ok(charge.hold(message))
    };
    offload::run(weight, read).await.map_err(status)
}

/// The message as it came, and whether it is compressed.
fn split(mut body: Bytes, coding: Coding) -> Result<(Bytes, bool), Status> {
    let Some((&[flag, ref length @ ..], rest)) = body.split_first_chunk::<FRAME_PREFIX>() else {
        return Err(Status::new(Code::Internal, "the request has no message"));
    };
    if flag > 1 || flag == 1 && coding == Coding::Identity {
        return Err(Status::new(Code::Internal, "the message is marked as compressed, but there is no grpc-encoding"));
    }
    if usize::try_from(u32::from_be_bytes(*length)) != Ok(rest.len()) {
        return Err(Status::new(Code::Internal, "the request's length is not that of one message"));
    }
    Ok((body.split_off(FRAME_PREFIX), flag == 1))
}

/// Numbers of one byte become eight, once in the message and once in the tensor.
const DECODED_GROWTH: usize = 16;

/// Messages that [`raw_message::read`] takes become too little to be counted.
const _: () = assert!(raw_message::MAX_HEAD_BYTES * DECODED_GROWTH <= MIN_COUNTED_BYTES);

/// Reads an inference. What its tensors take beside the message is held as long as the charge.
pub(in crate::ingress) async fn decode(
    message: Bytes,
    memory: &Arc<RequestMemory>,
) -> Result<(Decoded, Charge), InferError> {
    if let Some(decoded) = raw_message::read(&message) {
        return Ok((decoded, memory.charge()));
    }
    let weight = effort::to_read(&message, usize::MAX);
    let charge = memory.take_beside(&message, weight.saturating_mul(DECODED_GROWTH))?;
    let read = move || {
        let invalid = |error| InferError::Invalid(format!("the request is no ModelInferRequest: {error}"));
        ModelInferRequest::decode(message).map_err(invalid)
    };
    let message = offload::run(weight, read).await?;
    let decoded = offload::run(effort::to_decode(&message), move || oip::grpc::decode(message)).await?;
    Ok((decoded, charge))
}

/// Raw contents are copied, which takes a tenth of the time that typed ones take.
const RAW_SPEED: usize = 10;

/// Writes an answer as a body; also the bytes of its raw contents.
pub(in crate::ingress) fn encode(
    response: InferResponse,
    form: AnswerForm,
) -> impl Future<Output = Result<(Bytes, usize), InferError>> + Send {
    if raw_message::can_write(&response, &form) {
        let raw = response.outputs.iter().map(|output| output.data.len()).sum();
        let weight = raw_message::length(&response) / RAW_SPEED;
        return Either::Left(offload::run(weight, move || Ok((raw_message::framed(&response), raw))));
    }
    let weight = effort::to_encode(&response, &form);
    let message = offload::run(weight, move || oip::grpc::encode(response, &form));
    // Boxed: few answers have such a state.
    Either::Right(Box::pin(async move {
        let message = message.await?;
        let raw = message.raw_output_contents.iter().map(Bytes::len).sum();
        let length = message.encoded_len();
        let weight = if message.raw_output_contents.is_empty() { length } else { length / RAW_SPEED };
        offload::run(weight, move || Ok((framed(&message), raw))).await
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_one_message() {
        let split = |body: &'static [u8], coding| split(Bytes::from_static(body), coding).ok();
        for (body, expected) in [
            (&[0, 0, 0, 0, 2, 7, 8][..], Some(&[7, 8][..])),
            (&[0, 0, 0, 0, 0], Some(&[])),
            (&[], None),
            (&[0, 0, 0, 0], None),
            (&[1, 0, 0, 0, 1, 7], None),
            (&[2, 0, 0, 0, 1, 7], None),
            (&[0, 0, 0, 0, 2, 7], None),
            (&[0, 0, 0, 0, 1, 7, 8], None),
        ] {
            let found = split(body, Coding::Identity);
            assert_eq!(found.as_ref().map(|(message, _)| &message[..]), expected, "{body:?}");
        }
        assert!(split(&[1, 0, 0, 0, 1, 7], Coding::Gzip).is_some_and(|(_, compressed)| compressed));
    }
}
