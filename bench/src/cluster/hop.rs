//! The cost of the hop: the same requests straight to the worker's node, and through Berth, Envoy and a bare proxy before it.

use std::{net::SocketAddr, path::Path, process::Command};

use anyhow::Result;
use serde_json::json;

use super::fleet::{Fleet, Plan, onnx, until};
use crate::{
    Arguments,
    load::{self, Figures},
    payload::{CNN, Model, TABULAR},
    server::{Server, free, scratch},
};

/// One line of the table.
pub(crate) struct Row {
    pub(crate) model: &'static str,
    pub(crate) protocol: &'static str,
    pub(crate) callers: usize,
    pub(crate) way: &'static str,
    pub(crate) figures: Figures,
}

/// The path before the worker.
pub(crate) const DIRECT: &str = "no proxy";
/// A gateway of another node.
pub(crate) const BERTH: &str = "Berth";
/// Envoy, two worker threads, plaintext HTTP/2 to the worker.
pub(crate) const ENVOY: &str = "Envoy";
/// See [`super::proxy`].
pub(crate) const BARE: &str = "bare proxy";
/// Threads of each proxy, which has 64 callers.
const THREADS: usize = 2;

/// One node holds the models, the other one has no worker: every request to it is a hop.
const NODES: [Plan<'_>; 2] = [
    Plan { name: "holds", roles: "controller,worker,gateway", more: &[] },
    Plan { name: "forwards", roles: "gateway", more: &[] },
];

pub(crate) async fn measure(arguments: &Arguments) -> Result<Vec<Row>> {
    let fleet = Fleet::start(arguments, &NODES).await?;
    for model in [&TABULAR, &CNN] {
        fleet.deploy(model.name, onnx(model.artifact.as_ref())?, 1, json!({})).await?;
    }
    let (worker, gateway) = (fleet.nodes[0].http, fleet.nodes[1].http);
    let mut ways = vec![(DIRECT, worker), (BERTH, gateway)];
    let (bare, _bare) = proxy(worker, THREADS)?;
    ways.push((BARE, bare));
    let envoy = arguments.envoy.as_deref().map(|bin| envoy(bin, worker, Speaks::Http2, None)).transpose()?;
    ways.extend(envoy.iter().map(|(address, _)| (ENVOY, *address)));
    for (way, address) in &ways {
        until(way, || async { Ok(load::run(*address, &TABULAR.json(), 1, 1).await.ok()) }).await?;
    }
    let mut rows = Vec::new();
    for (model, protocol, callers) in cases() {
        let request = if protocol == "gRPC" { model.grpc() } else { model.json() };
        for (way, address) in &ways {
            let figures = load::run(*address, &request, callers, arguments.seconds).await?;
            eprintln!("{:12} {protocol:9} c={callers:<2} {way:10} {figures}", model.name);
            rows.push(Row { model: model.name, protocol, callers, way, figures });
        }
    }
    Ok(rows)
}

fn cases() -> impl Iterator<Item = (&'static Model, &'static str, usize)> {
    let tabular = ["REST-JSON", "gRPC"].into_iter().flat_map(|protocol| [1, 8, 64].map(|c| (&TABULAR, protocol, c)));
    tabular.chain([(&CNN, "gRPC", 1), (&CNN, "gRPC", 8)])
}

/// A bare proxy to a server that listens, with so many threads.
pub(crate) fn proxy(behind: SocketAddr, threads: usize) -> Result<(SocketAddr, Server)> {
    let address = free()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["proxy", &address.to_string(), &behind.to_string(), "--threads", &threads.to_string()]);
    Ok((address, Server::spawn("bare proxy", &mut command, scratch("proxy")?)?))
}

/// Protocol of Envoy to the server behind it. Triton's REST port has no HTTP/2.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Speaks {
    Http1,
    Http2,
}

/// Envoy as a team would put it before a model server: routes by prefix, least requests. `most` is the bound of its circuit breaker on
/// requests at once.
pub(crate) fn envoy(bin: &Path, behind: SocketAddr, speaks: Speaks, most: Option<u32>) -> Result<(SocketAddr, Server)> {
    let address = free()?;
    let files = scratch("envoy")?;
    let socket = |at: SocketAddr| json!({"socket_address": {"address": at.ip().to_string(), "port_value": at.port()}});
    let manager =
        "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    let router = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
    let protocol = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    let options = match speaks {
        Speaks::Http1 => "http_protocol_options",
        Speaks::Http2 => "http2_protocol_options",
    };
    let config = json!({"static_resources": {
        "listeners": [{"address": socket(address), "filter_chains": [{"filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": {
                "@type": manager, "stat_prefix": "in", "codec_type": "AUTO",
                "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {"@type": router}}],
                "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [
                    {"match": {"prefix": "/"}, "route": {"cluster": "worker", "timeout": "30s"}},
                ]}]},
            },
        }]}]}],
        "clusters": [{
            "name": "worker", "type": "STATIC", "lb_policy": "LEAST_REQUEST",
            "circuit_breakers": {"thresholds": [{"max_requests": most.unwrap_or(1_024)}]},
            "typed_extension_protocol_options": {protocol: {
                "@type": format!("type.googleapis.com/{protocol}"),
                "explicit_http_config": {options: {}},
            }},
            "load_assignment": {"cluster_name": "worker", "endpoints": [{"lb_endpoints": [
                {"endpoint": {"address": socket(behind)}},
            ]}]},
        }],
    }});
    fs_err::write(files.join("envoy.yaml"), config.to_string())?;
    let mut command = Command::new(bin.join("envoy"));
    command.arg("-c").arg(files.join("envoy.yaml"));
    command.args(["--concurrency", "2", "--use-dynamic-base-id", "--log-level", "error"]);
    Ok((address, Server::spawn("Envoy", &mut command, files)?))
}
