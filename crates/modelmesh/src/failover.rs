//! Calls while leadership changes. ModelMesh has no leader, so its callers expect no pause: a call waits for the next one.
//!
//! ```text
//! call ──▶ leader ── answer ─────────────────────────────────────▶ caller
//!   ▲        └── nobody leads, or the term ended ── in time ──┐
//!   └──────────────────────── a pause ◀───────────────────────┴── late ──▶ UNAVAILABLE
//! ```
//! Every call can be repeated: what is so already is no conflict. The state of a model that answers needs no leader: this node tells it
//! (`local`), as ModelMesh told states while its store was away.

use std::time::Duration;

use axum::{
    BoxError,
    body::{Body, Bytes},
};
use berth_control::api::ApiRouter;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use tokio::time::Instant;
use tonic::{Status, metadata::MetadataMap};

use crate::{gateway::Answering, local, whole};

/// Time for which a call is repeated. A leader that died is followed within its lease, which is shorter.
const WITHIN: Duration = Duration::from_secs(20);

/// Pause before a call is repeated; short compared with an election.
const PAUSE: Duration = Duration::from_millis(200);

/// Header of an answer of a leader whose term ended before it decided.
const TERM_ENDED: HeaderName = HeaderName::from_static("berth-term-ended");

/// Largest error of the control API in bytes: a few lines of text.
const MAX_ERROR: usize = 64 << 10;

/// Answers a call, by this leader or the next, or by what this node knows.
pub(crate) async fn call<B>(api: &ApiRouter, request: Request<B>, answering: &Answering) -> Response<Body>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (parts, body) = request.into_parts();
    let body = match whole::read(body).await {
        Ok(body) => body,
        Err(status) => return status.into_http(),
    };
    let until = Instant::now() + WITHIN;
    loop {
        let request = Request::from_parts(parts.clone(), Body::new(Full::new(body.clone())));
        let (response, decided) = answered(api.answer(request).await).await;
        if decided {
            return response;
        }
        if let Some(told) = local::status(&parts, &body, answering) {
            return told;
        }
        if Instant::now() + PAUSE > until {
            return response;
        }
        tracing::debug!(event = "call_repeated", path = parts.uri.path(), "nobody leads");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Status of a term that ended before it decided.
pub(crate) fn term_ended(message: String) -> Status {
    let mut metadata = MetadataMap::new().into_headers();
    metadata.insert(TERM_ENDED, HeaderValue::from_static("true"));
    Status::with_metadata(tonic::Code::Unavailable, message, MetadataMap::from_headers(metadata))
}

/// The answer with a gRPC status, and true if somebody decided it.
async fn answered(response: Response<Body>) -> (Response<Body>, bool) {
    let kind = response.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    if kind.is_some_and(|kind| kind.starts_with(b"application/grpc")) {
        let mut response = response;
        let decided = response.headers_mut().remove(TERM_ENDED).is_none();
        return (response, decided);
    }
    let status = response.status();
    let text = Limited::new(response.into_body(), MAX_ERROR).collect().await;
    let text = text.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned()).unwrap_or_default();
    let told =
        serde_json::from_str::<berth_wire::api::ErrorBody>(&text).map(|body| (body.error.message, body.error.reason));
    let (message, reason) = told.unwrap_or_else(|_| (text, String::new()));
    let status = match status {
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => Status::unimplemented(message),
        StatusCode::FORBIDDEN => Status::permission_denied(message),
        StatusCode::UNAUTHORIZED => Status::unauthenticated(message),
        status if status.is_client_error() => Status::invalid_argument(message),
        _ => Status::unavailable(message),
    };
    (status.into_http(), reason != "NoLeader")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_nobody_decided_is_repeated() {
        let json = |status: u16, reason: &str| {
            let error = serde_json::json!({"error": {"code": status, "reason": reason, "message": "m"}});
            Response::builder().status(status).body(Body::from(error.to_string())).expect("it is a response")
        };
        for (response, code, decided) in [
            (json(503, "NoLeader"), "14", false),
            (json(503, "Busy"), "14", true),
            (json(403, "Forbidden"), "7", true),
            (term_ended("over".to_owned()).into_http(), "14", false),
            (Status::unavailable("read only").into_http(), "14", true),
        ] {
            let (response, found) = answered(response).await;
            assert_eq!((response.headers()["grpc-status"].as_bytes(), found), (code.as_bytes(), decided));
            assert!(!response.headers().contains_key(TERM_ENDED));
        }
    }
}
