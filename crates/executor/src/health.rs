//! The health of the model server: asked now and then, on connections of its own.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use http::{Request, StatusCode, header};
use tokio::time::{sleep, timeout};

use crate::{
    body::full,
    config::PortConfig,
    proxy::{Proxy, Settings},
    upstream::Trouble,
};

/// Pause between two questions to a server that does not answer yet: a pod is ready soon after its server.
const SOON: Duration = Duration::from_millis(500);

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
        sleep(if is { health.every } else { health.every.min(SOON) }).await;
    }
}

async fn ask(settings: &Settings) -> Result<(), String> {
    let Settings { config, upstream, .. } = settings;
    let Some(path) = &config.health.path else {
        return upstream.connect_once().await.map(drop).map_err(|error| error.to_string());
    };
    let mut sender = upstream.aside().await.map_err(|trouble| match trouble {
        Trouble::Unreachable(error) => error.to_string(),
        Trouble::Broken(error) => error.to_string(),
    })?;
    let request =
        Request::get(path.as_str()).header(header::HOST, upstream.address()).header(header::CONNECTION, "close");
    let request = request.body(full("")).map_err(|error| error.to_string())?;
    let status = sender.send_request(request).await.map_err(|error| error.to_string())?.status();
    if status.is_success() || status == StatusCode::NOT_MODIFIED {
        return Ok(());
    }
    Err(format!("{path} answers {status}"))
}
