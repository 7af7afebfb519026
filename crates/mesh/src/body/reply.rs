//! The bodies of answers.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use berth_peer::PeerBody;
use bytes::Bytes;
use futures::Stream;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::time::Instant;

use crate::body::{
    memory::{MIN_COUNTED_BYTES, RequestMemory},
    relayed::{RelayedBody, Source},
    tapped::TappedBody,
    watched::WatchedBody,
};

/// Pieces of framed messages, and perhaps the status that ends them.
pub(crate) type Messages = Pin<Box<dyn Stream<Item = Result<Bytes, tonic::Status>> + Send>>;

/// Server-sent events, each whole with its `data:` lines.
pub(crate) type Events = Pin<Box<dyn Stream<Item = Bytes> + Send>>;

/// The body of an answer to a client, by where it comes from and how it ends.
#[derive(Default)]
pub(crate) enum ReplyBody {
    /// No body.
    #[default]
    Empty,
    /// Bytes that are here already, in one piece.
    Whole(Bytes),
    /// Piece by piece: parts that need not be copied together, or that are made as they are sent.
    Pieces {
        /// The pieces that were not sent yet.
        left: Box<dyn Iterator<Item = Bytes> + Send>,
        /// The bytes that are left, where that is known.
        length: Option<u64>,
    },
    /// The one message of a gRPC answer, framed; the trailers that say that all is well follow it.
    Message(Bytes),
    /// The trailers that follow a good answer.
    Well,
    /// The answer of a generated gRPC service, or a small one that is passed on.
    Grpc(tonic::body::Body),
    /// From another node, or of a model's own making.
    Relayed(Box<RelayedBody>),
    /// Messages of a gRPC stream, framed, until its status.
    Stream(Messages),
    /// Events of a stream in text, as they come.
    Events(Events),
    /// A stream that ends with the right of its caller.
    Watched(Box<WatchedBody>),
    /// An answer that payload processors or counts of calls observe.
    Tapped(Box<TappedBody>),
}

impl From<Bytes> for ReplyBody {
    fn from(whole: Bytes) -> Self {
        if whole.is_empty() { Self::Empty } else { Self::Whole(whole) }
    }
}

