//! The gateway's own cost: the same echo through the gateway and through a server that does nothing else, side by side
//! in one run. `cargo run --release -p berth-mesh --example gateway_bench [SECONDS]` prints one JSON object per line.
//!
//! Server and clients share one process and its cores, so figures compare with each other and with nothing else.

#![expect(clippy::disallowed_methods, clippy::print_stdout, reason = "a benchmark: its tasks end with it")]

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{Json, Router, routing::post};
use berth_mesh::{
    Config, GatewayLink,
    local::{Batching, LocalReplicas, Model, Statistics},
};
use berth_spec::{
    Datatype, DeploymentName, InferError, InferRequest, RevisionId, Route, RouteChange, Signature, Tensor, TensorSpec,
    WorkerId,
    deployment::Concurrency,
    routes::{OnMiss, Readiness, Version},
};
use berth_wire::oip::{
    ModelInferRequest, ModelInferResponse, grpc_inference_service_client::GrpcInferenceServiceClient,
    model_infer_request::InferInputTensor, model_infer_response::InferOutputTensor,
};
use futures::future::{BoxFuture, join_all};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;
use tonic::codegen::Service;

const BODY: &str = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[5.1,3.5,1.4,0.2]}]}"#;

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

/// A gateway with one warm model `iris` and `cold` registered ones.
async fn gateway(cold: usize) -> SocketAddr {
    let replicas = Arc::new(LocalReplicas::default());
    let name = DeploymentName::new("iris").expect("a name");
    let me = WorkerId::new("w1").expect("a name");
    let revision = RevisionId::of(name.clone(), b"1");
    let spec = TensorSpec { name: "x".to_owned(), datatype: Datatype::Fp32, shape: vec![-1, 4] };
    let signature = Signature { inputs: vec![spec.clone()], outputs: vec![spec], ..Signature::default() };
    replicas.insert(revision.clone(), Arc::new(Echo(Arc::new(signature))));
    let mut registry = prometheus_client::registry::Registry::default();
    let config = Config::new(([127, 0, 0, 1], 0).into());
    let (gateway, handle) = berth_mesh::build(config, me.clone(), replicas, None, &mut registry).expect("a port");
    let (routes, from) = mpsc::channel(4);
    let (to, mut events) = mpsc::channel(64);
    tokio::spawn(gateway.run(GatewayLink { routes: from, events: to }, CancellationToken::new()));
    tokio::spawn(async move { while events.recv().await.is_some() {} });
    let route = Route {
        deployment: name,
        split: vec![(revision.clone(), 1)],
        versions: vec![Version { name: "1".to_owned(), revision, ready: vec![me] }],
        on_miss: OnMiss::Park,
        on_demand: true,
        timeout: Duration::from_secs(10),
        concurrency: Concurrency { max: None, queue: 100 },
        limits: berth_spec::UseLimits::default(),
        idempotent: true,
        endpoint: None,
    };
    let bare = |i| Route {
        deployment: DeploymentName::new(&format!("model-{i:07}")).expect("a name"),
        split: Vec::new(),
        versions: Vec::new(),
        ..route.clone()
    };
    let set: Vec<_> = (0..cold).map(bare).chain([route.clone()]).collect();
    let names: Vec<_> = set.iter().map(|route| route.deployment.clone()).collect();
    // The list itself is freed again once it is applied.
    let before = resident() - (set.len() * size_of::<Route>()) as u64;
    let readiness = Readiness { planned: true, ..Readiness::default() };
    routes
        .send(RouteChange { seq: 1, base: None, set, unset: Vec::new(), aliases: Vec::new(), readiness })
        .await
        .expect("it listens");
    while !handle.ready() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    if cold > 0 {
        let each = resident().saturating_sub(before) / cold as u64;
        println!(r#"{{"bench":"registered","models":{cold},"bytes_each_upper_bound":{each},"names":{}}}"#, names.len());
    }
    std::mem::forget(routes);
    handle.local_addr().expect("it listens")
}

/// Bytes of resident memory.
fn resident() -> u64 {
    let statm = fs_err::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4_096
}

#[derive(Serialize, Deserialize)]
struct Input {
    name: String,
    datatype: String,
    shape: Vec<i64>,
    data: Vec<f32>,
}

#[derive(Deserialize)]
struct Inputs {
    inputs: Vec<Input>,
}

#[derive(Serialize)]
struct Outputs {
    model_name: &'static str,
    outputs: Vec<Input>,
}

async fn axum_echo() -> SocketAddr {
    let echo = |Json(body): Json<Inputs>| async { Json(Outputs { model_name: "iris", outputs: body.inputs }) };
    let app = Router::new().route("/v2/models/{model}/infer", post(echo));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        use axum::serve::ListenerExt as _;
        let listener = listener.tap_io(|stream| stream.set_nodelay(true).expect("a socket"));
        axum::serve(listener, app).await
    });
    address
}

/// The bare tonic server: a unary handler and nothing else.
#[derive(Clone)]
struct BareEcho;

impl tonic::server::NamedService for BareEcho {
    const NAME: &'static str = "inference.GRPCInferenceService";
}

