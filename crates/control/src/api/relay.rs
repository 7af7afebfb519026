//! A request that this node cannot answer goes to the one that leads, as it came: method, path, headers, body, streaming
//! both ways. Between nodes it travels over mutual TLS, under a path of its own.

use std::time::Duration;

use axum::{
    Json,
    body::Body,
    extract::Request,
    response::{IntoResponse, Response},
};
use berth_peer::{PeerBody, Peers, SendError};
use berth_spec::{Class, Epoch, WorkerId};
use berth_wire::api::{API_VERSION, ReadinessView, VersionView};
use http::{HeaderMap, HeaderName, StatusCode, Uri, Version, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::{ApiDependencies, admit, error::ApiError, router::Relay};
use crate::leadership::LeadershipView;

/// Prefix of relayed paths.
pub const RELAY: &str = "/relay";

/// Suggested pause before a retry when no leader is reachable: an election takes seconds.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Limit for the head of an answer. Longer than an apply of thousands of documents takes.
const HEAD_WITHIN: Duration = Duration::from_secs(60);

/// The same of a gRPC call, which may wait for a model to be loaded: longer than such calls wait.
const CALL_WITHIN: Duration = Duration::from_secs(660);

/// Headers of one connection, which the next one has of its own.
const HOP: [HeaderName; 7] = [
    header::CONNECTION,
    header::HOST,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("keep-alive"),
];

/// Reason why the leader has not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// Nothing reached it.
    #[error("cannot be reached ({0})")]
    NotSent(String),
    /// The connection broke: the leader may have received the request, and may have acted on it.
    #[error("was asked and did not answer ({0})")]
    Broken(String),
}

impl Relay {
    /// Leader other than this node, as far as it is known.
    #[must_use]
    pub fn leader(&self, view: &LeadershipView) -> Option<(WorkerId, Epoch)> {
        later(view, Some(self))
    }

    /// Sends a request to the leader at its own path, and gives the answer: both without the headers of one connection. `within` is
    /// the limit for the head of the answer.
    ///
    /// # Errors
    /// [`NoAnswer`], which says whether the leader may have acted on it.
    pub async fn ask(
        &self,
        leader: &WorkerId,
        mut request: http::Request<PeerBody>,
        within: Duration,
    ) -> Result<http::Response<PeerBody>, NoAnswer> {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        // HTTP/2 wants to know of whom it is asked.
        let uri = format!("https://{leader}{path}").parse::<Uri>();
        *request.uri_mut() = uri.map_err(|error| NoAnswer::NotSent(error.to_string()))?;
        *request.version_mut() = Version::HTTP_2;
        request.extensions_mut().clear();
        without_hop(request.headers_mut());
        let response = ask(&self.peers, leader, request, within).await?;
        let (mut parts, body) = response.into_parts();
        without_hop(&mut parts.headers);
        parts.version = Version::default();
        Ok(http::Response::from_parts(parts, body.map_err(Into::into).boxed_unsync()))
    }
}

/// Leader other than this node, by the election or by what this node's uplink has found.
pub(super) fn later(view: &LeadershipView, relay: Option<&Relay>) -> Option<(WorkerId, Epoch)> {
    let elected = match view {
        LeadershipView::Following { leader } => leader.clone(),
        LeadershipView::Leading { .. } => None,
    };
    let found = relay.and_then(|relay| relay.found.as_ref()?.borrow().clone());
    // The later one knows better.
    [elected, found].into_iter().flatten().max_by_key(|(_, epoch)| *epoch)
}

/// Sends a request over a line to the leader.
async fn ask(
    peers: &Peers,
    leader: &WorkerId,
    request: http::Request<PeerBody>,
    within: Duration,
) -> Result<http::Response<Incoming>, NoAnswer> {
    let not_sent = |why: &str| NoAnswer::NotSent(why.to_owned());
    let peer = peers.leader_peer(leader).ok_or_else(|| not_sent("the members do not know it"))?;
    // What it claims of itself was held against its certificate when the line was made.
    if !peer.member().roles.controller {
        return Err(not_sent("it is no controller"));
    }
    if !peer.health().is_there() {
        return Err(not_sent("the members have lost it"));
    }
    // Lines and dials end when the members lose it later: the error then says whether the request was sent.
    match tokio::time::timeout(within, peer.send(request)).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(error @ SendError::NotSent { .. })) => Err(not_sent(&error.to_string())),
        Ok(Err(error @ SendError::Broken { .. })) => Err(NoAnswer::Broken(error.to_string())),
        Err(_) => Err(NoAnswer::Broken("it does not answer".to_owned())),
    }
}

