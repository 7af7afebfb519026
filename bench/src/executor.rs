//! The cost of the executor: the same requests straight to an echo server, through a bare proxy, through `berth executor` with its
//! metrics, limits, retries and breaker, and through Envoy with the same; the last two also with a log of each request.

use std::{
    net::SocketAddr,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde_json::json;

use crate::{
    Arguments,
    load::{self, Figures},
    payload::TABULAR,
    server::{Server, free, scratch},
};

/// No proxy.
pub(crate) const DIRECT: &str = "no proxy";
/// See [`crate::cluster::proxy`].
pub(crate) const BARE: &str = "bare proxy";
/// `berth executor`.
pub(crate) const EXECUTOR: &str = "executor";
/// The same with a line in a file for each request.
const EXECUTOR_LOGS: &str = "executor with log";
/// Envoy, on as many cores as the executor.
const ENVOY: &str = "Envoy";
/// The same with a line in a file for each request.
const ENVOY_LOGS: &str = "Envoy with log";

/// The paths of the requests over REST and gRPC.
const PATHS: &str = "['/v2/models/{model}/infer', '/inference.GRPCInferenceService/ModelInfer']";

/// Callers of each table line.
const CALLERS: [usize; 2] = [1, 64];

/// Each is measured so often, in turn.
const ROUNDS: usize = 3;

/// One line of the table.
pub(crate) struct Row {
    pub(crate) protocol: &'static str,
    pub(crate) callers: usize,
    pub(crate) way: &'static str,
    pub(crate) figures: Figures,
}

/// Measures all of them in one run.
pub(crate) async fn measure(arguments: &Arguments) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (protocol, role) in [("REST", "echo-http"), ("gRPC", "echo-grpc")] {
        let echo = Server::echo(role).await?;
        let Some(behind) = echo.http.or(echo.grpc) else { continue };
        let proxies = proxies(arguments, behind).await?;
        let request = if protocol == "REST" { TABULAR.json() } else { TABULAR.grpc() };
        for callers in CALLERS {
            let ways = std::iter::once((DIRECT, behind)).chain(proxies.iter().map(|(address, at)| (at.name, *address)));
            let mut rounds: Vec<_> = ways.map(|(way, address)| (way, address, Vec::new())).collect();
            for _ in 0..ROUNDS {
                for (way, address, seen) in &mut rounds {
                    let figures = load::run(*address, &request, callers, arguments.seconds).await?;
                    eprintln!("{protocol} {way:17} c={callers:<2} {figures}");
                    seen.push(figures);
                }
            }
            for (way, _, mut seen) in rounds {
                seen.sort_by(|a: &Figures, b| a.per_second.total_cmp(&b.per_second));
                let middle = seen.len() / 2;
                rows.push(Row { protocol, callers, way, figures: seen.swap_remove(middle) });
            }
        }
    }
    Ok(rows)
}

/// All that stands before the server, each under the name of its way.
async fn proxies(arguments: &Arguments, behind: SocketAddr) -> Result<Vec<(SocketAddr, Server)>> {
    let duties = format!("breaker: {{failures: 5, openFor: 1s}}, retry: {{attempts: 2, paths: {PATHS}}}");
    let logs = |files: &Path| format!("{duties}, log: {{to: {{file: '{}'}}}}", files.join("requests.jsonl").display());
    let mut all = vec![bare(behind).await?];
    all.push(start(&arguments.berth, behind, EXECUTOR, |_| duties.clone()).await?);
    all.push(start(&arguments.berth, behind, EXECUTOR_LOGS, logs).await?);
    if let Some(bin) = arguments.envoy.as_deref() {
        all.push(envoy(bin, behind, ENVOY).await?);
        all.push(envoy(bin, behind, ENVOY_LOGS).await?);
    }
    Ok(all)
}

async fn bare(behind: SocketAddr) -> Result<(SocketAddr, Server)> {
    let address = free()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["proxy", &address.to_string(), &behind.to_string()]);
    let server = Server::spawn(BARE, &mut command, scratch("proxy")?)?;
    listens(address).await?;
    Ok((address, server))
}

