//! The head of a forwarded request: as it came, without what concerns one connection or names a client, and with what the
//! endpoint must know.
//!
//! | header | says |
//! |---|---|
//! | `berth-revision` | which replica is to answer: the endpoint asks no routes |
//! | `berth-version` | the version's name, for the answer |
//! | `berth-model-name` | the name that the client asked for, where that is an alias, percent-coded |
//! | `berth-versions` | every version that clients can reach, one header each: only where a model is described |
//! | `berth-deadline-ms` | how long the answer is waited for |
//! | `berth-hop` | that it was forwarded: it is not forwarded again |
//! | `berth-stream` | the answer may be a stream, and in an answer, that it is one: it is passed on as it comes |
//! | `berth-path` | the path that the client asked for, where a model answers by itself |
//! | `berth-not-run` | in an answer with status 503: nothing was run, send it elsewhere; and why |

use berth_peer::PeerBody;
use berth_spec::id::percent_encode;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header, request::Parts};
use tokio::time::Instant;

use crate::config::PropagateHook;

pub(crate) const REVISION: HeaderName = HeaderName::from_static("berth-revision");
pub(crate) const VERSION: HeaderName = HeaderName::from_static("berth-version");
pub(crate) const VERSIONS: HeaderName = HeaderName::from_static("berth-versions");
/// The name of the model in the answer, where it is not the deployment's.
pub(crate) const MODEL_NAME: HeaderName = HeaderName::from_static("berth-model-name");
pub(crate) const DEADLINE: HeaderName = HeaderName::from_static("berth-deadline-ms");
pub(crate) const HOP: HeaderName = HeaderName::from_static("berth-hop");
/// Marks a request whose answer may be a stream of its own, and an answer that is one.
pub(crate) const STREAM: HeaderName = HeaderName::from_static("berth-stream");
/// The path of a request that a model answers by itself.
pub(crate) const PATH: HeaderName = HeaderName::from_static("berth-path");
pub(crate) const NOT_RUN: HeaderName = HeaderName::from_static("berth-not-run");
/// The model's process ended under the request: it may have been run, and the answer will not come.
pub(crate) const LOST: HeaderName = HeaderName::from_static("berth-lost");

/// Of one connection only (RFC 9110 §7.6.1), the client's identity (the other node trusts this one, and needs no
/// secrets), and what only nodes say to each other.
static STRIPPED: [HeaderName; 22] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
    header::HOST,
    header::EXPECT,
    header::AUTHORIZATION,
    header::PROXY_AUTHORIZATION,
    header::COOKIE,
    REVISION,
    VERSION,
    VERSIONS,
    MODEL_NAME,
    DEADLINE,
    HOP,
    NOT_RUN,
    LOST,
    STREAM,
    PATH,
];

/// The path between nodes of requests that a model answers by itself, whatever their own path is.
pub(crate) const EXCHANGE: &str = "/v2/exchange";

/// Headers that an endpoint is told, and room for a trace.
const ADDED_HEADERS: usize = 9;

/// A head that can be sent more than once.
#[derive(Clone)]
pub(crate) struct Head {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
}

impl Head {
    /// The head of a client's request, without headers that are for one connection or that only nodes set.
    pub(crate) fn of(parts: &Parts, propagate: Option<&PropagateHook>) -> Self {
        Self::new(parts.method.clone(), parts.uri.clone(), &parts.headers, propagate)
    }

    /// Of one message of its own, uncompressed, to this gRPC method; `headers` are those of the call that it came with.
    pub(crate) fn grpc(method: &'static str, headers: &HeaderMap, propagate: Option<&PropagateHook>) -> Self {
        let mut head = Self::new(Method::POST, Uri::from_static(method), headers, propagate);
        for name in [header::CONTENT_LENGTH.as_str(), "grpc-encoding", "grpc-accept-encoding", "grpc-timeout"] {
            head.headers.remove(name);
        }
        head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        head
    }

    fn new(method: Method, uri: Uri, came: &HeaderMap, propagate: Option<&PropagateHook>) -> Self {
        let named: Vec<HeaderName> = came.get_all(header::CONNECTION).iter().flat_map(tokens).collect();
        let mut headers = HeaderMap::with_capacity(came.len() + ADDED_HEADERS);
        for (name, value) in came {
            if !STRIPPED.contains(name) && !named.contains(name) {
                headers.append(name.clone(), value.clone());
            }
        }
        headers.insert(HOP, HeaderValue::from_static("1"));
        if let Some(propagate) = propagate {
            propagate(&mut headers);
        }
        Self { method, uri, headers }
    }

