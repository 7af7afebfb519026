//! Addresses and bounds of the gateway. Nothing here is read from a file or the environment: whoever builds
//! the gateway hands it in.

use std::{
    fmt,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use berth_audit::AuditLog;
use berth_peer::{EventLoops, PeerBody, port::PortTls};
use berth_spec::UseLimits;
use berth_wire::access::Access;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, Request, Response};

use crate::{calls, controls::LogControl, data_plane::CurrentDataPlane, payload};

/// Makes the span of one request from its headers: the place to continue a trace that the caller began
/// (`traceparent`). `None` leaves the request without a span.
pub type SpanHook = Arc<dyn Fn(&HeaderMap) -> Option<tracing::Span> + Send + Sync>;

/// Writes the context of the current span into the headers of a request to another node (`traceparent`), so that the
/// trace goes on there.
pub type PropagateHook = Arc<dyn Fn(&mut HeaderMap) + Send + Sync>;

/// Answers requests to functions, at [`FUNCTIONS`] and `/namespaces/NAMESPACE/functions/`: functions are no models, and have neither routes nor parking.
pub type FunctionHook =
    Arc<dyn Fn(FunctionSender, http::Request<Bytes>) -> BoxFuture<'static, http::Response<PeerBody>> + Send + Sync>;

/// Sender of a request to a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FunctionSender {
    /// A client of this node.
    Client,
    /// Another node, which takes this one for the leader. Such a request is not forwarded again.
    Node,
}

/// Path below which functions of the default namespace answer; those of others do below the same path of their namespace.
pub const FUNCTIONS: &str = "/functions/";

/// Encodes the metrics of the process, as the control API tells them.
pub type MetricsHook = Arc<dyn Fn() -> String + Send + Sync>;

/// Answers gRPC calls below a path that are no inferences. Their requests are there whole: at most 1 MiB, and framed as they came.
pub type BesideHook = Arc<dyn Fn(Request<Bytes>) -> BoxFuture<'static, Response<PeerBody>> + Send + Sync>;

/// Services of others on the port of the gateway.
#[derive(Clone)]
pub struct BesideService {
    /// The prefixes of their paths.
    pub prefixes: &'static [&'static str],
    /// Answers their calls.
    pub hook: BesideHook,
}

/// The settings of a gateway.
#[derive(Clone)]
pub struct Config {
    /// The address for REST and gRPC; port 0 takes a free one, see [`Handle::local_addr`](crate::Handle::local_addr).
    /// `None`: it answers no clients, only what other nodes forward.
    pub http: Option<SocketAddr>,
    /// More addresses for the same.
    pub also_http: Vec<SocketAddr>,
    /// The version that the server metadata tells.
    pub version: String,
    /// The bounds of requests: how many at once, their size, their time.
    pub limits: Limits,
    /// Makes spans of requests; without one only `debug`-level spans are made.
    pub spans: Option<SpanHook>,
    /// Continues traces on other nodes; without one the caller's own headers go along as they came.
    pub propagate: Option<PropagateHook>,
    /// The threads that serve clients, and what other nodes forward; `None`: the runtime in which the gateway runs.
    pub loops: Option<EventLoops>,
    /// The file of the last routes, so that a gateway that starts while no controller answers serves by them. `None`:
    /// they are not kept.
    pub routes_file: Option<PathBuf>,
    /// Answers for functions; `None`: there are none. It may be set once the gateway has its port.
    pub functions: Arc<OnceLock<FunctionHook>>,
    /// The methods of models that may be called, and where they name the model; `None`: all, in their metadata.
    pub data_plane: Option<CurrentDataPlane>,
    /// Counts of calls by method, under ModelMesh's names; `None`: there are none.
    pub calls: Option<calls::Settings>,
    /// Processors that get copies of requests and answers; none by default.
    pub payloads: payload::Settings,
    /// Answers gRPC calls below these paths; `None`: they are calls of models.
    pub beside: Option<BesideService>,
    /// TLS of the port for clients; `None`: it has none. Nobody follows its files here.
    pub tls: Option<PortTls>,
    /// Tokens, and if one is needed.
    pub access: Arc<Access>,
    /// Limits of principals that have none of their own.
    pub principal_limits: UseLimits,
    /// The log that refusals and loads by clients are recorded in.
    pub audit: AuditLog,
    /// Further parts of the port for clients.
    pub features: Features,
}

