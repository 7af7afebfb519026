//! The bodies of answers.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::Stream;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};

use crate::body::{relayed::Relayed, tapped::Tapped, watched::Watched};

/// Pieces of framed messages, and perhaps the status that ends them.
pub(crate) type Messages = Pin<Box<dyn Stream<Item = Result<Bytes, tonic::Status>> + Send>>;

/// Server-sent events.
pub(crate) type Events = Pin<Box<dyn Stream<Item = Bytes> + Send>>;

/// The body of an answer.
#[derive(Default)]
pub(crate) enum ReplyBody {
    /// Nothing.
    #[default]
    Empty,
    /// In one piece.
    Whole(Bytes),
    /// Piece by piece: parts that need not be copied together, or that are made as they are sent.
    Pieces {
        /// The pieces that are left.
        left: Box<dyn Iterator<Item = Bytes> + Send>,
        /// The bytes that are left, where that is known.
        length: Option<u64>,
    },
    /// The one message of a gRPC answer, framed; the trailers that say that all is well follow it.
    Message(Bytes),
    /// The trailers that follow a good answer.
    Well,
    /// From the gRPC service.
    Grpc(tonic::body::Body),
    /// From another node, or of a model's own making.
    Relayed(Box<Relayed>),
    /// Messages of a gRPC stream, framed, until its status.
    Stream(Messages),
    /// Events of a stream in text, as they come.
    Events(Events),
    /// A stream that ends with the right of its caller.
    Watched(Box<Watched>),
    /// One that somebody watches.
    Tapped(Box<Tapped>),
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

/// An answer in JSON.
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

/// An answer without a body.
pub(crate) fn empty() -> Response<ReplyBody> {
    Response::new(ReplyBody::Empty)
}

/// hyper wants a result.
pub(crate) fn infallible(response: Response<ReplyBody>) -> Result<Response<ReplyBody>, Infallible> {
    Ok(response)
}
