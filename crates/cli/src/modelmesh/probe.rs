//! The probe port: `/ready`, `/live`, and `/prestop`, which answers once this instance has stopped serving.
//!
//! On a thread of its own, so that it answers while the instance waits for its runtime and while it drains.

use std::{
    convert::Infallible,
    io,
    net::{Ipv4Addr, TcpListener},
    sync::{Arc, OnceLock},
    thread,
    time::Duration,
};

use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{sync::Semaphore, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// Connections at once: probes are few.
const CONNECTIONS: usize = 64;

/// The longest that a head may take.
const HEAD: Duration = Duration::from_secs(5);

/// The state that probes ask for.
#[derive(Default)]
pub(super) struct Standing {
    /// There once the instance serves.
    pub(super) gateway: OnceLock<berth_mesh::Handle>,
    /// Cancelled once it has stopped.
    pub(super) stopped: CancellationToken,
}

impl Standing {
    fn ready(&self) -> bool {
        self.gateway.get().is_some_and(berth_mesh::Handle::ready)
    }
}

/// Takes the ports and answers until the process ends.
pub(super) fn start(ports: &[u16], standing: &Arc<Standing>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut listeners = Vec::new();
    for port in ports {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port))
            .map_err(|error| io::Error::new(error.kind(), format!("probe port {port}: {error}")))?;
        listener.set_nonblocking(true)?;
        listeners.push(listener);
    }
    let standing = Arc::clone(standing);
    let serve = async move {
        let all = listeners.into_iter().filter_map(|listener| tokio::net::TcpListener::from_std(listener).ok());
        futures::future::join_all(all.map(|listener| accept(listener, Arc::clone(&standing)))).await;
    };
    thread::Builder::new().name("modelmesh-probe".to_owned()).spawn(move || runtime.block_on(serve))?;
    Ok(())
}

async fn accept(listener: tokio::net::TcpListener, standing: Arc<Standing>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(_) => {
                // Out of file descriptors, which passes.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let standing = Arc::clone(&standing);
        let service = service_fn(move |request| answer(request, Arc::clone(&standing)));
        connections.spawn(async move {
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEAD);
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            drop(place);
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    standing: Arc<Standing>,
) -> Result<Response<Full<bytes::Bytes>>, Infallible> {
    let (status, text) = match request.uri().path() {
        "/live" => (StatusCode::OK, "live\n"),
        "/ready" if standing.ready() => (StatusCode::OK, "ready\n"),
        "/ready" => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
        "/prestop" => {
            standing.stopped.cancelled().await;
            (StatusCode::OK, "stopped\n")
        }
        _ => (StatusCode::NOT_FOUND, "use /ready, /live or /prestop\n"),
    };
    let mut response = Response::new(Full::new(bytes::Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    Ok(response)
}
