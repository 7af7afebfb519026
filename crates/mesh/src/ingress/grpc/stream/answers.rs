//! The answers to one request of a stream, as framed `ModelStreamInferResponse` messages. Nothing is decoded.

use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderMap, Response};
use http_body_util::BodyExt as _;
use tonic::Status;

use crate::{
    body::reply::{Messages, ReplyBody},
    ingress::grpc::infer::Answer,
    oip::grpc::frame::{FRAME_PREFIX, as_stream_response, first},
};

/// The answers in the form of a stream. `last` asks that a single answer say that none follows.
pub(super) async fn of(answer: Answer, last: bool) -> Result<Messages, Status> {
    let Answer { response, stream } = answer;
    failure(response.headers())?;
    if stream {
        return Ok(passed_on(response));
    }
    let collected = response.into_body().collect().await?;
    if let Some(trailers) = collected.trailers() {
        failure(trailers)?;
    }
    let framed = collected.to_bytes();
    match first(&framed) {
        Some((0, length)) if framed.len() == FRAME_PREFIX + length => {
            let (head, suffix) = as_stream_response(length, last);
            let pieces = [head, framed.slice(FRAME_PREFIX..), Bytes::from_static(suffix)];
            let pieces = pieces.into_iter().filter(|piece| !piece.is_empty()).map(Ok);
            Ok(Box::pin(futures::stream::iter(pieces)))
        }
        _ => Err(Status::internal("the answer is not one message")),
    }
}

/// The pieces of a model's own stream as they come, until its status.
fn passed_on(response: Response<ReplyBody>) -> Messages {
    let pieces = futures::stream::unfold(Some(response.into_body()), async |body| {
        let mut body = body?;
        loop {
            match body.frame().await? {
                Err(status) => return Some((Err(status), None)),
                Ok(frame) => match frame.into_data() {
                    Ok(data) => return Some((Ok(data), Some(body))),
                    Err(frame) => {
                        let trailers = frame.into_trailers().unwrap_or_default();
                        if let Err(status) = failure(&trailers) {
                            return Some((Err(status), None));
                        }
                    }
                },
            }
        }
    });
    pieces.boxed()
}

/// The status of an answer that failed.
fn failure(headers: &HeaderMap) -> Result<(), Status> {
    match Status::from_header_map(headers) {
        Some(status) if status.code() != tonic::Code::Ok => Err(status),
        _ => Ok(()),
    }
}