    /// The same request for something else on the endpoint.
    pub(crate) fn at(mut self, uri: Uri) -> Self {
        self.uri = uri;
        self
    }

    /// Marks a request whose answer may be a stream.
    pub(crate) fn streamed(mut self) -> Self {
        self.headers.insert(STREAM, HeaderValue::from_static("1"));
        self
    }

    /// The same request for a model's own answer, at the path that nodes use for all such requests.
    pub(crate) fn exchanged(mut self) -> Self {
        let path = self.uri.path_and_query().and_then(|path| HeaderValue::from_str(path.as_str()).ok());
        if let Some(path) = path {
            self.headers.insert(PATH, path);
        }
        self.uri = Uri::from_static(EXCHANGE);
        self.streamed()
    }

    /// As a GET: what was asked with HEAD gets the same answer, and hyper leaves its body out.
    pub(crate) fn into_get(mut self) -> Self {
        self.method = Method::GET;
        self
    }

    /// Says which name the client asked for.
    pub(crate) fn named(&mut self, name: &str) {
        if let Ok(name) = HeaderValue::from_str(&percent_encode(name)) {
            self.headers.insert(MODEL_NAME, name);
        }
    }

    /// Says which versions clients can reach.
    pub(crate) fn versions<'a>(&mut self, versions: impl Iterator<Item = &'a str>) {
        for version in versions.filter_map(|version| HeaderValue::from_bytes(version.as_bytes()).ok()) {
            self.headers.append(VERSIONS, version);
        }
    }

    /// The request for one endpoint.
    pub(crate) fn request(
        &self,
        revision: &HeaderValue,
        version: &HeaderValue,
        deadline: Instant,
        body: PeerBody,
    ) -> Request<PeerBody> {
        let mut request = Request::new(body);
        request.method_mut().clone_from(&self.method);
        request.uri_mut().clone_from(&self.uri);
        let mut headers = self.headers.clone();
        headers.insert(REVISION, revision.clone());
        headers.insert(VERSION, version.clone());
        headers.insert(DEADLINE, millis_left(deadline).into());
        *request.headers_mut() = headers;
        request
    }
}

/// Rounded up: the endpoint must not give up before this end does.
fn millis_left(deadline: Instant) -> u64 {
    let left = deadline.saturating_duration_since(Instant::now());
    u64::try_from(left.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}

/// The headers that a `Connection` header names.
fn tokens(value: &HeaderValue) -> impl Iterator<Item = HeaderName> {
    let names = value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    names.filter_map(|name| HeaderName::from_bytes(name).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_of_the_connection_or_the_client_stays_here() {
        let mut request = Request::post("/v2/models/iris/infer?x=1");
        for (name, value) in [
            ("connection", "keep-alive, x-mine"),
            ("x-mine", "1"),
            ("host", "example"),
            ("authorization", "Bearer secret"),
            ("cookie", "secret"),
            ("te", "trailers"),
            ("berth-revision", "other@000000000000"),
            ("berth-not-run", "full"),
            ("content-type", "application/json"),
            ("inference-header-content-length", "70"),
            ("traceparent", "00-1-2-01"),
        ] {
            request = request.header(name, value);
        }
        let (parts, ()) = request.body(()).expect("a request").into_parts();
        let revision = HeaderValue::from_static("iris@0123456789ab");
        let version = HeaderValue::from_static("1");
        let deadline = Instant::now() + std::time::Duration::from_secs(5);
        let sent = Head::of(&parts, None).request(&revision, &version, deadline, berth_peer::full("x"));
        let mut names: Vec<&str> = sent.headers().keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        let expected = [
            "berth-deadline-ms",
            "berth-hop",
            "berth-revision",
            "berth-version",
            "content-type",
            "inference-header-content-length",
            "traceparent",
        ];
        assert_eq!(names, expected);
        assert_eq!(sent.headers()[REVISION], revision);
        assert_eq!(sent.uri().path_and_query().expect("a path").as_str(), "/v2/models/iris/infer?x=1");
    }
}
