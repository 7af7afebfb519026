//! The port for the pod's owner: probes, metrics, and the way to drain.

use std::{convert::Infallible, sync::Arc, time::Duration};

use berth_peer::port::{Bounds, Port};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    body::{Body, full},
    driver::Fleet,
};

/// Bounds of the port: a kubelet and a few scrapers.
const BOUNDS: Bounds = Bounds { connections: 256, per_address: 64 };

/// Longest wait for the head of a request.
const HEAD: Duration = Duration::from_secs(15);

/// Serves until `stop`.
pub(crate) async fn run(listener: TcpListener, fleet: Arc<Fleet>, stop: CancellationToken) {
    let port = Port::new("executor admin", listener, BOUNDS);
    let connections = TaskTracker::new();
    while let Some((stream, _, place)) = stop.run_until_cancelled(port.accept()).await {
        let (fleet, stop) = (Arc::clone(&fleet), stop.clone());
        connections.spawn(async move {
            let _held = place;
            let service = service_fn(move |request: Request<Incoming>| {
                std::future::ready(Ok::<_, Infallible>(answer(&fleet, &request)))
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEAD);
            // One that breaks off ends its connection and nothing else.
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                ended = connection => drop(ended),
                () = stop.cancelled() => {}
            }
        });
    }
    connections.close();
    connections.wait().await;
}

fn answer(fleet: &Fleet, request: &Request<Incoming>) -> Response<Body> {
    let (status, text) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/live") => (StatusCode::OK, "alive\n".to_owned()),
        (&Method::GET | &Method::HEAD, "/ready") => match fleet.unready() {
            None => (StatusCode::OK, "ready\n".to_owned()),
            Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
        },
        (&Method::GET | &Method::HEAD, "/metrics") => match fleet.metrics().text() {
            Ok(text) => return metrics(text),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("the metrics cannot be written: {error}\n")),
        },
        (&Method::GET | &Method::HEAD, path) => {
            (StatusCode::NOT_FOUND, format!("{path:?} is none of /live, /ready and /metrics\n"))
        }
        _ => (StatusCode::METHOD_NOT_ALLOWED, "this port answers GET\n".to_owned()),
    };
    let mut response = Response::new(full(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

fn metrics(text: String) -> Response<Body> {
    let mut response = Response::new(full(text));
    let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
