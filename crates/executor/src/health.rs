//! The health of the model server: asked now and then, on connections of its own.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use http::{Request, StatusCode, Version, header};
use http_body_util::{BodyExt as _, Limited};
use tokio::time::{sleep, timeout};

use crate::{
    body::full,
    config::{HealthCheck, PortConfig},
    proxy::{Proxy, Settings},
    upstream::{Upstream, UpstreamError},
};

/// Pause between two questions to a server that does not answer yet: a pod is ready soon after its server.
const STARTUP_INTERVAL: Duration = Duration::from_millis(500);

/// Largest answer of gRPC that is read.
const MAX_ANSWER_BYTES: usize = 4 << 10;

/// Asks the server of a port for as long as it is polled.
pub(crate) async fn follow(proxy: Arc<Proxy>) {
    let mut failures = 0;
    loop {
        let settings = proxy.settings();
        let PortConfig { health, .. } = &settings.config;
        let asked = timeout(health.timeout, ask(&settings)).await;
        let answer = asked.unwrap_or_else(|_| Err(format!("no answer within {} s", health.timeout.as_secs_f64())));
        let was = proxy.is_healthy.load(Relaxed);
        failures = if answer.is_ok() { 0 } else { failures + 1 };
        let is = answer.is_ok() || (was && failures < health.failures);
        if was != is {
            proxy.is_healthy.store(is, Relaxed);
            proxy.metrics().healthy(proxy.name(), is);
            let (port, upstream) = (&**proxy.name(), settings.upstream.address());
            match answer {
                Ok(()) => tracing::info!(event = "upstream_healthy", port, upstream, "the model server answers"),
                Err(error) => {
                    tracing::warn!(
                        event = "upstream_unhealthy",
                        port,
                        upstream,
                        error,
                        "the model server does not answer"
                    );
                }
            }
        }
        sleep(if is { health.every } else { health.every.min(STARTUP_INTERVAL) }).await;
    }
}

async fn ask(settings: &Settings) -> Result<(), String> {
    let Settings { config, upstream, .. } = settings;
    let path = match &config.health.check {
        HealthCheck::Connect => {
            let connected = upstream.connect_once(Version::HTTP_11).await;
            return connected.map(drop).map_err(|error| error.to_string());
        }
        HealthCheck::Grpc(service) => return ask_grpc(upstream, service).await,
        HealthCheck::Path(path) => path,
    };
    let mut sender = upstream.aside().await.map_err(|trouble| trouble.to_string())?;
    let request =
        Request::get(path.as_str()).header(header::HOST, upstream.address()).header(header::CONNECTION, "close");
    let request = request.body(full("")).map_err(|error| error.to_string())?;
    let status = sender.send_request(request).await.map_err(|error| error.to_string())?.status();
    if status.is_success() || status == StatusCode::NOT_MODIFIED {
        return Ok(());
    }
    Err(format!("{path} answers {status}"))
}

/// Asks in the protocol of gRPC (github.com/grpc/grpc, doc/health-checking.md).
async fn ask_grpc(upstream: &Upstream, service: &str) -> Result<(), String> {
    let line = upstream.aside_http2().await.map_err(|trouble| trouble.to_string())?;
    let uri = format!("{}://{}/grpc.health.v1.Health/Check", upstream.scheme(), upstream.address());
    let request = Request::post(uri).header(header::CONTENT_TYPE, "application/grpc").header(header::TE, "trailers");
    let request = request.body(full(question(service))).map_err(|error| error.to_string())?;
    let answer = line.send(request).await.map_err(|unsent| UpstreamError::from(unsent).to_string())?;
    let early = answer.headers().get("grpc-status").cloned();
    let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await.map_err(|error| error.to_string())?;
    let status = early.or_else(|| body.trailers().and_then(|trailers| trailers.get("grpc-status").cloned()));
    match status.as_ref().and_then(|status| status.to_str().ok()) {
        Some("0") if serves(&body.to_bytes()) => Ok(()),
        Some("0") => Err(format!("the service {service:?} does not serve")),
        status => Err(format!("the health check ended with the gRPC status {}", status.unwrap_or("none"))),
    }
}

/// `HealthCheckRequest { service }`, as a message of gRPC.
fn question(service: &str) -> Vec<u8> {
    let mut message = Vec::new();
    if let (Ok(length), false) = (u8::try_from(service.len()), service.is_empty()) {
        message.extend([0x0A, length]);
        message.extend_from_slice(service.as_bytes());
    }
    let length = u32::try_from(message.len()).unwrap_or_default();
    [&[0][..], &length.to_be_bytes(), &message].concat()
}

/// True for `HealthCheckResponse { status: SERVING }`.
fn serves(message: &[u8]) -> bool {
    message.get(5..) == Some(&[0x08, 1])
}
