//! A model's own stream of gRPC messages as server-sent events.

use std::sync::Arc;

use berth_spec::InferError;
use berth_wire::oip::{ModelInferResponse, ModelStreamInferResponse};
use bytes::{Bytes, BytesMut};
use futures::Stream;
use http::{HeaderValue, Response, header};
use http_body_util::BodyExt as _;
use prost::Message as _;
use tonic::Status;

use crate::{
    body::{memory::RequestMemory, reply::ReplyBody},
    disclosure::without_places,
    oip::{
        grpc::{
            self,
            frame::{FRAME_PREFIX, first},
        },
        plain::generate::{Answer, encode, event, failure},
    },
};

/// The names that every event of a stream carries.
#[derive(Debug, Clone)]
pub(super) struct EventLabels {
    /// The name under which the client asked for the model.
    pub(super) model_name: Arc<str>,
    /// The client's name for its request.
    pub(super) id: Option<String>,
}

/// An answer of events.
fn response(body: ReplyBody) -> Response<ReplyBody> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// An answer of one event, which is here already.
pub(super) fn whole(event: Bytes) -> Response<ReplyBody> {
    response(ReplyBody::from(event))
}

/// The events of a stream. A message has at most `limit` bytes, which count against the memory until the event is read.
///
/// # Errors
/// The model refused the request before its first answer.
pub(super) fn of(
    stream: Response<ReplyBody>,
    labels: EventLabels,
    limit: usize,
    memory: Arc<RequestMemory>,
) -> Result<Response<ReplyBody>, InferError> {
    if let Some(status) = Status::from_header_map(stream.headers()).filter(|status| status.code() != tonic::Code::Ok) {
        let message = status.message().to_owned();
        return Err(match status.code() {
            tonic::Code::InvalidArgument => InferError::Invalid(message),
            _ => InferError::Model(message),
        });
    }
    Ok(response(ReplyBody::Events(Box::pin(events(stream.into_body(), labels, limit, memory)))))
}

/// Events of the messages in a body. One that failed, or cannot be told, is the last.
fn events(
    body: ReplyBody,
    labels: EventLabels,
    limit: usize,
    memory: Arc<RequestMemory>,
) -> impl Stream<Item = Bytes> + Send {
    let charge = memory.charge();
    futures::stream::unfold(Some((body, BytesMut::new(), charge)), move |reading| {
        let (labels, memory) = (labels.clone(), Arc::clone(&memory));
        async move {
            let (mut body, mut pending, mut charge) = reading?;
            loop {
                match first(&pending) {
                    Some((_, length)) if length > limit => return Some((too_long(), None)),
                    Some((_, length)) if pending.len() >= FRAME_PREFIX + length => {
                        let message = pending.split_to(FRAME_PREFIX + length).freeze().slice(FRAME_PREFIX..);
                        // What is left of the next message counts again when more of it comes.
                        charge = memory.charge();
                        match told(message, &labels) {
                            Some(Ok(event)) => return Some((memory.answer(event), Some((body, pending, charge)))),
                            Some(Err(event)) => return Some((event, None)),
                            None => continue,
                        }
                    }
                    _ => {}
                }
                match body.frame().await? {
                    Err(status) => return Some((failed(&status), None)),
                    Ok(frame) => match frame.into_data() {
                        Ok(data) => {
                            if let Err(error) = charge.grow_to(pending.len() + data.len()) {
                                return Some((failure(&error.to_string(), error.reason()).into(), None));
                            }
                            pending.extend_from_slice(&data);
                        }
                        Err(frame) => {
                            let status = frame.trailers_ref().and_then(Status::from_header_map)?;
                            return (status.code() != tonic::Code::Ok).then(|| (failed(&status), None));
                        }
                    },
                }
            }
        }
    })
}

