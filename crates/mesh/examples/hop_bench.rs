//! What a hop costs: the same requests to the worker's own gateway, through another node's gateway, and through a proxy
//! that does nothing but pass HTTP/2 on to the worker's peer port over the same kind of line.
//!
//! `cargo run --release -p berth-mesh --example hop_bench [SECONDS]` prints one JSON object per line. All share one process
//! and its cores (worker, proxy and client have a thread each), so figures compare with each other and with nothing else.

#![expect(clippy::disallowed_methods, clippy::print_stdout, reason = "a benchmark: its tasks end with it")]

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use berth_mesh::{
    Config, Fleet, Forwarded, GatewayLink,
    local::{Batching, LocalReplicas, Model, Statistics},
};
use berth_peer::{Identity, PeerBody, PeerHandler, PeerListener, Peers, pki::Authority, tls};
use berth_spec::{
    Datatype, DeploymentName, InferError, InferRequest, RevisionId, Route, RouteChange, Signature, Tensor, TensorSpec,
    WorkerId,
    deployment::Concurrency,
    routes::{OnMiss, Readiness, Version},
};
use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    body::Incoming,
    client::conn::http2::{SendRequest, handshake},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};
use tokio_util::sync::CancellationToken;

const REST: &str = "/v2/models/iris/infer";
const GRPC: &str = "/inference.GRPCInferenceService/ModelInfer";
const BODY: &str = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[5.1,3.5,1.4,0.2]}]}"#;
/// Lines between two nodes, as the gateway has them.
const LINES: usize = 4;

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

struct Port(Forwarded);

impl PeerHandler for Port {
    fn serve(self: Arc<Self>, _: &WorkerId, request: Request<Incoming>) -> BoxFuture<'static, Response<PeerBody>> {
        self.0.serve(request)
    }
}

fn worker(name: &str) -> WorkerId {
    WorkerId::new(name).expect("a name")
}

fn revision() -> RevisionId {
    RevisionId::of(DeploymentName::new("iris").expect("a name"), b"1")
}

/// A gateway whose one model is on `holder`, and what answers its peer port.
async fn gateway(me: &str, holder: &str, fleet: Option<Fleet>) -> (SocketAddr, Forwarded) {
    let replicas = Arc::new(LocalReplicas::default());
    if me == holder {
        let spec = TensorSpec { name: "x".to_owned(), datatype: Datatype::Fp32, shape: vec![-1, 4] };
        let signature = Signature { inputs: vec![spec.clone()], outputs: vec![spec] };
        replicas.insert(revision(), Arc::new(Echo(Arc::new(signature))));
    }
    let mut registry = prometheus_client::registry::Registry::default();
    let config = Config::new(([127, 0, 0, 1], 0).into());
    let (gateway, handle) = berth_mesh::build(config, worker(me), replicas, fleet, &mut registry).expect("a port");
    let (routes, from) = mpsc::channel(4);
    let (to, mut events) = mpsc::channel(64);
    tokio::spawn(gateway.run(GatewayLink { routes: from, events: to }, CancellationToken::new()));
    tokio::spawn(async move { while events.recv().await.is_some() {} });
    let route = Route {
        deployment: DeploymentName::new("iris").expect("a name"),
        split: vec![(revision(), 1)],
        versions: vec![Version { name: "1".to_owned(), revision: revision(), ready: vec![worker(holder)] }],
        on_miss: OnMiss::Park,
        on_demand: true,
        timeout: Duration::from_secs(10),
        concurrency: Concurrency { max: None, queue: 1_000 },
        idempotent: true,
        endpoint: None,
    };
    let readiness = Readiness { planned: true, ..Readiness::default() };
    let change = RouteChange { seq: 1, base: None, set: vec![route], unset: Vec::new(), readiness };
    routes.send(change).await.expect("it listens");
    while !handle.ready() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    std::mem::forget(routes);
    (handle.local_addr().expect("it listens"), handle.forwarded())
}

/// Passes requests on as they are, with the headers that the worker wants.
async fn bare_proxy(identity: Identity, to: SocketAddr) -> SocketAddr {
    let connector = TlsConnector::from(tls::client_config(&identity));
    let mut lines = Vec::new();
    for _ in 0..LINES {
        let stream = TcpStream::connect(to).await.expect("it listens");
        stream.set_nodelay(true).expect("a socket");
        let name = ServerName::try_from("b.node.berth").expect("a name");
        let stream = connector.connect(name, stream).await.expect("a handshake");
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
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
                let headers = request.headers_mut();
                headers.insert("berth-revision", HeaderValue::try_from(revision().to_string()).expect("text"));
                headers.insert("berth-version", HeaderValue::from_static("1"));
                async move { line.send_request(request).await }
            });
            let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

/// One connection of a client, HTTP/2 without TLS.
async fn connect(to: SocketAddr) -> SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(to).await.expect("it listens");
    stream.set_nodelay(true).expect("a socket");
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

