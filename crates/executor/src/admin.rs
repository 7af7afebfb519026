//! The port for the pod's owner: probes, metrics, and the way to drain.
//!
//! `/drain` is asked by the kubelet, from an address that the pod does not know and without a secret. So it ends nothing, and is bounded
//! for each address: one that asks often leaves room for the kubelet, several can take all connections.

use std::{
    convert::Infallible,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use berth_peer::port::{AddressLimit, Bounds, Port, prepare};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    body::{Body, full},
    driver::Ports,
    jobs::JobId,
};

/// Bounds of the port: a kubelet and a few scrapers.
const BOUNDS: Bounds = Bounds { connections: 256, per_address: 64 };

/// Requests of one address that wait at once: a pod's hooks are few, and probes from the same address are answered beside them.
const WAITS: usize = 48;

const _: () = assert!(WAITS < BOUNDS.per_address, "a kubelet's hooks would keep out its probes");

/// Longest time that an answer may stay unread: probes and Prometheus read at once.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest wait for the head of a request: it is one packet.
const HEAD: Duration = Duration::from_secs(15);

/// Longest wait for answers when the process ends: a scrape that is under way is answered.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// The form of metrics.
const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves until `stop`.
pub(crate) async fn run(listener: TcpListener, ports: Arc<Ports>, stop: CancellationToken) {
    let port = Port::new("executor admin", listener, BOUNDS);
    let (connections, waits) = (TaskTracker::new(), AddressLimit::new(WAITS));
    while let Some((stream, from, place)) = stop.run_until_cancelled(port.accept()).await {
        prepare(&stream, UNREAD_TIMEOUT);
        let (ports, waits, stop) = (Arc::clone(&ports), Arc::clone(&waits), stop.clone());
        connections.spawn(async move {
            let _held = place;
            let service = service_fn(move |request: Request<Incoming>| {
                let (ports, waits) = (Arc::clone(&ports), Arc::clone(&waits));
                async move { Ok::<_, Infallible>(answer(&ports, &waits, &request, from).await) }
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
                    let _ = tokio::time::timeout(CLOSE_TIMEOUT, connection).await;
                }
            }
        });
    }
    connections.close();
    connections.wait().await;
}

/// True for a sender in the same pod, or on the same machine where there are no pods. Not for each address of loopback: an Istio sidecar
/// passes on what comes from elsewhere from 127.0.0.6 and ::6.
fn is_within(from: SocketAddr) -> bool {
    [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)].contains(&from.ip().to_canonical())
}

async fn answer(
    ports: &Ports,
    waits: &Arc<AddressLimit>,
    request: &Request<Incoming>,
    from: SocketAddr,
) -> Response<Body> {
    let (status, text) = if let Some(path) = request.uri().path().strip_prefix("/jobs/") {
        dead_letters(ports, request.method(), path, is_within(from)).await
    } else if request.method() == Method::GET && request.uri().path() == "/drain" {
        settled(ports, waits, from).await
    } else {
        of_process(ports, request)
    };
    let mut response = Response::new(full(text));
    let kind = if status == StatusCode::OK && request.uri().path() == "/metrics" { METRICS } else { "text/plain" };
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Waits until no request is in flight.
async fn settled(ports: &Ports, waits: &Arc<AddressLimit>, from: SocketAddr) -> (StatusCode, String) {
    let Some(_wait) = waits.place(from.ip()) else {
        let text = "too many requests of this address wait for the end of others: ask again\n";
        return (StatusCode::SERVICE_UNAVAILABLE, text.to_owned());
    };
    match ports.settle().await {
        true => (StatusCode::OK, "no request is in flight\n".to_owned()),
        false => (StatusCode::OK, "requests are in flight, and drain.timeout has passed\n".to_owned()),
    }
}

/// `GET PORT/dead` lists the dead letters of a port, `POST PORT/dead/ID` makes one a job again.
async fn dead_letters(ports: &Ports, method: &Method, path: &str, is_within: bool) -> (StatusCode, String) {
    if !is_within {
        // Who knows an id may fetch the answer, and whole networks reach this port.
        let text = "dead letters are told within the pod alone: kubectl port-forward leads there\n";
        return (StatusCode::FORBIDDEN, text.to_owned());
    }
    let mut parts = path.splitn(3, '/');
    let (port, what, id) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
    let Some(jobs) = ports.jobs(port).filter(|_| what == Some("dead")) else {
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

fn of_process(ports: &Ports, request: &Request<Incoming>) -> (StatusCode, String) {
    match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/live") => (StatusCode::OK, "alive\n".to_owned()),
        (&Method::GET | &Method::HEAD, "/ready") => match ports.unready() {
            None => (StatusCode::OK, "ready\n".to_owned()),
            Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
        },
        (&Method::GET | &Method::HEAD, "/metrics") => match ports.metrics().text() {
            Ok(text) => (StatusCode::OK, text),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("the metrics cannot be written: {error}\n")),
        },
        (&Method::GET | &Method::HEAD, path) => {
            (StatusCode::NOT_FOUND, format!("{path:?} is none of /live, /ready, /drain and /metrics\n"))
        }
        _ => (StatusCode::METHOD_NOT_ALLOWED, "this path answers GET\n".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_jobs_are_told_within_the_pod_alone() {
        for (from, within) in [
            ("127.0.0.1:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("127.0.0.6:1", false),
            ("[::ffff:127.0.0.6]:1", false),
            ("[::6]:1", false),
            ("10.1.2.3:1", false),
            ("[::ffff:10.1.2.3]:1", false),
            ("[fd00::7]:1", false),
        ] {
            assert_eq!(is_within(from.parse().expect("an address")), within, "{from}");
        }
    }
}