impl ReplyBody {
    /// True if it may come for as long as any.
    pub(crate) fn is_open(&self) -> bool {
        match self {
            Self::Relayed(_) | Self::Stream(_) | Self::Events(_) => true,
            Self::Tapped(body) => body.inner.is_open(),
            _ => false,
        }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Whole(whole) => {
                let whole = std::mem::take(whole);
                *self = Self::Empty;
                Poll::Ready(Some(Ok(Frame::data(whole))))
            }
            Self::Message(message) => {
                let message = std::mem::take(message);
                *self = Self::Well;
                Poll::Ready(Some(Ok(Frame::data(message))))
            }
            Self::Well => {
                *self = Self::Empty;
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"));
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
            Self::Pieces { left, length } => {
                let piece = left.next();
                if let (Some(piece), Some(length)) = (&piece, length) {
                    *length = length.saturating_sub(piece.len() as u64);
                }
                Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
            }
            Self::Grpc(body) => Pin::new(body).poll_frame(cx),
            Self::Relayed(body) => body.poll_frame(cx),
            Self::Watched(body) => body.poll_frame(cx),
            Self::Tapped(body) => body.poll_frame(cx),
            Self::Events(events) => {
                events.as_mut().poll_next(cx).map(|event| event.map(|event| Ok(Frame::data(event))))
            }
            Self::Stream(messages) => {
                let status = match std::task::ready!(messages.as_mut().poll_next(cx)) {
                    Some(Ok(message)) => return Poll::Ready(Some(Ok(Frame::data(message)))),
                    Some(Err(status)) => status,
                    None => tonic::Status::ok(""),
                };
                *self = Self::Empty;
                let mut trailers = HeaderMap::new();
                status.add_header(&mut trailers)?;
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Whole(_) | Self::Message(_) | Self::Well | Self::Stream(_) | Self::Events(_) => false,
            Self::Pieces { length, .. } => *length == Some(0),
            Self::Grpc(body) => body.is_end_stream(),
            Self::Relayed(body) => body.is_end_stream(),
            Self::Watched(body) => body.is_end_stream(),
            Self::Tapped(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            // A content length would not count the trailers.
            Self::Message(_) | Self::Well | Self::Relayed(_) | Self::Stream(_) | Self::Events(_) | Self::Watched(_) => {
                SizeHint::default()
            }
            Self::Whole(whole) => SizeHint::with_exact(whole.len() as u64),
            Self::Pieces { length, .. } => length.map_or_else(SizeHint::default, SizeHint::with_exact),
            Self::Grpc(body) => body.size_hint(),
            Self::Tapped(body) => body.size_hint(),
        }
    }
}

/// The value of `Content-Type` for JSON.
pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// An answer with this status and body, of type `application/json`.
pub(crate) fn json(status: StatusCode, body: impl Into<Bytes>) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::from(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}

/// An answer from what serializes to JSON.
pub(crate) fn described(body: &impl serde::Serialize) -> Response<ReplyBody> {
    let body = serde_json::to_vec(body).expect("descriptions are structs of strings, numbers and lists");
    json(StatusCode::OK, body)
}

/// The same answer. One that is whole counts against `memory` until it is read.
pub(crate) fn counted(answer: Response<ReplyBody>, memory: &Arc<RequestMemory>) -> Response<ReplyBody> {
    answer.map(|body| match body {
        ReplyBody::Whole(whole) => ReplyBody::Whole(memory.answer(whole)),
        other => other,
    })
}

/// An answer of the gRPC service, which counts against `memory` until it is read. The service answers unary calls alone, and their
/// messages are there at once.
pub(crate) async fn counted_message(
    answer: Response<tonic::body::Body>,
    memory: &Arc<RequestMemory>,
) -> Response<ReplyBody> {
    let (head, body) = answer.into_parts();
    let collected = match body.collect().await {
        Ok(collected) => collected,
        Err(status) => return status.into_http(),
    };
    let trailers = collected.trailers().cloned();
    let message = memory.answer(collected.to_bytes());
    let is_well = |trailers: &HeaderMap| {
        trailers.len() == 1 && trailers.get("grpc-status").is_some_and(|code| code.as_bytes() == b"0")
    };
    let body = match trailers {
        None => ReplyBody::from(message),
        Some(trailers) if is_well(&trailers) => ReplyBody::Message(message),
        trailers => ReplyBody::Relayed(Box::new(RelayedBody::new(vec![message], trailers, None, ()))),
    };
    Response::from_parts(head, body)
}

/// An answer of somebody else's making. Unless it is small, its parts count against `memory` as long as a connection has them, and
/// `guard` is held until it has been passed on, which is by `deadline`.
pub(crate) fn passed_on(
    answer: Response<PeerBody>,
    guard: impl Send + 'static,
    deadline: Instant,
    memory: &Arc<RequestMemory>,
) -> Response<ReplyBody> {
    let (mut head, body) = answer.into_parts();
    let length = body.size_hint().exact();
    if length.is_some_and(|length| length < MIN_COUNTED_BYTES as u64) {
        return Response::from_parts(head, ReplyBody::Grpc(tonic::body::Body::new(body)));
    }
    if let Some(length) = length {
        // What is passed on does not tell its length by itself.
        head.headers.entry(header::CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
    }
    let memory = Arc::clone(memory);
    let body = body.map_frame(move |frame| frame.map_data(|data| memory.answer(data))).boxed_unsync();
    let relayed = RelayedBody::new(Vec::new(), None, Some(Source::Model(body)), guard);
    let relayed = relayed.until(deadline, &head.headers);
    Response::from_parts(head, ReplyBody::Relayed(Box::new(relayed)))
}

/// An answer with status 200 and no body.
pub(crate) fn empty() -> Response<ReplyBody> {
    Response::new(ReplyBody::Empty)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fair::Shape;

    #[tokio::test]
    async fn answers_count_until_they_are_read() {
        let memory = RequestMemory::new(1 << 20, Shape::new(false));
        let large = || Bytes::from(vec![b' '; 64 << 10]);
        let whole = counted(json(StatusCode::OK, large()), &memory);
        assert_eq!(memory.used(), 64 << 10);
        drop(whole);
        let (guard, deadline) = (Arc::new(()), Instant::now() + std::time::Duration::from_secs(3_600));
        let other = passed_on(Response::new(berth_peer::full(large())), Arc::clone(&guard), deadline, &memory);
        assert_eq!(Arc::strong_count(&guard), 2);
        assert_eq!(other.headers()[header::CONTENT_LENGTH], (64 << 10).to_string());
        let read = other.into_body().collect().await.expect("it is whole").to_bytes();
        // A connection has the bytes when the body has gone already.
        assert_eq!((read.len(), memory.used(), Arc::strong_count(&guard)), (64 << 10, 64 << 10, 1));
        drop(read);
        assert_eq!(memory.used(), 0);
        let small = passed_on(Response::new(berth_peer::full("small")), Arc::clone(&guard), deadline, &memory);
        assert_eq!((small.body().size_hint().exact(), memory.used(), Arc::strong_count(&guard)), (Some(5), 0, 1));
    }

    #[tokio::test]
    async fn messages_of_the_grpc_service_count_with_their_status() {
        let memory = RequestMemory::new(1 << 20, Shape::new(false));
        let made = |trailers: Option<HeaderMap>| {
            let frames = [Some(Frame::data(Bytes::from(vec![0; 64 << 10]))), trailers.map(Frame::trailers)];
            let frames = frames.into_iter().flatten().map(Ok::<_, tonic::Status>);
            let body = http_body_util::StreamBody::new(futures::stream::iter(frames.collect::<Vec<_>>()));
            Response::new(tonic::body::Body::new(body))
        };
        for code in ["0", "13"] {
            let trailers: HeaderMap = [("grpc-status", code)]
                .into_iter()
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
                .collect();
            let answer = counted_message(made(Some(trailers)), &memory).await;
            assert_eq!(memory.used(), 64 << 10, "{code}");
            let read = answer.into_body().collect().await.expect("it is whole");
            assert_eq!(read.trailers().expect("a status")["grpc-status"], code);
            assert_eq!(read.to_bytes().len(), 64 << 10);
            assert_eq!(memory.used(), 0, "{code}");
        }
        let refused = counted_message(tonic::Status::not_found("no").into_http(), &memory).await;
        assert!(refused.body().is_end_stream() && refused.headers()["grpc-status"] == "5");
    }
}