impl tonic::server::UnaryService<ModelInferRequest> for BareEcho {
    type Response = ModelInferResponse;
    type Future = BoxFuture<'static, Result<tonic::Response<ModelInferResponse>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<ModelInferRequest>) -> Self::Future {
        Box::pin(async move {
            let request = request.into_inner();
            let output = |input: InferInputTensor| InferOutputTensor {
                name: input.name,
                datatype: input.datatype,
                shape: input.shape,
                ..Default::default()
            };
            Ok(tonic::Response::new(ModelInferResponse {
                model_name: request.model_name,
                outputs: request.inputs.into_iter().map(output).collect(),
                raw_output_contents: request.raw_input_contents,
                ..Default::default()
            }))
        })
    }
}

impl Service<http::Request<tonic::body::Body>> for BareEcho {
    type Response = http::Response<tonic::body::Body>;
    type Error = std::convert::Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(tonic_prost::ProstCodec::default());
            Ok(grpc.unary(BareEcho, request).await)
        })
    }
}

async fn tonic_echo() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let incoming = tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
    tokio::spawn(tonic::transport::Server::builder().add_service(BareEcho).serve_with_incoming(incoming));
    address
}

/// One closed-loop client: the same bytes again and again.
async fn rest_client(address: SocketAddr, until: Instant) -> Vec<u32> {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.set_nodelay(true).expect("a socket");
    let head = "POST /v2/models/iris/infer HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n";
    let request = format!("{head}Content-Length: {}\r\n\r\n{BODY}", BODY.len());
    let (mut took, mut buffer) = (Vec::with_capacity(1 << 16), vec![0; 4_096]);
    while Instant::now() < until {
        let started = Instant::now();
        stream.write_all(request.as_bytes()).await.expect("written");
        let read = stream.read(&mut buffer).await.expect("an answer");
        assert!(buffer[..read].starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&buffer[..read]));
        took.push(u32::try_from(started.elapsed().as_nanos()).unwrap_or(u32::MAX));
    }
    took
}

async fn grpc_client(mut client: GrpcInferenceServiceClient<tonic::transport::Channel>, until: Instant) -> Vec<u32> {
    let input =
        InferInputTensor { name: "x".to_owned(), datatype: "FP32".to_owned(), shape: vec![1, 4], ..Default::default() };
    let request = ModelInferRequest {
        model_name: "iris".to_owned(),
        inputs: vec![input],
        raw_input_contents: vec![vec![0; 16].into()],
        ..Default::default()
    };
    let mut took = Vec::with_capacity(1 << 16);
    while Instant::now() < until {
        let started = Instant::now();
        client.model_infer(request.clone()).await.expect("an answer");
        took.push(u32::try_from(started.elapsed().as_nanos()).unwrap_or(u32::MAX));
    }
    took
}

fn report(what: &str, protocol: &str, clients: usize, seconds: f64, took: Vec<Vec<u32>>) {
    let mut took: Vec<u32> = took.into_iter().flatten().collect();
    took.sort_unstable();
    let at = |q: f64| f64::from(took[((took.len() - 1) as f64 * q) as usize]) / 1e3;
    println!(
        r#"{{"bench":"{what}","protocol":"{protocol}","clients":{clients},"per_second":{:.0},"p50_us":{:.1},"p99_us":{:.1}}}"#,
        took.len() as f64 / seconds,
        at(0.5),
        at(0.99)
    );
}

fn main() {
    let seconds: f64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(3.0);
    let runtime = |threads| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(threads).enable_all().build().expect("a runtime")
    };
    let (servers, clients) = (runtime(1), runtime(1));
    let berth = servers.block_on(async { servers.spawn(gateway(100_000)).await.expect("it runs") });
    let axum = servers.block_on(async { servers.spawn(axum_echo()).await.expect("it runs") });
    let tonic = servers.block_on(async { servers.spawn(tonic_echo()).await.expect("it runs") });
    for round in 0..2 {
        for count in [1, 64] {
            for (what, address) in [("axum", axum), ("berth", berth)] {
                let until = Instant::now() + Duration::from_secs_f64(seconds);
                let tasks: Vec<_> = (0..count).map(|_| clients.spawn(rest_client(address, until))).collect();
                let took = clients.block_on(join_all(tasks)).into_iter().map(|t| t.expect("it runs")).collect();
                report(what, if round == 0 { "rest-warmup" } else { "rest" }, count, seconds, took);
            }
            for (what, address) in [("tonic", tonic), ("berth", berth)] {
                let until = Instant::now() + Duration::from_secs_f64(seconds);
                let connect = || GrpcInferenceServiceClient::connect(format!("http://{address}"));
                let channels = clients.block_on(join_all((0..count.min(4)).map(|_| connect())));
                let channels: Vec<_> = channels.into_iter().map(|channel| channel.expect("it listens")).collect();
                let client = |i: usize| clients.spawn(grpc_client(channels[i % channels.len()].clone(), until));
                let tasks: Vec<_> = (0..count).map(client).collect();
                let took = clients.block_on(join_all(tasks)).into_iter().map(|t| t.expect("it runs")).collect();
                report(what, if round == 0 { "grpc-warmup" } else { "grpc" }, count, seconds, took);
            }
        }
    }
    servers.shutdown_background();
}
