//! A refused request and its answer.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use berth_spec::{Class, manifest::ManifestError};
use berth_wire::{
    api::{ErrorBody, ErrorDetail, ErrorInfo},
    status,
};

use crate::handle;

/// Refusal or failure of a request to the control API: a class, a reason, and a message with details.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    fault: RefusalKind,
    /// One word for machines.
    reason: &'static str,
    message: String,
    details: Vec<ErrorDetail>,
}

/// Kind of refusal: an error class of the system, or one specific to HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RefusalKind {
    Class(Class),
    /// The request is well-formed, the manifests in it are not.
    InvalidManifest,
    /// `If-Match` names another version than the stored one.
    PreconditionFailed,
    MethodNotAllowed,
    UnsupportedMediaType,
    /// Sent by a page of another site in a browser, or by somebody who may not do this.
    Forbidden,
    /// Sent by nobody who is known.
    Unauthorized,
}

impl ApiError {
    /// An error of a class, with the usual reason and status of that class.
    #[must_use]
    pub fn new(class: Class, message: impl Into<String>) -> Self {
        Self::of(RefusalKind::Class(class), message)
    }

    fn of(fault: RefusalKind, message: impl Into<String>) -> Self {
        Self { fault, reason: fault.reason(), message: message.into(), details: Vec::new() }
    }

    /// The caller sent something wrong: `path` names the parameter, header or field.
    pub(crate) fn invalid(path: &str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        let message = message.into();
        let detail = ErrorDetail {
            path: path.to_owned(),
            message: message.clone(),
            remedy: remedy.into(),
            ..ErrorDetail::default()
        };
        Self::new(Class::Invalid, message).with(vec![detail])
    }

    /// Manifests that do not pass the checks.
    pub(crate) fn manifests(errors: Vec<ManifestError>) -> Self {
        let message = match errors.as_slice() {
            [] => "the manifest is invalid".to_owned(),
            [one] => told(one),
            [first, rest @ ..] => format!("{} (and {} more, see details)", told(first), rest.len()),
        };
        Self::of(RefusalKind::InvalidManifest, message).with(errors.into_iter().map(detail).collect())
    }

    /// The error `NoLeader`: there is no leader, or it cannot be reached. It is worth trying again after `retry_in`.
    pub(crate) fn no_leader(retry_in: std::time::Duration, message: impl Into<String>) -> Self {
        Self { reason: "NoLeader", ..Self::new(Class::Waiting { retry_in }, message) }
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(Class::NotFound, message)
    }

    pub(crate) fn precondition_failed(message: impl Into<String>) -> Self {
        Self::of(RefusalKind::PreconditionFailed, message)
    }

    pub(crate) fn method_not_allowed(message: impl Into<String>) -> Self {
        Self::of(RefusalKind::MethodNotAllowed, message)
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::of(RefusalKind::Forbidden, message)
    }

    /// Nobody knows who sent it.
    pub(crate) fn unauthorized(message: impl Into<String>) -> Self {
        Self::of(RefusalKind::Unauthorized, message)
    }

    pub(crate) fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::of(RefusalKind::UnsupportedMediaType, message)
    }

    /// The same with what exactly is wrong.
    pub(crate) fn with(mut self, details: Vec<ErrorDetail>) -> Self {
        self.details = details;
        self
    }

    /// Reason in PascalCase, for clients and metrics.
    pub(crate) const fn reason(&self) -> &'static str {
        self.reason
    }

    /// Class of the error, which tells callers what to do next.
    #[must_use]
    pub const fn class(&self) -> Class {
        match self.fault {
            RefusalKind::Class(class) => class,
            RefusalKind::PreconditionFailed => Class::Conflict,
            RefusalKind::InvalidManifest
            | RefusalKind::UnsupportedMediaType
            | RefusalKind::Forbidden
            | RefusalKind::Unauthorized => Class::Invalid,
            RefusalKind::MethodNotAllowed => Class::Unsupported,
        }
    }

    /// The error as the JSON body of an answer tells it, without the id of the request.
    pub(crate) fn info(&self) -> ErrorInfo {
        ErrorInfo {
            code: self.fault.http_status().as_u16(),
            reason: self.reason.to_owned(),
            message: self.message.clone(),
            request_id: None,
            details: self.details.clone(),
        }
    }
}

impl RefusalKind {
    const fn http_status(self) -> StatusCode {
        match self {
            Self::Class(class) => status::http_status(class),
            Self::InvalidManifest => StatusCode::UNPROCESSABLE_ENTITY,
            Self::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
        }
    }

