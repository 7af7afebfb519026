//! The answer of an endpoint: held back while it is short, so that a line that breaks in the middle of it costs nothing; what
//! is longer is passed on as it comes.

use std::time::Duration;

use berth_peer::BoxError;
use berth_spec::InferError;
use berth_wire::status::grpc_code;
use bytes::{Buf as _, Bytes, BytesMut};
use futures::FutureExt as _;
use http::{HeaderMap, Response, StatusCode, response::Parts};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use prost::Message;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::body::relayed::{RelayedBody, Source};
use crate::not_run::NotRun;
use crate::{
    body::reply::ReplyBody,
    forward::head::{LOST, NOT_RUN, STREAM},
    metrics::{Outcome, Protocol},
};

/// Bytes of an answer that are held back: one of this size is not lost with its line, and the first byte of a longer
/// one comes without delay.
const MAX_HELD_BYTES: usize = 256 << 10;

/// A gRPC message's flag and length.
const FRAME_PREFIX: usize = 5;

/// An answer, whole or up to [`MAX_HELD_BYTES`].
pub(crate) struct BufferedResponse {
    head: Parts,
    pieces: BodyPieces,
    trailers: Option<HeaderMap>,
    rest: Option<Incoming>,
    /// A stream: its first pieces must not wait for the next.
    stream: bool,
}

/// Most answers are one piece.
enum BodyPieces {
    None,
    One(Bytes),
    Many(Vec<Bytes>),
}

impl BufferedResponse {
    /// Reads an answer as far as it is held back: all of a short one; of a stream no more than is already here.
    pub(crate) async fn of(response: Response<Incoming>) -> Result<Self, hyper::Error> {
        let (head, mut body) = response.into_parts();
        let stream = head.headers.contains_key(STREAM);
        let (mut pieces, mut length, mut trailers) = (BodyPieces::None, 0, None);
        while length <= MAX_HELD_BYTES {
            if body.is_end_stream() {
                return Ok(Self { head, pieces, trailers, rest: None, stream });
            }
            let frame = if stream {
                match body.frame().now_or_never() {
                    Some(frame) => frame,
                    None => break,
                }
            } else {
                body.frame().await
            };
            match frame {
                None => return Ok(Self { head, pieces, trailers, rest: None, stream }),
                Some(frame) => match frame?.into_data() {
                    Ok(piece) => {
                        length += piece.len();
                        pieces.add(piece);
                    }
                    Err(frame) => trailers = frame.into_trailers().ok(),
                },
            }
        }
        Ok(Self { head, pieces, trailers, rest: Some(body), stream })
    }

    /// The answer is a stream of the model's own.
    pub(crate) fn is_stream(&self) -> bool {
        self.stream
    }

    /// Nothing was run, and why. Words of a later version are as good as draining: it is to be sent elsewhere.
    pub(crate) fn not_run(&self) -> Option<NotRun> {
        if self.head.status != StatusCode::SERVICE_UNAVAILABLE {
            return None;
        }
        let word = self.head.headers.get(NOT_RUN)?.as_bytes();
        Some(NotRun::ALL.into_iter().find(|why| why.as_str().as_bytes() == word).unwrap_or(NotRun::Draining))
    }

    /// The model's process ended under the request, as the node says that holds it.
    pub(crate) fn is_lost(&self) -> bool {
        self.head.headers.contains_key(LOST)
    }

    /// The model answered well, so that the time it took says something.
    pub(crate) fn is_good(&self) -> bool {
        let status = |headers: &HeaderMap| headers.get("grpc-status").is_none_or(|status| status == "0");
        self.head.status.is_success() && status(&self.head.headers) && self.trailers.as_ref().is_none_or(status)
    }

    /// The outcome for metrics, by the HTTP status or the gRPC status.
    pub(crate) fn outcome(&self, protocol: Protocol) -> Outcome {
        match protocol {
            Protocol::Rest => Outcome::of_http(self.head.status),
            Protocol::Grpc => Outcome::of_grpc(&self.status()),
        }
    }

    /// The bytes of the answer's body, as far as they are known.
    pub(crate) fn len(&self) -> usize {
        self.pieces.as_slice().iter().map(Bytes::len).sum()
    }

