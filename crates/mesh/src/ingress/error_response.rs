//! Tells a client why there is no answer: the same error as a REST body or as a gRPC status.

use berth_spec::{
    Class, InferError,
    inference::{Shed, Violation},
};
use berth_wire::{
    bounded_status,
    guard::Foreign,
    request_id::RequestId,
    status::{grpc_code, http_status, retry_after_seconds},
};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use tonic::metadata::{MetadataMap, MetadataValue};

use crate::{
    body::reply::{ReplyBody, json},
    disclosure::without_places,
    forward::buffered::{Failure, RETRY_LOST},
    oip, repository,
};

/// An answer of a REST handler. Errors are answers, too.
pub(crate) type Reply = Result<Response<ReplyBody>, ErrorResponse>;

/// Seldom any: kept aside, so that what is returned everywhere stays small.
#[derive(Debug)]
struct Violations(Vec<Violation>);

/// The reason why there is no answer.
#[derive(Debug)]
pub(crate) struct ErrorResponse {
    status: StatusCode,
    class: Class,
    reason: &'static str,
    message: String,
    /// The places at which something is wrong in the request's document.
    violations: Option<Box<Violations>>,
    /// A header that says what would have been taken.
    advice: Option<Box<(HeaderName, &'static str)>>,
}

impl ErrorResponse {
    pub(crate) fn new(class: Class, reason: &'static str, message: String) -> Self {
        Self {
            status: http_status(class),
            class,
            reason,
            message: bounded_status::text(message),
            violations: None,
            advice: None,
        }
    }

    pub(crate) fn no_such_path() -> Self {
        Self::no_path_but(&[])
    }

    /// No such path, but these, at which models answer in JSON of their own.
    pub(crate) fn no_path_but(paths: &[Box<str>]) -> Self {
        let mut message = "no such path; the Open Inference Protocol lives under /v2".to_owned();
        if !paths.is_empty() {
            message.push_str(&format!(", and models answer at {}", paths.join(", ")));
        }
        Self::new(Class::NotFound, "not_found", message)
    }

    /// The path has other verbs.
    pub(crate) fn wrong_verb(allow: &'static str) -> Self {
        let error = Self::new(Class::Invalid, "method_not_allowed", format!("Method Not Allowed: use {allow}"));
        Self { status: StatusCode::METHOD_NOT_ALLOWED, advice: Some(Box::new((header::ALLOW, allow))), ..error }
    }

    /// Nobody knows who sent it.
    pub(crate) fn unauthenticated(message: String) -> Self {
        let error = Self::new(Class::Invalid, "unauthenticated", message);
        let advice = Some(Box::new((header::WWW_AUTHENTICATE, "Bearer realm=\"berth\"")));
        Self { status: StatusCode::UNAUTHORIZED, advice, ..error }
    }

    /// Whoever sent it may not do that.
    pub(crate) fn forbidden(message: String) -> Self {
        Self { status: StatusCode::FORBIDDEN, ..Self::new(Class::Invalid, "forbidden", message) }
    }

    /// The path is longer than any path here.
    pub(crate) fn uri_too_long(limit: usize) -> Self {
        let error = Self::new(Class::TooLarge, "uri_too_long", format!("paths have at most {limit} bytes"));
        Self { status: StatusCode::URI_TOO_LONG, ..error }
    }

    /// The body comes in an encoding that is not there.
    pub(crate) fn wrong_encoding(error: InferError) -> Self {
        let error = Self::from(error);
        let advice = (error.status == StatusCode::NOT_IMPLEMENTED)
            .then(|| Box::new((header::ACCEPT_ENCODING, oip::content::ACCEPTED)));
        Self { advice, ..error }
    }

    /// Status of the REST answer.
    pub(crate) const fn status(&self) -> StatusCode {
        self.status
    }

    /// Reason of the error in snake_case, as metrics and the field `reason` of the body have it.
    pub(crate) const fn reason(&self) -> &'static str {
        self.reason
    }

