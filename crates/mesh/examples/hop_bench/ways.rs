//! The processes that answer: a worker's node, a gateway before it, and a proxy before it that looks at nothing.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use berth_mesh::{
    Config, Fleet, GatewayLink, PeerService,
    local::{Batching, LocalReplicas, Model, Statistics},
};
use berth_peer::{EventLoops, Identity, PeerBody, PeerHandler, PeerListener, Peers};
use berth_spec::{
    Datatype, DeploymentName, InferError, InferRequest, RevisionId, Route, RouteChange, Signature, Tensor, TensorSpec,
    WorkerId,
    deployment::Concurrency,
    routes::{OnMiss, Readiness, Version},
};
use futures::future::BoxFuture;
use http::{Request, Response};
use hyper::{body::Incoming, client::conn::http2::SendRequest, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

/// Connections to the worker, as the gateway has them.
const LINES: usize = 4;

/// As the gateway's.
const WINDOW: u32 = 1 << 20;

struct Echo(Arc<Signature>);

impl Model for Echo {
    fn signature(&self) -> &Arc<Signature> {
        &self.0
    }
    fn platform(&self) -> &'static str {
        "echo_echo"
    }
    fn infer(&self, request: InferRequest, _: Instant) -> BoxFuture<'_, Result<Vec<Tensor>, InferError>> {
        Box::pin(std::future::ready(Ok(request.inputs)))
    }
    fn statistics(&self) -> Statistics {
        Statistics::default()
    }
    fn batching(&self) -> Batching {
        Batching::OFF
    }
}

struct Port(PeerService);

impl PeerHandler for Port {
    fn serve(
        self: Arc<Self>,
        _: &berth_peer::Caller,
        request: Request<Incoming>,
    ) -> BoxFuture<'static, Response<PeerBody>> {
        self.0.serve(request)
    }
}

pub(crate) fn worker(name: &str) -> WorkerId {
    WorkerId::new(name).expect("a name")
}

/// The node that has the model: the addresses of its gateway and of its peer port.
pub(crate) async fn holder(pki: &Path) -> (SocketAddr, SocketAddr) {
    let listener =
        PeerListener::bind(([127, 0, 0, 1], 0).into(), Identity::load(pki).expect("issued")).expect("a port");
    let peer = listener.local_addr().expect("bound");
    let loops = loops();
    let (http, forwarded) = gateway("b", None, loops.clone()).await;
    tokio::spawn(listener.on(loops).run(Arc::new(Port(forwarded)), CancellationToken::new()));
    (http, peer)
}

/// A node without the model.
pub(crate) async fn forwarder(pki: &Path, peer: SocketAddr) -> SocketAddr {
    let identity = Identity::load(pki).expect("issued");
    let fleet = Fleet { peers: Peers::fixed(identity, [(worker("b"), peer)]), members: None, region: None };
    gateway("a", Some(fleet), loops()).await.0
}

fn loops() -> EventLoops {
    EventLoops::start(None).expect("threads")
}

/// A gateway whose one model is on `b`, and what answers its peer port.
async fn gateway(me: &str, fleet: Option<Fleet>, loops: EventLoops) -> (SocketAddr, PeerService) {
    let replicas = Arc::new(LocalReplicas::default());
    let revision = RevisionId::of(DeploymentName::new("iris").expect("a name"), b"1");
    if me == "b" {
        let spec = TensorSpec { name: "x".to_owned(), datatype: Datatype::Fp32, shape: vec![-1, 4] };
        let signature = Signature { inputs: vec![spec.clone()], outputs: vec![spec], ..Signature::default() };
        replicas.insert(revision.clone(), Arc::new(Echo(Arc::new(signature))));
    }
    let mut registry = prometheus_client::registry::Registry::default();
    let config = Config { loops: Some(loops), ..Config::new(([127, 0, 0, 1], 0).into()) };
    let (gateway, handle) = berth_mesh::build(config, worker(me), replicas, fleet, &mut registry).expect("a port");
    let (routes, from) = mpsc::channel(4);
    let (to, mut events) = mpsc::channel(64);
    tokio::spawn(gateway.run(GatewayLink { routes: from, events: to }, CancellationToken::new()));
    tokio::spawn(async move { while events.recv().await.is_some() {} });
    let route = Route {
        deployment: DeploymentName::new("iris").expect("a name"),
        split: vec![(revision.clone(), 1)],
        versions: vec![Version { name: "1".to_owned(), revision, ready: vec![worker("b")] }],
        on_miss: OnMiss::Park,
        on_demand: true,
        timeout: Duration::from_secs(10),
        concurrency: Concurrency { max: None, queue: 1_000 },
        limits: berth_spec::UseLimits::default(),
        idempotent: true,
        endpoint: None,
    };
    let readiness = Readiness { planned: true, ..Readiness::default() };
    let change =
        RouteChange { seq: 1, base: None, set: vec![route], unset: Vec::new(), aliases: Vec::new(), readiness };
    routes.send(change).await.expect("it listens");
    while !handle.ready() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    std::mem::forget(routes);
    (handle.local_addr().expect("it listens"), handle.peer_service())
}

/// Passes requests on as they are to the worker's own gateway, without TLS: the least that a hop can cost with this HTTP
/// library.
pub(crate) async fn bare(behind: SocketAddr) -> SocketAddr {
    let mut lines = Vec::new();
    for _ in 0..LINES {
        let stream = TcpStream::connect(behind).await.expect("it listens");
        stream.set_nodelay(true).expect("a socket");
        let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(WINDOW).initial_connection_window_size(8 * WINDOW);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.expect("HTTP/2");
        tokio::spawn(connection);
        lines.push(sender);
    }
    let (lines, turn): (Arc<[SendRequest<Incoming>]>, _) = (lines.into(), Arc::new(AtomicUsize::new(0)));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            stream.set_nodelay(true).expect("a socket");
            let (lines, turn) = (Arc::clone(&lines), Arc::clone(&turn));
            let service = service_fn(move |mut request: Request<Incoming>| {
                let mut line = lines[turn.fetch_add(1, Ordering::Relaxed) % LINES].clone();
                async move {
                    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
                    *request.uri_mut() = format!("http://{behind}{path}").parse().expect("a URI");
                    *request.version_mut() = http::Version::HTTP_2;
                    request.headers_mut().remove(http::header::HOST);
                    let mut response = line.send_request(request).await?;
                    *response.version_mut() = http::Version::HTTP_11;
                    Ok::<_, hyper::Error>(response)
                }
            });
            tokio::spawn(async move {
                let mut builder = auto::Builder::new(TokioExecutor::new());
                builder.http2().initial_stream_window_size(WINDOW).initial_connection_window_size(8 * WINDOW);
                builder.serve_connection(TokioIo::new(stream), service).await.ok();
            });
        }
    });
    address
}
