//! The operator's ports: who connects, and how long they may be silent; `GET /metrics`, `/livez`, `/readyz` by plain http.

use std::{convert::Infallible, future::Future, net::SocketAddr, time::Duration};

use berth_operator::metrics::OperatorMetrics;
use berth_peer::port::{Activity, Bounds, Patience, Port, PortTls, prepare};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpListener, task::JoinSet};

use crate::failure::Failure;

/// Connections: scrapers, the kubelet and API servers are few.
const BOUNDS: Bounds = Bounds { connections: 64, per_address: 32 };

/// Tolerated silence of a connection.
const SILENT: Patience = Patience { first: Duration::from_secs(10), idle: Duration::from_secs(120) };

/// Longest time that answers may stay unread: the API server, probes and Prometheus read at once.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(60);

/// Takes the port `address`, that `option` chooses, for `name`.
///
/// # Errors
/// [`Failure`]: somebody else has it.
pub(super) async fn bind(
    name: &'static str,
    option: &str,
    address: SocketAddr,
    tls: Option<PortTls>,
) -> Result<Port, Failure> {
    let listener = TcpListener::bind(address).await.map_err(|error| {
        Failure::Failed(format!("cannot serve {name} on {address}: {error}; {option} takes another address"))
    })?;
    Ok(Port::new(name, listener, BOUNDS).with_tls(tls))
}

/// Answers, until it is dropped.
pub(super) async fn serve<A>(port: Port, answer: impl Fn(Request<Incoming>) -> A + Clone + Send + 'static)
where
    A: Future<Output = Response<Full<Bytes>>> + Send,
{
    let mut tasks = JoinSet::new();
    let greeter = port.greeter();
    loop {
        let (stream, _, place) = port.accept().await;
        prepare(&stream, UNREAD_TIMEOUT);
        while tasks.try_join_next().is_some() {}
        let (greeter, answer) = (greeter.clone(), answer.clone());
        tasks.spawn(async move {
            let _place = place;
            let Some(greeted) = greeter.greet(stream, SILENT).await else { return };
            let activity = Activity::default();
            let silence = activity.clone().silence(greeted.patience);
            let service = service_fn(move |request| {
                activity.request();
                let answer = answer(request);
                async move { Ok::<_, Infallible>(answer.await) }
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(SILENT.idle);
            let connection = builder.serve_connection(TokioIo::new(greeted.stream), service);
            tokio::select! {
                // One that breaks off ends its connection and nothing else.
                _ = connection => {}
                // So does one that asks nothing: a later silence has a limit in hyper.
                _ = silence => {}
            }
        });
    }
}

/// A whole answer.
pub(super) fn response(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// The answer about the operator itself.
pub(super) fn management(request: &Request<Incoming>, metrics: &OperatorMetrics) -> Response<Full<Bytes>> {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let (status, body) = match request.uri().path() {
        "/metrics" if reads => (StatusCode::OK, metrics.text()),
        "/livez" if reads => (StatusCode::OK, "ok\n".to_owned()),
        "/readyz" if reads && metrics.is_ready() => (StatusCode::OK, "ok\n".to_owned()),
        "/readyz" if reads => (StatusCode::SERVICE_UNAVAILABLE, "the API server has not answered yet\n".to_owned()),
        _ => (StatusCode::NOT_FOUND, "use GET /metrics, /livez or /readyz\n".to_owned()),
    };
    response(status, "text/plain; version=0.0.4; charset=utf-8", body)
}