/// Optional parts of the port for clients.
#[derive(Clone, Default)]
pub struct Features {
    /// Metrics at `/metrics`; `None`: they are on other ports only. They may come once the gateway has its port.
    pub metrics: Option<Arc<OnceLock<MetricsHook>>>,
    /// A model on demand that a request would load counts as ready.
    pub on_demand_ready: bool,
    /// Clients of a loopback address may name shared memory.
    pub shared_memory: bool,
    /// The log of the process; `None`: clients cannot see its settings.
    pub log: Option<LogControl>,
}

impl Config {
    /// Defaults for everything but the address.
    #[must_use]
    pub fn new(http: SocketAddr) -> Self {
        Self {
            http: Some(http),
            also_http: Vec::new(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            limits: Limits::default(),
            spans: None,
            propagate: None,
            loops: None,
            routes_file: None,
            functions: Arc::default(),
            data_plane: None,
            calls: None,
            payloads: payload::Settings::default(),
            beside: None,
            tls: None,
            access: Arc::default(),
            principal_limits: UseLimits::default(),
            audit: AuditLog::default(),
            features: Features::default(),
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("http", &self.http).field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// The bounds for one client, and for all of them together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once; further ones wait in the kernel's backlog. Each costs some 30 KiB at rest, and an open
    /// file.
    pub connections: usize,
    /// Connections of one address at once; further ones are closed.
    pub connections_per_address: usize,
    /// The longest until the first request of a connection has come, in whatever protocol.
    pub first_request: Duration,
    /// The longest that an HTTP/2 connection may rest between requests, whether it answers pings or not.
    pub idle: Duration,
    /// Inferences at once, parked ones included; more are shed with `queue_full`.
    pub requests: u32,
    /// Requests parked at once over all deployments (each deployment has its own bound in `concurrency.queue`).
    pub parked: u32,
    /// Bytes of a request body, before and after decompression. Triton's default.
    pub body: usize,
    /// Bytes of the bodies of all requests together, decompressed and decoded; beyond it requests are shed with
    /// `no_memory`.
    pub memory: usize,
    /// The longest pause between two pieces of a request body (streams may rest): long enough for a bad link.
    pub body_idle: Duration,
    /// The longest that a connection may take to send a request's headers, or rest between two requests: longer than
    /// the pools of most clients keep one.
    pub header_idle: Duration,
    /// The longest that a client may leave an answer unread before its connection is ended (HTTP/1.1, where the kernel can: Linux) or its
    /// stream (HTTP/2). One that leaves an end unread which HTTP/2 has already gets as long again before its connection is ended.
    pub unread: Duration,
    /// Bytes of a request's headers.
    pub headers: usize,
    /// Bytes of a path with its query.
    pub uri: usize,
    /// Streams at once on one HTTP/2 connection.
    pub streams: u32,
    /// The longest deadline that a caller may ask for; longer ones are cut to it.
    pub deadline: Duration,
    /// The longest that a load over the model repository protocol may take when the caller sets no deadline.
    pub load: Duration,
    /// Bytes of a request's body that are kept while it is sent to another node, so that it can be sent again
    /// elsewhere (streamed bodies; gRPC messages are whole anyway). A longer one is sent again only if nothing of it
    /// was sent.
    pub replay: usize,
    /// The same of all requests together; beyond it, bodies count as too long to be kept.
    pub replay_total: usize,
    /// Requests that may be sent a second time at one moment because a line broke, beyond the fifth of all requests
    /// and the ten a second that may be in the long run: as many as one gateway has in flight to a node that dies.
    pub retry_burst: u32,
    /// The time for which a gateway that is told to stop takes new requests still, saying that it is not ready: until
    /// load balancers have noticed. Zero: it refuses at once.
    pub lame_duck: Duration,
    /// The time that requests have to finish once the gateway is told to stop.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            connections_per_address: 8_192,
            first_request: Duration::from_secs(15),
            idle: Duration::from_secs(600),
            requests: 32_768,
            parked: 8_192,
            body: 64 << 20,
            memory: 1 << 30,
            body_idle: Duration::from_secs(15),
            header_idle: Duration::from_secs(75),
            unread: Duration::from_secs(60),
            headers: 64 << 10,
            uri: 8 << 10,
            streams: 1_024,
            deadline: Duration::from_secs(3_600),
            load: Duration::from_secs(600),
            replay: 1 << 20,
            replay_total: 256 << 20,
            retry_burst: 8_192,
            lame_duck: Duration::ZERO,
            drain: Duration::from_secs(30),
        }
    }
}