/// The event of a message; `None`: it says only that the answers are over. `Err`: nothing follows it.
fn told(message: Bytes, labels: &EventLabels) -> Option<Result<Bytes, Bytes>> {
    let Ok(message) = ModelStreamInferResponse::decode(message) else {
        return Some(Err(failed(&Status::internal("the model's answer cannot be read"))));
    };
    if !message.error_message.is_empty() {
        return Some(Err(failed(&Status::internal(message.error_message))));
    }
    let response = message.infer_response?;
    if response.outputs.is_empty() {
        return None;
    }
    let ModelInferResponse { model_version, .. } = &response;
    let version = model_version.clone();
    let document = grpc::outputs(response).and_then(|outputs| {
        encode(Answer {
            model_name: &labels.model_name,
            model_version: &version,
            id: labels.id.as_deref(),
            parameters: &Default::default(),
            outputs: &outputs,
        })
    });
    Some(match document {
        Ok(document) => Ok(event(&document).into()),
        Err(error) => Err(failure(&without_places(&error.to_string()), error.reason()).into()),
    })
}

fn failed(status: &Status) -> Bytes {
    let reason = status.metadata().get("berth-reason").and_then(|reason| reason.to_str().ok());
    failure(&without_places(status.message()), reason.unwrap_or("model")).into()
}

fn too_long() -> Bytes {
    failure("an answer of the model is longer than a body may be", "too_large").into()
}

#[cfg(test)]
mod tests {
    use berth_wire::oip::{InferTensorContents, model_infer_response::InferOutputTensor};
    use futures::StreamExt as _;

    use super::*;
    use crate::{fair::Shape, oip::grpc::frame::framed};

    fn message(text: &str) -> Bytes {
        let contents =
            InferTensorContents { bytes_contents: vec![text.as_bytes().to_vec().into()], ..Default::default() };
        let output = InferOutputTensor {
            name: "text_output".to_owned(),
            datatype: "BYTES".to_owned(),
            shape: vec![1],
            contents: Some(contents),
            ..Default::default()
        };
        let response = ModelInferResponse { outputs: vec![output], ..Default::default() };
        framed(&ModelStreamInferResponse { infer_response: Some(response), ..Default::default() })
    }

    async fn events_of(pieces: Vec<Result<Bytes, Status>>) -> Vec<String> {
        let body = ReplyBody::Stream(Box::pin(futures::stream::iter(pieces)));
        let memory = RequestMemory::new(1 << 20, Shape::new(false));
        let labels = EventLabels { model_name: "m".into(), id: Some("7".to_owned()) };
        let events = events(body, labels, 100, memory);
        events.map(|event| String::from_utf8(event.to_vec()).expect("UTF-8")).collect().await
    }

    #[tokio::test]
    async fn each_message_is_an_event_however_it_is_cut() {
        let whole = [message("a"), message("b\n")].concat();
        let said = |text: &str| {
            format!("data: {{\"model_name\":\"m\",\"model_version\":\"\",\"id\":\"7\",\"text_output\":\"{text}\"}}\n\n")
        };
        for cut in [1, 7, whole.len()] {
            let pieces = whole.chunks(cut).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
            assert_eq!(events_of(pieces).await, [said("a"), said("b\\n")], "{cut}");
        }
    }

    #[tokio::test]
    async fn a_message_for_which_there_is_no_memory_ends_the_stream() {
        let memory = RequestMemory::new(16 << 10, Shape::new(false));
        let whole = message(&"a".repeat(20_000));
        let pieces: Vec<_> = whole.chunks(1_000).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        let body = ReplyBody::Stream(Box::pin(futures::stream::iter(pieces)));
        let labels = EventLabels { model_name: "m".into(), id: None };
        let events: Vec<_> = events(body, labels, 1 << 20, Arc::clone(&memory)).collect().await;
        assert!(events.len() == 1 && events[0].windows(9).any(|word| word == b"too_large"), "{events:?}");
        assert_eq!(memory.used(), 0);
    }

    #[tokio::test]
    async fn what_ends_a_stream_before_its_time_is_its_last_event() {
        let broken = events_of(vec![Ok(message("a")), Err(Status::unavailable("gone"))]).await;
        assert!(broken.len() == 2 && broken[1].contains("{\"error\":\"gone\""), "{broken:?}");
        let long = events_of(vec![Ok(message(&"a".repeat(200))), Ok(message("b"))]).await;
        assert!(long.len() == 1 && long[0].contains("too_large"), "{long:?}");
        let refused = ModelStreamInferResponse { error_message: "no".to_owned(), ..Default::default() };
        let refused = events_of(vec![Ok(framed(&refused)), Ok(message("b"))]).await;
        assert!(refused.len() == 1 && refused[0].contains("\"error\":\"no\""), "{refused:?}");
    }
}
