//! `berth operator picker`: the endpoint picker of one pool, as a process. Follows its pods, and answers Gateways over HTTP/2.

use std::{net::SocketAddr, num::NonZeroU32, pin::pin, time::Duration};

use berth_operator::picker::{Members, PickerServer, Pool, follow};
use berth_peer::port::{Activity, Bounds, ClientStream, Counting, Inactivity, Paced, Patience, Port, prepare};
use berth_spec::WorkerId;
use bytes::Bytes;
use clap::Args;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{net::TcpListener, task::JoinSet, time};
use tokio_util::sync::CancellationToken;
use tonic::codegen::Service as _;

use super::{
    client,
    port::{self, response},
};
use crate::{commands::signal, failure::Failure, settings::TelemetrySettings, telemetry::Telemetry};

/// Connections: a Gateway has one for each of its threads.
const BOUNDS: Bounds = Bounds { connections: 1024, per_address: 1024 };

/// Requests of one connection at once. A Gateway opens another one for more.
const STREAMS: u32 = 4_096;

/// Tolerated silence of a connection. One that rests is ended in good order.
const SILENT: Patience = Patience { first: Duration::from_secs(10), idle: Duration::from_secs(600) };

/// Longest time that answers may stay unread: gateways and probes read at once.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval of pings, and the longest wait for an answer: the requests of a Gateway that is gone are in flight no more.
const PING: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(10));

/// Time in which a picker that ends still answers: Gateways need it to learn of the next one.
const LEAVE: Duration = Duration::from_secs(5);

/// Limit for the requests under way after that. The pod has 60 s in all.
const DRAIN: Duration = Duration::from_secs(50);

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Debug, Args)]
#[command(
    after_help = "The operator runs it for models with spec.inferencePool; docs/kubernetes.md tells more. It speaks
Envoy's ext_proc and the health checks of gRPC, without TLS. On SIGTERM or Ctrl-C it answers for 5 s
more, waits for requests under way and exits with 0.

Example:
  berth operator picker --namespace shop --selector berth.dev/model=iris --port 29001"
)]
pub(super) struct PickerArgs {
    /// Namespace of the pods
    #[arg(long, value_name = "NAME")]
    namespace: String,
    /// Labels of the pods, as kubectl -l takes them
    #[arg(long, value_name = "LABELS")]
    selector: String,
    /// Port at which the pods take requests
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Address for Gateways, by HTTP/2
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:9002")]
    listen: SocketAddr,
    /// Address for metrics and health, by http [default: none]
    #[arg(long, value_name = "ADDRESS")]
    metrics_listen: Option<SocketAddr>,
    /// Most requests of a pod at once. Where all pods have as many, a request is answered with 429 [default: any number]
    #[arg(long, value_name = "COUNT")]
    max_in_flight: Option<NonZeroU32>,
    /// Context of the kubeconfig [default: the current one; in a pod, its service account]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Log filter
    #[arg(long, value_name = "FILTER", env = "BERTH_LOG", default_value = "warn,berth=info,berth_operator=info")]
    log: String,
}

pub(super) async fn run(args: PickerArgs) -> Result<(), Failure> {
    let worker: WorkerId = "picker".parse().map_err(|e| Failure::doing("no name for the log", e))?;
    let json = !std::io::IsTerminal::is_terminal(&std::io::stderr());
    let telemetry = Telemetry::start(&TelemetrySettings { filter: args.log, json, otlp: None, worker })?;
    let listener = TcpListener::bind(args.listen).await.map_err(|error| {
        Failure::Failed(format!("cannot serve Gateways on {}: {error}; --listen takes another address", args.listen))
    })?;
    let metrics = match args.metrics_listen {
        Some(address) => Some(port::bind("metrics", "--metrics-listen", address, None).await?),
        None => None,
    };
    let client = client(args.context.as_deref()).await?;
    let members = Members { namespace: args.namespace, selector: args.selector, port: args.port };
    let (pool, stopping) = (Pool::new(args.max_in_flight), CancellationToken::new());

    let port = Port::new("picker", listener, BOUNDS);
    let mut serving = pin!(serve(port, PickerServer::new(pool.clone()), stopping.clone()));
    let mut beside = pin!(async {
        tokio::join!(follow(client, &members, &pool), answer(metrics, pool.clone()));
    });
    let told = async {
        signal::stopped().await;
        time::sleep(LEAVE).await;
    };
    tokio::select! {
        // Neither ends by itself.
        () = serving.as_mut() => return Ok(()),
        () = beside.as_mut() => return Ok(()),
        () = told => stopping.cancel(),
    }
    tokio::select! {
        () = serving => {}
        () = beside => {}
        () = time::sleep(DRAIN) => tracing::warn!(event = "requests_cut", "they did not end in time"),
    }
    telemetry.stop();
    Ok(())
}