    const fn reason(self) -> &'static str {
        match self {
            Self::Class(Class::Invalid | Class::Unprocessable) => "BadRequest",
            Self::Class(Class::NotFound) => "NotFound",
            Self::Class(Class::Conflict) => "Conflict",
            Self::Class(Class::Waiting { .. }) => "Unavailable",
            Self::Class(Class::Limited { .. }) => "TooManyRequests",
            Self::Class(Class::TimedOut) => "TimedOut",
            Self::Class(Class::Stalled) => "Stalled",
            Self::Class(Class::TooLarge) => "TooLarge",
            Self::Class(Class::Unsupported) => "Unsupported",
            Self::Class(Class::Internal) => "Internal",
            Self::InvalidManifest => "InvalidManifest",
            Self::PreconditionFailed => "PreconditionFailed",
            Self::MethodNotAllowed => "MethodNotAllowed",
            Self::UnsupportedMediaType => "UnsupportedMediaType",
            Self::Forbidden => "Forbidden",
            Self::Unauthorized => "Unauthorized",
        }
    }
}

impl From<handle::Error> for ApiError {
    fn from(error: handle::Error) -> Self {
        match error {
            handle::Error::WrongFunction { .. } => Self::of(RefusalKind::InvalidManifest, error.to_string()),
            _ => Self { reason: error.reason(), ..Self::new(error.class(), error.to_string()) },
        }
    }
}

/// An error in one line, with its place also where the body has no file name.
fn told(error: &ManifestError) -> String {
    let ManifestError { file, line, column, .. } = error;
    if file.is_empty() && *line > 0 { format!("line {line}, column {column}: {error}") } else { error.to_string() }
}

fn detail(error: ManifestError) -> ErrorDetail {
    let known = |place: u32| (place > 0).then_some(place);
    ErrorDetail {
        file: (!error.file.is_empty()).then_some(error.file),
        line: known(error.line),
        column: known(error.column),
        path: error.path,
        message: error.message,
        remedy: error.remedy,
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let error = self.info();
        let mut response = (self.fault.http_status(), Json(ErrorBody { error: error.clone() })).into_response();
        // Whoever knows the id of the request adds it.
        response.extensions_mut().insert(error);
        if self.fault == RefusalKind::Unauthorized {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"berth\""));
        }
        if let Some(seconds) = status::retry_after_seconds(self.class()) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn manifest_error(line: u32) -> ManifestError {
        ManifestError {
            file: "iris.yaml".into(),
            line,
            column: line,
            path: "spec.replicas.min".into(),
            message: "-1 is not a number of replicas".into(),
            remedy: "write 0 or more".into(),
            source_line: berth_spec::manifest::SourceLine::default(),
        }
    }

    #[test]
    fn statuses_and_reasons() {
        let waiting = Class::Waiting { retry_in: Duration::from_millis(1_200) };
        for (error, code, reason) in [
            (ApiError::invalid("limit", "no", "yes"), 400, "BadRequest"),
            (ApiError::not_found("no"), 404, "NotFound"),
            (ApiError::method_not_allowed("no"), 405, "MethodNotAllowed"),
            (ApiError::new(Class::Conflict, "no"), 409, "Conflict"),
            (ApiError::precondition_failed("no"), 412, "PreconditionFailed"),
            (ApiError::new(Class::TooLarge, "no"), 413, "TooLarge"),
            (ApiError::unsupported_media_type("no"), 415, "UnsupportedMediaType"),
            (ApiError::manifests(vec![manifest_error(7)]), 422, "InvalidManifest"),
            (ApiError::new(waiting, "no"), 503, "Unavailable"),
        ] {
            let info = error.info();
            assert_eq!((info.code, info.reason.as_str()), (code, reason), "{error:?}");
            assert_eq!(error.into_response().status().as_u16(), code);
        }
        let response = ApiError::new(waiting, "no").into_response();
        assert_eq!(response.headers().get(header::RETRY_AFTER), Some(&HeaderValue::from(2)));
    }

    #[test]
    fn every_fault_keeps_its_place() {
        let error = ApiError::manifests(vec![manifest_error(7), manifest_error(0)]);
        let info = error.info();
        assert!(info.message.contains("iris.yaml:7:7") && info.message.contains("and 1 more"), "{}", info.message);
        assert_eq!((info.details[0].line, info.details[0].column), (Some(7), Some(7)));
        assert_eq!((info.details[1].line, info.details[1].column), (None, None));
    }

    #[test]
    fn a_body_without_a_file_name_has_lines_all_the_same() {
        for (line, begins) in [(7, "line 7, column 7: spec.replicas.min: -1"), (0, "spec.replicas.min: -1")] {
            let error = ManifestError { file: String::new(), ..manifest_error(line) };
            let message = ApiError::manifests(vec![error]).info().message;
            assert!(message.starts_with(begins), "{message}");
        }
    }
}