/// Sends a request to the leader, and gives its answer.
pub(super) async fn send(peers: &Peers, leader: &WorkerId, request: Request) -> Response {
    let writes = !request.method().is_safe();
    let Some(request) = onward(leader, request) else {
        return ApiError::new(Class::Invalid, "the path of the request cannot be relayed").into_response();
    };
    let kind = request.headers().get(header::CONTENT_TYPE).map(http::HeaderValue::as_bytes);
    let grpc = kind.is_some_and(|kind| kind.starts_with(b"application/grpc"));
    let within = if grpc { CALL_WITHIN } else { HEAD_WITHIN };
    let request = request.map(|body| body.map_err(Into::into).boxed_unsync());
    match ask(peers, leader, request, within).await {
        Ok(response) => answered(response),
        Err(NoAnswer::NotSent(why)) => unreachable(leader, &why).into_response(),
        Err(NoAnswer::Broken(why)) => broken(leader, &why, writes).into_response(),
    }
}

/// The same request, for the port of another node.
fn onward(leader: &WorkerId, request: Request) -> Option<Request> {
    let mut request = request;
    admit::name_sender(&mut request);
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    // HTTP/2 wants to know of whom it is asked.
    parts.uri = format!("https://{leader}{RELAY}{path}").parse::<Uri>().ok()?;
    parts.version = Version::HTTP_2;
    without_hop(&mut parts.headers);
    parts.extensions.clear();
    Some(Request::from_parts(parts, body))
}

/// The request as it came to the other node.
pub(super) fn stripped(mut request: Request) -> Result<Request, ApiError> {
    let path = request.uri().path_and_query().map(|path| path.as_str().to_owned()).unwrap_or_default();
    let path = path.strip_prefix(RELAY).and_then(|path| path.parse::<Uri>().ok());
    *request.uri_mut() =
        path.ok_or_else(|| ApiError::new(Class::Invalid, "the path of a relayed request is malformed"))?;
    Ok(request)
}

fn answered(response: http::Response<Incoming>) -> Response {
    let (mut parts, body) = response.into_parts();
    without_hop(&mut parts.headers);
    // The version is the client's connection's.
    parts.version = Version::default();
    Response::from_parts(parts, Body::new(body))
}

fn without_hop(headers: &mut HeaderMap) {
    let named = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let named = named.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse::<HeaderName>().ok());
    let named: Vec<HeaderName> = named.collect();
    for name in named.iter().chain(&HOP) {
        headers.remove(name);
    }
    // HTTP/2 allows no other value.
    if headers.get(header::TE).is_some_and(|value| value != "trailers") {
        headers.remove(header::TE);
    }
}

/// Answers requests about the node itself on a follower; `None` for all others.
pub(super) async fn local(path: &str, dependencies: &ApiDependencies, led: bool) -> Option<Response> {
    Some(match path {
        "/healthz" => "ok\n".into_response(),
        // What should be resident, the leader knows; this node is ready when it can ask it and knows the tokens.
        "/readyz" => {
            let ready = led && dependencies.access.is_told();
            let readiness = ReadinessView { ready, planned: led, expected: 0, available: 0, missing: Vec::new() };
            let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            (status, Json(readiness)).into_response()
        }
        "/version" => Json(VersionView { version: dependencies.version.clone(), api_version: API_VERSION.to_owned() })
            .into_response(),
        "/metrics" => {
            let source = std::sync::Arc::clone(&dependencies.metrics);
            match tokio::task::spawn_blocking(move || source()).await {
                Ok(text) => {
                    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                    ([(header::CONTENT_TYPE, content_type)], text).into_response()
                }
                Err(error) => {
                    tracing::error!(event = "metrics_failed", %error, "encoding the metrics failed");
                    ApiError::new(Class::Internal, "encoding the metrics failed: the log says why").into_response()
                }
            }
        }
        _ => return None,
    })
}

/// Response when no leader is known.
pub(super) fn nobody() -> Response {
    let message = "no controller decides at the moment, so nothing can be declared or looked up; models that are loaded go \
                   on answering. Try again in a second; if it lasts, check that etcd has a quorum and that a node with \
                   the role controller runs";
    ApiError::no_leader(RETRY_AFTER, message).into_response()
}

fn unreachable(leader: &WorkerId, why: &str) -> ApiError {
    let message =
        format!("{leader}, which decides, cannot be reached ({why}); nothing was done. Try again in a second");
    ApiError::no_leader(RETRY_AFTER, message)
}

fn broken(leader: &WorkerId, why: &str, writes: bool) -> ApiError {
    let done = if writes { "; it is not known whether it did what was asked: look before you try again" } else { "" };
    ApiError::no_leader(RETRY_AFTER, format!("{leader}, which decides, was asked and did not answer ({why}){done}"))
}
