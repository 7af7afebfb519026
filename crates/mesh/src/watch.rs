//! The view of a call that passes: for payload processors, and for counts of calls.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use bytes::Bytes;
use http::{HeaderMap, response::Parts};
use tonic::Code;

/// A watcher of one answer. Dropped before [`end`](Watch::end) or [`failed`](Watch::failed), it watched one that broke off.
pub(crate) trait Watch: Send {
    /// Hears the head of the answer, first.
    fn head(&mut self, head: &Parts);

    /// Hears a piece of the body as it is sent.
    fn piece(&mut self, piece: &Bytes);

    /// Hears trailers, which may hold the gRPC status.
    fn trailers(&mut self, trailers: &HeaderMap);

    /// There is no answer, or no more of it, but this status.
    fn failed(&mut self, code: Code);

    /// Hears that the answer was sent to its end.
    fn end(&mut self);
}

/// Length of a body in bytes, which may still grow.
#[derive(Debug)]
pub(crate) enum Length {
    Known(usize),
    /// Length so far of a body that is still on its way.
    Growing(Arc<AtomicUsize>),
}

impl Length {
    /// Bytes that came so far.
    pub(crate) fn now(&self) -> usize {
        match self {
            Self::Known(bytes) => *bytes,
            Self::Growing(bytes) => bytes.load(Relaxed),
        }
    }
}

/// True of the head of a gRPC request or answer.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(http::header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// The status in a head or in trailers of gRPC; `None`: there is none.
pub(crate) fn status(headers: &HeaderMap) -> Option<Code> {
    tonic::Status::from_header_map(headers).map(|status| status.code())
}

/// The gRPC status that a REST answer counts as.
pub(crate) fn code_of(status: http::StatusCode) -> Code {
    match status.as_u16() {
        200..400 => Code::Ok,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::NotFound,
        413 | 429 => Code::ResourceExhausted,
        400..=499 => Code::InvalidArgument,
        501 => Code::Unimplemented,
        502 | 503 => Code::Unavailable,
        504 => Code::DeadlineExceeded,
        _ => Code::Internal,
    }
}

/// The name of a status, as gRPC's own pages write it.
pub(crate) const fn name_of(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