/// `berth executor` before a server, with more settings of its port; they are told the folder of its files.
pub(crate) async fn start(
    berth: &Path,
    behind: SocketAddr,
    name: &'static str,
    settings: impl FnOnce(&Path) -> String,
) -> Result<(SocketAddr, Server)> {
    let (address, admin, files) = (free()?, free()?, scratch(name)?);
    let (file, settings) = (files.join("executor.yaml"), settings(&files));
    let config = format!(
        "ports:\n  - {{name: bench, listen: '{address}', upstream: '{behind}', paths: {PATHS}, {settings}}}\n\
         admin: {{listen: '{admin}'}}\ndrain: {{delay: 1s, timeout: 30s}}\n"
    );
    fs_err::write(&file, config)?;
    let server = Server::spawn(name, Command::new(berth).arg("executor").arg("--config").arg(&file), files)?;
    listens(address).await?;
    Ok((address, server))
}

/// Envoy with the duties of the executor: counts by path, an id for each request, a bound on requests at once, a second attempt where the
/// server breaks the connection, and a server that fails five times in a row is left alone.
async fn envoy(bin: &Path, behind: SocketAddr, name: &'static str) -> Result<(SocketAddr, Server)> {
    let (address, files) = (free()?, scratch(name)?);
    let socket = |at: SocketAddr| json!({"socket_address": {"address": at.ip().to_string(), "port_value": at.port()}});
    let kind = |name: &str| format!("type.googleapis.com/{name}");
    let manager = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    let router = "envoy.extensions.filters.http.router.v3.Router";
    let protocol = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    let infer = "/v2/models/[^/]+/infer|/inference.GRPCInferenceService/ModelInfer";
    let path = json!({"name": ":path", "string_match": {"safe_regex": {"regex": infer}}});
    let retry = json!({"retry_on": "connect-failure,reset", "num_retries": 1});
    let log = json!({"name": "envoy.access_loggers.file", "typed_config": {
        "@type": kind("envoy.extensions.access_loggers.file.v3.FileAccessLog"),
        "path": files.join("requests.jsonl"),
        "log_format": {"json_format": {
            "time": "%START_TIME%", "id": "%REQ(X-REQUEST-ID)%", "method": "%REQ(:METHOD)%", "path": "%REQ(:PATH)%",
            "status": "%RESPONSE_CODE%", "milliseconds": "%DURATION%", "host": "%REQ(:AUTHORITY)%",
            "contentType": "%REQ(CONTENT-TYPE)%", "answered": "%RESP(CONTENT-TYPE)%",
        }},
    }});
    let logs = if name == ENVOY_LOGS { vec![log] } else { Vec::new() };
    let config = json!({"static_resources": {
        "listeners": [{"address": socket(address), "filter_chains": [{"filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": {
                "@type": kind(manager), "stat_prefix": "in", "codec_type": "AUTO", "generate_request_id": true,
                "use_remote_address": true, "access_log": logs,
                "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {"@type": kind(router)}}],
                "route_config": {"virtual_hosts": [{
                    "name": "all", "domains": ["*"], "virtual_clusters": [{"name": "infer", "headers": [path]}],
                    "routes": [{
                        "match": {"prefix": "/"},
                        "route": {"cluster": "model", "timeout": "300s", "retry_policy": retry},
                    }],
                }]},
            },
        }]}]}],
        "clusters": [{
            "name": "model", "type": "STATIC", "connect_timeout": "10s",
            "circuit_breakers": {"thresholds": [{"max_requests": 1_024, "max_connections": 1_024}]},
            "outlier_detection": {"consecutive_gateway_failure": 5, "base_ejection_time": "1s"},
            "typed_extension_protocol_options": {protocol: {
                "@type": kind(protocol),
                "use_downstream_protocol_config": {"http2_protocol_options": {}},
            }},
            "load_assignment": {"cluster_name": "model", "endpoints": [{"lb_endpoints": [
                {"endpoint": {"address": socket(behind)}},
            ]}]},
        }],
    }});
    fs_err::write(files.join("envoy.yaml"), config.to_string())?;
    let mut command = Command::new(bin.join("envoy"));
    command.arg("-c").arg(files.join("envoy.yaml"));
    let cores = std::thread::available_parallelism()?.to_string();
    command.args(["--concurrency", &cores, "--use-dynamic-base-id", "--log-level", "error"]);
    let server = Server::spawn(name, &mut command, files)?;
    listens(address).await?;
    Ok((address, server))
}

async fn listens(address: SocketAddr) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(60);
    while tokio::net::TcpStream::connect(address).await.is_err() {
        ensure!(Instant::now() < end, "nobody listens at {address}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
