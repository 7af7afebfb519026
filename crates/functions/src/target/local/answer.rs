//! Answers of the target itself.

use bytes::Bytes;
use http::{Response, StatusCode, header};

/// A refusal, as JSON.
pub(crate) fn refused(status: u16, message: &str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(serde_json::json!({ "error": message }).to_string()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}
