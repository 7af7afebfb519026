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
    jobs::JobId,
};

/// Bounds of the port: a kubelet and a few scrapers.
const BOUNDS: Bounds = Bounds { connections: 256, per_address: 64 };

/// Longest wait for the head of a request.
const HEAD: Duration = Duration::from_secs(15);

/// Longest wait for answers when the process ends.
const LAST: Duration = Duration::from_millis(500);

/// The form of metrics.
const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves until `stop`.
pub(crate) async fn run(listener: TcpListener, fleet: Arc<Fleet>, stop: CancellationToken) {
    let port = Port::new("executor admin", listener, BOUNDS);
    let connections = TaskTracker::new();
    while let Some((stream, _, place)) = stop.run_until_cancelled(port.accept()).await {
        let (fleet, stop) = (Arc::clone(&fleet), stop.clone());
        connections.spawn(async move {
            let _held = place;
            let service = service_fn(move |request: Request<Incoming>| {
                let fleet = Arc::clone(&fleet);
                async move { Ok::<_, Infallible>(answer(&fleet, &request).await) }
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEAD);
            // One that breaks off ends its connection and nothing else.
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            let mut connection = std::pin::pin!(connection);
            tokio::select! {
                ended = connection.as_mut() => drop(ended),
                () = stop.cancelled() => {
                    // The one who waits for /drain is told.
                    connection.as_mut().graceful_shutdown();
                    let _ = tokio::time::timeout(LAST, connection).await;
                }
            }
        });
    }
    connections.close();
    connections.wait().await;
}

async fn answer(fleet: &Fleet, request: &Request<Incoming>) -> Response<Body> {
    let (status, text) = if let Some(path) = request.uri().path().strip_prefix("/jobs/") {
        dead_letters(fleet, request.method(), path).await
    } else if request.method() == Method::GET && request.uri().path() == "/drain" {
        match fleet.settle().await {
            true => (StatusCode::OK, "no request is in flight\n".to_owned()),
            false => (StatusCode::OK, "requests are in flight, and drain.timeout has passed\n".to_owned()),
        }
    } else {
        of_process(fleet, request)
    };
    let mut response = Response::new(full(text));
    let kind = if status == StatusCode::OK && request.uri().path() == "/metrics" { METRICS } else { "text/plain" };
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// `GET PORT/dead` lists the dead letters of a port, `POST PORT/dead/ID` makes one a job again.
async fn dead_letters(fleet: &Fleet, method: &Method, path: &str) -> (StatusCode, String) {
    let mut parts = path.splitn(3, '/');
    let (port, what, id) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
    let Some(jobs) = fleet.jobs(port).filter(|_| what == Some("dead")) else {
        return (StatusCode::NOT_FOUND, format!("{path:?} is no PORT/dead of a port with async\n"));
    };
    let answered = match (method, id) {
        (&Method::GET, None) => {
            jobs.dead().await.map(|ids| (StatusCode::OK, ids.iter().map(|id| format!("{id}\n")).collect()))
        }
        (&Method::POST, Some(id)) => match JobId::parse(id) {
            None => Ok(false),
            Some(id) => jobs.revive(&id).await,
        }
        .map(|revived| {
            let text = if revived { "queued again" } else { "no dead letter" };
            (if revived { StatusCode::OK } else { StatusCode::NOT_FOUND }, format!("{id}: {text}\n"))
        }),
        _ => return (StatusCode::METHOD_NOT_ALLOWED, "GET /jobs/PORT/dead, POST /jobs/PORT/dead/ID\n".to_owned()),
    };
    answered.unwrap_or_else(|error| (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")))
}

fn of_process(fleet: &Fleet, request: &Request<Incoming>) -> (StatusCode, String) {
    match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/live") => (StatusCode::OK, "alive\n".to_owned()),
        (&Method::GET | &Method::HEAD, "/ready") => match fleet.unready() {
            None => (StatusCode::OK, "ready\n".to_owned()),
            Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
        },
        (&Method::GET | &Method::HEAD, "/metrics") => match fleet.metrics().text() {
            Ok(text) => (StatusCode::OK, text),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("the metrics cannot be written: {error}\n")),
        },
        (&Method::GET | &Method::HEAD, path) => {
            (StatusCode::NOT_FOUND, format!("{path:?} is none of /live, /ready, /drain and /metrics\n"))
        }
        _ => (StatusCode::METHOD_NOT_ALLOWED, "this path answers GET\n".to_owned()),
    }
}
