//! The seam of a replica for requests that are neither tensors nor one JSON document: any gRPC method, streams included.
//!
//! ```text
//!  client ── head, pieces as they come ──▶ gateway ──▶ Model::exchange(Parts, Body) ──▶ Response<Body>: head, pieces, trailers
//!                                             └── or, as they come, to another node's replica
//! ```
//!
//! * A body is read only as fast as its reader takes it: a slow client slows the model, and a slow model slows the client.
//! * Dropping the future, or the body of the answer, cancels the call. Both happen when the client goes away.
//! * The deadline is in the extensions ([`Deadline`]) and in `grpc-timeout`. The gateway enforces it; a model that asks
//!   somebody else passes it on, and adds `te: trailers`, which concerns one connection only.

use std::time::Instant;

pub use berth_peer::BoxError;
use berth_wire::grpc_timeout::{self, GRPC_TIMEOUT};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, header, request::Parts};
use http_body_util::{BodyExt as _, Empty, combinators::UnsyncBoxBody};

/// The body of a request or an answer: frames as they come, trailers included.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// The moment after which nobody waits for the answer: an extension of every request's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline(pub Instant);

/// The answer of a model that has no such method: the gRPC status UNIMPLEMENTED.
#[must_use]
pub fn unimplemented() -> Response<Body> {
    let mut response = Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(HeaderName::from_static("grpc-status"), HeaderValue::from_static("12"));
    let message = HeaderValue::from_static("this model takes tensors only: use the Open Inference Protocol");
    headers.insert(HeaderName::from_static("grpc-message"), message);
    response
}

/// The head as a model gets it: with the deadline.
pub(crate) fn with_deadline(mut parts: Parts, deadline: Instant) -> Parts {
    parts.extensions.insert(Deadline(deadline));
    let left = deadline.saturating_duration_since(Instant::now());
    parts.headers.insert(GRPC_TIMEOUT, grpc_timeout::value(left));
    parts
}
