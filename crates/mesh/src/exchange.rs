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
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, header, request::Parts};
use http_body_util::{BodyExt as _, Empty, combinators::UnsyncBoxBody};

/// The body of a request or an answer.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// The moment after which nobody waits for the answer: an extension of every request's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline(pub Instant);

/// The time that the call may take, as gRPC writes it.
pub(crate) const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

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
    if let Ok(value) = HeaderValue::from_str(&grpc_timeout(left)) {
        parts.headers.insert(GRPC_TIMEOUT, value);
    }
    parts
}

/// At most eight digits and a unit, rounded up. From a second on in milliseconds: calls with one time limit then have the same value,
/// which HTTP/2 knows from the one before.
fn grpc_timeout(left: std::time::Duration) -> String {
    const MOST: u128 = 99_999_999;
    match left.as_micros() {
        micros if micros < 1_000_000 => format!("{micros}u"),
        micros if micros.div_ceil(1_000) <= MOST => format!("{}m", micros.div_ceil(1_000)),
        micros => format!("{}S", micros.div_ceil(1_000_000).min(MOST)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn timeouts_have_eight_digits_at_most() {
        for (left, written) in [
            (Duration::ZERO, "0u"),
            (Duration::from_millis(250), "250000u"),
            (Duration::from_micros(9_999_987), "10000m"),
            (Duration::from_micros(100_000_001), "100001m"),
            (Duration::from_secs(3_600), "3600000m"),
            (Duration::from_secs(1_000_000), "1000000S"),
        ] {
            assert_eq!(grpc_timeout(left), written, "{left:?}");
        }
    }
}