    /// The gRPC status. One that is still to come counts as good.
    fn status(&self) -> Status {
        let from = |headers: &HeaderMap| Status::from_header_map(headers);
        let status = self.trailers.as_ref().and_then(from).or_else(|| from(&self.head.headers));
        match status {
            Some(status) => status,
            None if self.rest.is_some() => Status::ok(""),
            None if self.head.status != StatusCode::OK => {
                Status::unavailable(format!("the endpoint answered with HTTP status {}", self.head.status.as_u16()))
            }
            None => Status::internal("the endpoint answered without a status"),
        }
    }

    /// Decodes the one message of a gRPC answer. Fails with its status, with UNAVAILABLE if it broke off.
    pub(crate) async fn message<M: Message + Default>(mut self) -> Result<M, Status> {
        let broken = |error: hyper::Error| Status::unavailable(format!("the answer was cut off: {error}"));
        let mut whole = BytesMut::new();
        if let Some(rest) = self.rest.take() {
            let rest = rest.collect().await.map_err(broken)?;
            self.trailers = rest.trailers().cloned();
            self.pieces.add(rest.to_bytes());
        }
        let status = self.status();
        if status.code() != tonic::Code::Ok {
            return Err(status);
        }
        let mut framed = match self.pieces {
            BodyPieces::One(one) => one,
            several => {
                several.as_slice().iter().for_each(|piece| whole.extend_from_slice(piece));
                whole.freeze()
            }
        };
        if framed.len() < FRAME_PREFIX || framed[0] != 0 {
            return Err(Status::internal("the endpoint answered without a message"));
        }
        framed.advance(FRAME_PREFIX);
        M::decode(framed)
            .map_err(|error| Status::internal(format!("the endpoint's answer is no such message: {error}")))
    }

    /// Passes it on. What `guard` holds is held until the last byte has gone, which a stream's is by `deadline`.
    pub(crate) fn into_reply(self, guard: impl Send + 'static, deadline: Instant) -> Response<ReplyBody> {
        let Self { mut head, pieces, trailers, rest, stream } = self;
        for name in [NOT_RUN, LOST, STREAM] {
            head.headers.remove(name);
        }
        // The client's connection has its own version, which hyper knows.
        head.version = http::Version::default();
        let body = match (pieces, trailers, rest) {
            (BodyPieces::None, None, None) => ReplyBody::Empty,
            (BodyPieces::One(one), None, None) => ReplyBody::from(one),
            (pieces, trailers, rest) => {
                let relayed = RelayedBody::new(pieces.into_vec(), trailers, rest.map(Source::Node), guard);
                ReplyBody::Relayed(Box::new(if stream { relayed.until(deadline, &head.headers) } else { relayed }))
            }
        };
        Response::from_parts(head, body)
    }
}

impl BodyPieces {
    fn add(&mut self, piece: Bytes) {
        if piece.is_empty() {
            return;
        }
        *self = match std::mem::replace(self, Self::None) {
            Self::None => Self::One(piece),
            Self::One(one) => Self::Many(vec![one, piece]),
            Self::Many(mut many) => {
                many.push(piece);
                Self::Many(many)
            }
        };
    }

    fn as_slice(&self) -> &[Bytes] {
        match self {
            Self::None => &[],
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }

    fn into_vec(self) -> Vec<Bytes> {
        match self {
            Self::None => Vec::new(),
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

/// The end of a request without an answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// As one that was not forwarded could have ended, too.
    #[error(transparent)]
    Infer(#[from] InferError),
    /// The connection broke; the request may have been run.
    #[error("model {model:?} may have run the request, but the line to where it runs broke: {why}")]
    Lost {
        model: String,
        /// The reason why it was not sent again.
        why: &'static str,
    },
    /// A gRPC status that is passed on as it is.
    #[error("{}", .0.message())]
    Status(Box<Status>),
}

impl Failure {
    /// The gRPC status that it is told as.
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Infer(error) => grpc_code(error.class()),
            Self::Lost { .. } => Code::Unavailable,
            Self::Status(status) => status.code(),
        }
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

/// When to try again after a line broke: the next endpoint is known by then.
pub(crate) const RETRY_LOST: Duration = Duration::from_secs(1);

/// A status as the error of a body.
pub(crate) fn boxed(status: Status) -> BoxError {
    status.into()
}
