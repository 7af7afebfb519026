//! Calls while leadership changes. ModelMesh has no leader, so its callers expect no pause: a call waits for the next one.
//!
//! ```text
//! call ──▶ leader ── answer ─────────────────────────────────────▶ caller
//!   ▲        └── nobody leads, or the term ended ── in time ──┐
//!   └──────────────────────── a pause ◀───────────────────────┴── late ──▶ UNAVAILABLE
//! ```
//! Every call can be repeated: what is so already is no conflict. The state of a model that answers needs no leader: this node tells it
//! (`local`), as ModelMesh told states while its store was away. Calls for a state end before their caller gives up, also while a leader that
//! died is still asked; the others wait for its answer, since it may have acted.

use std::time::Duration;

use axum::{
    BoxError,
    body::{Body, Bytes},
};
use berth_control::api::ApiRouter;
use berth_wire::grpc_timeout;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header, request::Parts};
use http_body_util::{BodyExt as _, Full, Limited};
use tokio::time::{Instant, timeout_at};
use tonic::{Status, metadata::MetadataMap};

use crate::{gateway::Answering, local, whole};

/// Time for which a call is repeated. A leader that died is followed within its lease, which is shorter.
const RETRY_TIMEOUT: Duration = Duration::from_secs(20);

/// Pause before a call is repeated; short compared with an election.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Calls that only tell a state.
const STATUS_CALLS: [&str; 2] = ["/mmesh.ModelMesh/getModelStatus", "/mmesh.ModelMesh/getVModelStatus"];

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
    repeated(parts, body, answering, move |request| api.answer(request)).await
}

/// Asks for an answer until somebody has decided, or it is late.
async fn repeated<F>(
    parts: Parts,
    body: Bytes,
    answering: &Answering,
    answer: impl Fn(Request<Body>) -> F,
) -> Response<Body>
where
    F: Future<Output = Response<Body>>,
{
    let is_status = STATUS_CALLS.contains(&parts.uri.path());
    let within = if is_status { status_within(&parts.headers) } else { RETRY_TIMEOUT };
    let until = Instant::now() + within;
    loop {
        let request = Request::from_parts(parts.clone(), Body::new(Full::new(body.clone())));
        let attempt = Box::pin(async { answered(answer(request).await).await });
        let (response, decided) = if is_status {
            timeout_at(until, attempt).await.unwrap_or_else(|_| (unanswered(within).into_http(), false))
        } else {
            attempt.await
        };
        if decided {
            return response;
        }
        if let Some(told) = local::status(&parts, &body, answering) {
            return told;
        }
        if Instant::now() + RETRY_PAUSE > until {
            return response;
        }
        tracing::debug!(event = "call_repeated", path = parts.uri.path(), "nobody leads");
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// Time for which a call for a state waits: the caller's own, less a tenth so that the answer is there in time, and no longer than others.
fn status_within(headers: &HeaderMap) -> Duration {
    let said = grpc_timeout::of(headers).ok().flatten();
    said.map_or(RETRY_TIMEOUT, |said| RETRY_TIMEOUT.min(said - said / 10))
}

/// Status of a call for a state that was not answered in time.
fn unanswered(within: Duration) -> Status {
    Status::unavailable(format!(
        "no controller has answered within {within:?}, so the state is not known: try again; if it lasts, check that a node with the role \
         controller runs"
    ))
}

/// UNAVAILABLE for a call whose term ended before it decided, marked for whoever may repeat the call.
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
    use std::collections::BTreeSet;

    use berth_spec::{DeploymentName, WorkerId};

    use super::*;

    /// States were told 20 to 30 s after they were asked for, when their callers had given up: the leader that had died was still asked.
    #[tokio::test(start_paused = true)]
    async fn a_call_for_a_state_ends_while_nobody_answers_and_other_calls_wait() {
        for (method, ends) in [("getModelStatus", true), ("getVModelStatus", true), ("setVModel", false)] {
            let request = Request::post(format!("/mmesh.ModelMesh/{method}")).body(()).expect("a request");
            let nobody = |_: Request<Body>| std::future::pending::<Response<Body>>();
            let nowhere = |_: &DeploymentName| BTreeSet::<WorkerId>::new();
            let told = repeated(request.into_parts().0, Bytes::new(), &nowhere, nobody);
            let told = tokio::time::timeout(Duration::from_secs(600), told).await.ok();
            let code = told.map(|response| response.headers()["grpc-status"].clone());
            assert_eq!(code, ends.then(|| HeaderValue::from_static("14")), "{method}");
        }
    }

    #[test]
    fn a_call_for_a_state_waits_for_less_than_its_caller_does() {
        for (said, millis) in
            [("5S", 4_500), ("300m", 270), ("1H", 20_000), ("", 20_000), ("5 s", 20_000), ("S", 20_000)]
        {
            let said = (HeaderName::from_static("grpc-timeout"), HeaderValue::from_static(said));
            let headers: HeaderMap = [said.clone()].into_iter().collect();
            assert_eq!(status_within(&headers), Duration::from_millis(millis), "{said:?}");
        }
        assert_eq!(status_within(&HeaderMap::new()), RETRY_TIMEOUT);
    }

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