/// One closed-loop caller.
async fn call(mut line: SendRequest<Full<Bytes>>, to: SocketAddr, path: &'static str, until: Instant) -> Vec<u32> {
    let (body, kind) = if path == REST {
        (Bytes::from_static(BODY.as_bytes()), "application/json")
    } else {
        (message(), "application/grpc")
    };
    let mut took = Vec::with_capacity(1 << 16);
    while Instant::now() < until {
        let started = Instant::now();
        let request = Request::post(format!("http://{to}{path}")).header("content-type", kind);
        let request = request.body(Full::new(body.clone())).expect("a request");
        let answer = line.send_request(request).await.expect("an answer");
        assert!(answer.status() == 200, "{answer:?}");
        answer.into_body().collect().await.expect("a body");
        took.push(u32::try_from(started.elapsed().as_nanos()).unwrap_or(u32::MAX));
    }
    took
}

/// One framed inference.
fn message() -> Bytes {
    let input = berth_wire::oip::model_infer_request::InferInputTensor {
        name: "x".to_owned(),
        datatype: "FP32".to_owned(),
        shape: vec![1, 4],
        ..Default::default()
    };
    let message = berth_wire::oip::ModelInferRequest {
        model_name: "iris".to_owned(),
        inputs: vec![input],
        raw_input_contents: vec![vec![0; 16].into()],
        ..Default::default()
    };
    let mut framed = vec![0];
    framed.extend_from_slice(&u32::try_from(message.encoded_len()).expect("small").to_be_bytes());
    message.encode(&mut framed).expect("room");
    framed.into()
}

/// Processor time of this process in microseconds: what is left to compare by where the machine is busy.
fn processor_us() -> u64 {
    let stat = fs_err::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(") ").next().unwrap_or_default();
    let ticks = after_name.split(' ').skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum::<u64>();
    ticks * 10_000
}

fn report((what, protocol, callers): (&str, &str, usize), seconds: f64, processor_us: u64, took: Vec<Vec<u32>>) {
    let mut took: Vec<u32> = took.into_iter().flatten().collect();
    took.sort_unstable();
    let at = |q: f64| f64::from(took[((took.len() - 1) as f64 * q) as usize]) / 1e3;
    println!(
        r#"{{"bench":"{what}","protocol":"{protocol}","callers":{callers},"per_second":{:.0},"p50_us":{:.1},"p99_us":{:.1},"processor_us_each":{:.1}}}"#,
        took.len() as f64 / seconds,
        at(0.5),
        at(0.99),
        processor_us as f64 / took.len() as f64
    );
}

fn main() {
    let seconds: f64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(3.0);
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = || runtime().expect("a runtime");
    let (worker_side, proxy_side, clients) = (runtime(), runtime(), runtime());
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::create(folder.path()).expect("a CA");
    let identity = |name: &str| Identity::load(authority.issue(&worker(name), &[]).expect("issued")).expect("loads");
    let (a, b) = (identity("a"), identity("b"));
    let listener = PeerListener::bind(([127, 0, 0, 1], 0).into(), b).expect("a port");
    let peer = listener.local_addr().expect("bound");
    let (direct, forwarded) =
        worker_side.block_on(async { worker_side.spawn(gateway("b", "b", None)).await.expect("it runs") });
    worker_side.spawn(listener.run(Arc::new(Port(forwarded)), CancellationToken::new()));
    let (hop, bare) = proxy_side.block_on(async {
        let fleet = Fleet { peers: Peers::fixed(a.clone(), [(worker("b"), peer)]), members: None, region: None };
        let hop = proxy_side.spawn(async move { gateway("a", "b", Some(fleet)).await.0 }).await.expect("it runs");
        (hop, proxy_side.spawn(bare_proxy(a, peer)).await.expect("it runs"))
    });
    for round in 0..3 {
        for (protocol, path) in [("rest", REST), ("grpc", GRPC)] {
            for callers in [1, 8, 64] {
                for (what, to) in [("direct", direct), ("bare proxy", bare), ("hop", hop)] {
                    let warm = if round == 0 { 0.3 } else { seconds };
                    let until = Instant::now() + Duration::from_secs_f64(warm);
                    let lines =
                        clients.block_on(async move { join_all((0..callers.min(4)).map(|_| connect(to))).await });
                    let caller = |n: usize| clients.spawn(call(lines[n % lines.len()].clone(), to, path, until));
                    let before = processor_us();
                    let tasks: Vec<_> = (0..callers).map(caller).collect();
                    let took = clients.block_on(join_all(tasks)).into_iter().map(|t| t.expect("it runs")).collect();
                    if round > 0 {
                        report((what, protocol, callers), seconds, processor_us() - before, took);
                    }
                }
            }
        }
    }
    clients.shutdown_background();
    proxy_side.shutdown_background();
    worker_side.shutdown_background();
}