    /// The answer over REST: a JSON body, and `Retry-After` where it is worth trying again.
    pub(crate) fn into_response(self) -> Response<ReplyBody> {
        let violations = self.violations.as_ref().map_or(&[][..], |violations| &violations.0);
        let body = oip::error_body(&self.message, self.reason, violations);
        let mut response = json(self.status, body);
        response.extensions_mut().insert(ErrorBodyMarker);
        let headers = response.headers_mut();
        if let Some(seconds) = retry_after_seconds(self.class) {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if let Some((name, value)) = self.advice.map(|advice| *advice) {
            headers.insert(name, HeaderValue::from_static(value));
        }
        if self.reason == Shed::ShuttingDown.as_str() {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// Marks an answer whose body is an error's, and not a model's.
#[derive(Clone, Copy)]
struct ErrorBodyMarker;

/// Names the request of an answer: in a header, and in the body of an error.
pub(crate) fn named(mut response: Response<ReplyBody>, id: RequestId) -> Response<ReplyBody> {
    if response.extensions_mut().remove::<ErrorBodyMarker>().is_some()
        && let ReplyBody::Whole(body) = response.body()
    {
        let body = oip::with_request_id(body, id.as_str());
        *response.body_mut() = ReplyBody::from(Bytes::from(body));
    }
    id.mark(response.headers_mut());
    response
}

/// The error of a request whose code panicked.
pub(crate) fn panicked(id: Option<&RequestId>) -> InferError {
    // The panic hook has told where; the payload may hold what a client sent.
    tracing::error!(request_id = id.map(RequestId::as_str), "a request panicked");
    InferError::Internal("the server failed on this request".to_owned())
}

impl From<InferError> for ErrorResponse {
    fn from(error: InferError) -> Self {
        let message = error.to_string();
        let message = match &error {
            // What concerns the request itself names places in it.
            InferError::Invalid(_) | InferError::Unprocessable { .. } | InferError::NotFound(_) => message,
            _ => without_places(&message).into_owned(),
        };
        let plain = Self::new(error.class(), error.reason(), message);
        match error {
            InferError::Unprocessable { violations, .. } => {
                Self { violations: Some(Box::new(Violations(violations))), ..plain }
            }
            _ => plain,
        }
    }
}

impl From<Failure> for tonic::Status {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Status(status) => *status,
            other => ErrorResponse::from(other).into(),
        }
    }
}

impl From<Failure> for ErrorResponse {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Infer(error) => error.into(),
            Failure::Status(status) => InferError::Internal(status.message().to_owned()).into(),
            Failure::Lost { .. } => {
                let class = Class::Waiting { retry_in: RETRY_LOST };
                let error = Self::new(class, Shed::Unavailable.as_str(), failure.to_string());
                Self { status: StatusCode::BAD_GATEWAY, ..error }
            }
        }
    }
}

impl From<repository::Error> for ErrorResponse {
    fn from(error: repository::Error) -> Self {
        Self::new(error.class(), error.reason(), error.to_string())
    }
}

impl From<Foreign> for ErrorResponse {
    fn from(foreign: Foreign) -> Self {
        Self::forbidden(foreign.to_string())
    }
}

impl From<ErrorResponse> for tonic::Status {
    fn from(error: ErrorResponse) -> Self {
        let mut metadata = MetadataMap::new();
        metadata.insert("berth-reason", MetadataValue::from_static(error.reason));
        if let Some(seconds) = retry_after_seconds(error.class) {
            metadata.insert("retry-after", seconds.into());
        }
        let code = match error.status {
            _ if error.reason == "cancelled" => tonic::Code::Cancelled,
            StatusCode::UNAUTHORIZED => tonic::Code::Unauthenticated,
            StatusCode::FORBIDDEN => tonic::Code::PermissionDenied,
            _ => grpc_code(error.class),
        };
        Self::with_metadata(code, error.message, metadata)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node that answered another one with an input's name of three megabytes ended the connection of all requests between them.
    #[test]
    fn a_message_is_no_longer_than_clients_take() {
        let message = |text: &str| ErrorResponse::from(InferError::Invalid(text.to_owned())).message;
        let whole = "n".repeat(bounded_status::MAX_STATUS_BYTES);
        assert_eq!(message(&whole), whole);
        for long in [format!("{whole}n"), "é".repeat(1 << 20)] {
            let cut = message(&long);
            assert!(
                cut.ends_with('…') && cut.len() <= bounded_status::MAX_STATUS_BYTES + '…'.len_utf8(),
                "{}",
                cut.len()
            );
            let answer = tonic::Status::invalid_argument(cut).into_http::<()>();
            assert!(answer.headers()["grpc-message"].len() < 8 << 10, "{answer:?}");
        }
    }
}
