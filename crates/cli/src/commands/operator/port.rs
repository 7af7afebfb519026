//! The operator's port: `GET /metrics`, `/livez`, `/readyz`. Plain http, and nothing that needs a secret.

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use berth_operator::vitals::Vitals;
use berth_peer::port::{Bounds, Patience, Port};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpListener, task::JoinSet};

use crate::failure::Failure;

/// Connections: scrapers and the kubelet are few.
const BOUNDS: Bounds = Bounds { connections: 64, per_address: 32 };

/// Tolerated silence of a connection.
const SILENT: Patience = Patience { first: Duration::from_secs(10), idle: Duration::from_secs(120) };

/// A port that was taken.
pub(super) struct VitalsPort {
    port: Port,
    vitals: Vitals,
}

/// Takes the port.
///
/// # Errors
/// [`Failure`]: somebody else has it.
pub(super) async fn bind(address: SocketAddr, vitals: Vitals) -> Result<VitalsPort, Failure> {
    let listener = TcpListener::bind(address).await.map_err(|error| {
        Failure::Failed(format!("cannot serve metrics on {address}: {error}; --listen takes another address"))
    })?;
    Ok(VitalsPort { port: Port::new("operator", listener, BOUNDS), vitals })
}

impl VitalsPort {
    /// Answers, until it is dropped.
    pub(super) async fn answer(self) {
        let mut tasks = JoinSet::new();
        let greeter = self.port.greeter();
        loop {
            let (stream, _, place) = self.port.accept().await;
            while tasks.try_join_next().is_some() {}
            let (greeter, vitals) = (greeter.clone(), self.vitals.clone());
            tasks.spawn(async move {
                let _place = place;
                let Some(greeted) = greeter.greet(stream, SILENT).await else { return };
                let service = service_fn(move |request| {
                    let answer = answer(&request, &vitals);
                    async move { Ok::<_, Infallible>(answer) }
                });
                let mut builder = http1::Builder::new();
                builder.timer(TokioTimer::new()).header_read_timeout(SILENT.idle);
                let _ = builder.serve_connection(TokioIo::new(greeted.stream), service).await;
            });
        }
    }
}

fn answer(request: &Request<Incoming>, vitals: &Vitals) -> Response<Full<Bytes>> {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let (status, body) = match request.uri().path() {
        "/metrics" if reads => (StatusCode::OK, vitals.text()),
        "/livez" if reads => (StatusCode::OK, "ok\n".to_owned()),
        "/readyz" if reads && vitals.is_ready() => (StatusCode::OK, "ok\n".to_owned()),
        "/readyz" if reads => (StatusCode::SERVICE_UNAVAILABLE, "the API server has not answered yet\n".to_owned()),
        _ => (StatusCode::NOT_FOUND, "use GET /metrics, /livez or /readyz\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
