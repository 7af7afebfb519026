//! Jobs as clients read them: JSON.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::header;
use serde_json::{Value, json};

use super::job::{Answer, JobId, Status};

/// A job's state.
pub(crate) fn status(id: &JobId, status: &Status) -> Value {
    let Status { state, attempts, error, callback } = status;
    let mut view = json!({ "id": id.as_str(), "state": state, "attempts": attempts });
    if let Some(error) = error {
        view["error"] = json!(error);
    }
    if let Some(callback) = callback {
        view["callback"] = json!(callback);
    }
    view
}

/// An answer: its body as JSON or text where it is that, else in base64.
pub(crate) fn answer(answer: &Answer) -> Value {
    let headers = answer.headers();
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let mut view = json!({ "status": answer.status().as_u16(), "contentType": kind });
    let json = kind.contains("json").then(|| serde_json::from_slice::<Value>(&answer.body).ok()).flatten();
    match (json, std::str::from_utf8(&answer.body)) {
        (Some(body), _) => view["body"] = body,
        (None, Ok(text)) => view["text"] = json!(text),
        (None, Err(_)) => view["base64"] = json!(BASE64_STANDARD.encode(&answer.body)),
    }
    view
}
