//! Mapping from error [`Class`] to HTTP status and gRPC code. No other place defines it.
//!
//! | class | HTTP | gRPC | |
//! |---|---|---|---|
//! | `Invalid` | 400 | INVALID_ARGUMENT | |
//! | `Unprocessable` | 422 | INVALID_ARGUMENT | the body says where in the document |
//! | `NotFound` | 404 | NOT_FOUND | |
//! | `Conflict` | 409 | ABORTED | gRPC's word for a lost compare-and-set |
//! | `Waiting` | 503 | UNAVAILABLE | with `Retry-After`; safe to send again |
//! | `Limited` | 429 | RESOURCE_EXHAUSTED | with `Retry-After`: a limit on use, of a model or a principal |
//! | `TimedOut` | 504 | DEADLINE_EXCEEDED | |
//! | `Stalled` | 503 | FAILED_PRECONDITION | no `Retry-After`: trying again will not help until somebody changes something |
//! | `TooLarge` | 413 | RESOURCE_EXHAUSTED | what gRPC libraries themselves say of a message that is too large |
//! | `Unsupported` | 501 | UNIMPLEMENTED | |
//! | `Internal` | 500 | INTERNAL | |

use berth_spec::Class;
use http::StatusCode;
use tonic::Code;

/// The HTTP status that answers of this error class have.
#[must_use]
pub const fn http_status(class: Class) -> StatusCode {
    match class {
        Class::Invalid => StatusCode::BAD_REQUEST,
        Class::Unprocessable => StatusCode::UNPROCESSABLE_ENTITY,
        Class::NotFound => StatusCode::NOT_FOUND,
        Class::Conflict => StatusCode::CONFLICT,
        Class::Waiting { .. } | Class::Stalled => StatusCode::SERVICE_UNAVAILABLE,
        Class::Limited { .. } => StatusCode::TOO_MANY_REQUESTS,
        Class::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        Class::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Class::Unsupported => StatusCode::NOT_IMPLEMENTED,
        Class::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The gRPC code that answers of this error class have.
#[must_use]
pub const fn grpc_code(class: Class) -> Code {
    match class {
        Class::Invalid | Class::Unprocessable => Code::InvalidArgument,
        Class::NotFound => Code::NotFound,
        Class::Conflict => Code::Aborted,
        Class::Waiting { .. } => Code::Unavailable,
        Class::TimedOut => Code::DeadlineExceeded,
        Class::Stalled => Code::FailedPrecondition,
        Class::TooLarge | Class::Limited { .. } => Code::ResourceExhausted,
        Class::Unsupported => Code::Unimplemented,
        Class::Internal => Code::Internal,
    }
}

/// The HTTP status that says about the same as a gRPC code.
#[must_use]
pub const fn http_of_grpc(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::InvalidArgument | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted | Code::FailedPrecondition => StatusCode::CONFLICT,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::Cancelled | Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The value of `Retry-After` in whole seconds, at least 1; `None` where trying again does not help by itself.
#[must_use]
pub fn retry_after_seconds(class: Class) -> Option<u64> {
    match class {
        Class::Waiting { retry_in } | Class::Limited { retry_in } => {
            Some(retry_in.as_secs() + u64::from(retry_in.subsec_nanos() > 0)).map(|s| s.max(1))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn retry_after_rounds_up() {
        for (millis, seconds) in [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (60_000, 60)] {
            let class = Class::Waiting { retry_in: Duration::from_millis(millis) };
            assert_eq!(retry_after_seconds(class), Some(seconds), "{millis} ms");
        }
        assert_eq!(retry_after_seconds(Class::Stalled), None);
    }

    #[test]
    fn clients_and_servers_agree_on_whose_fault_it_is() {
        for (class, http, grpc) in [
            (Class::Invalid, 400, Code::InvalidArgument),
            (Class::Unprocessable, 422, Code::InvalidArgument),
            (Class::NotFound, 404, Code::NotFound),
            (Class::Conflict, 409, Code::Aborted),
            (Class::Waiting { retry_in: Duration::ZERO }, 503, Code::Unavailable),
            (Class::Limited { retry_in: Duration::ZERO }, 429, Code::ResourceExhausted),
            (Class::TimedOut, 504, Code::DeadlineExceeded),
            (Class::Stalled, 503, Code::FailedPrecondition),
            (Class::TooLarge, 413, Code::ResourceExhausted),
            (Class::Unsupported, 501, Code::Unimplemented),
            (Class::Internal, 500, Code::Internal),
        ] {
            assert_eq!((http_status(class).as_u16(), grpc_code(class)), (http, grpc), "{class:?}");
        }
    }
}