/// Answers Gateways until `stopping`, and those that have asked before until their requests end.
async fn serve(port: Port, picker: PickerServer, stopping: CancellationToken) {
    let (mut tasks, greeter) = (JoinSet::new(), port.greeter());
    loop {
        let (stream, _, place) = tokio::select! {
            () = stopping.cancelled() => break,
            accepted = port.accept() => accepted,
        };
        prepare(&stream, UNREAD_TIMEOUT);
        while tasks.try_join_next().is_some() {}
        let (greeter, picker, stopping) = (greeter.clone(), picker.clone(), stopping.clone());
        tasks.spawn(async move {
            let _place = place;
            if let Some(greeted) = greeter.greet(stream, SILENT).await {
                connection(greeted.stream, greeted.patience, picker, stopping).await;
            }
        });
    }
    drop(port);
    while tasks.join_next().await.is_some() {}
}

async fn connection(stream: ClientStream, patience: Patience, picker: PickerServer, stopping: CancellationToken) {
    let activity = Activity::default();
    let mut builder = auto::Builder::new(Counting(activity.clone())).http2_only();
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .keep_alive_interval(PING.0)
        .keep_alive_timeout(PING.1);
    let mut silence = pin!(activity.clone().silence(patience));
    let mut unread = pin!(activity.clone().unread_still());
    let service = service_fn(move |request: Request<Incoming>| {
        activity.request();
        let (version, answered) = (request.version(), picker.clone().call(request));
        // Whoever leaves answers unread holds memory of all.
        async move { answered.await.map(|answer| answer.map(|body| Paced::new(body, version))) }
    });
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let (mut finishing, mut silent) = (false, false);
    loop {
        tokio::select! {
            // One that breaks off ends its connection and nothing else.
            ended = connection.as_mut() => break drop(ended),
            () = stopping.cancelled(), if !finishing => {
                finishing = true;
                connection.as_mut().graceful_shutdown();
            }
            inactivity = silence.as_mut(), if !silent => {
                silent = true;
                match inactivity {
                    Inactivity::NoRequest => break,
                    Inactivity::Idle | Inactivity::Unread => connection.as_mut().graceful_shutdown(),
                }
            }
            () = unread.as_mut(), if silent => break,
        }
    }
}

/// Answers about the picker itself, where there is a port for that.
async fn answer(port: Option<Port>, pool: Pool) {
    match port {
        Some(port) => port::serve(port, move |request| std::future::ready(about_itself(&request, &pool))).await,
        None => std::future::pending().await,
    }
}

fn about_itself(request: &Request<Incoming>, pool: &Pool) -> Response<Full<Bytes>> {
    let (status, body) = match request.uri().path() {
        "/metrics" => (StatusCode::OK, pool.metrics()),
        "/livez" => (StatusCode::OK, "ok\n".to_owned()),
        "/readyz" if pool.is_known() => (StatusCode::OK, "ok\n".to_owned()),
        "/readyz" => (StatusCode::SERVICE_UNAVAILABLE, "the pods of the pool are not known yet\n".to_owned()),
        _ => (StatusCode::NOT_FOUND, "use GET /metrics, /livez or /readyz\n".to_owned()),
    };
    response(status, TEXT, body)
}
