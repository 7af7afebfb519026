//! Envoy in the same place, as a team would put it before a model server: two threads, HTTP/2 behind, without TLS.

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::json;

/// Starts it in `folder` before `behind`; where it listens.
pub(crate) fn start(bin: &str, folder: &Path, behind: SocketAddr) -> (Child, SocketAddr) {
    let at = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
    let file = folder.join("envoy.json");
    fs_err::write(&file, config(at, behind).to_string()).expect("written");
    let mut command = Command::new(bin);
    command.arg("-c").arg(file).args(["--concurrency", "2", "--use-dynamic-base-id", "--log-level", "error"]);
    let process = command.stdin(Stdio::null()).spawn().expect("it starts");
    while std::net::TcpStream::connect(at).is_err() {
        std::thread::yield_now();
    }
    (process, at)
}

fn config(at: SocketAddr, behind: SocketAddr) -> serde_json::Value {
    let socket = |at: SocketAddr| json!({"socket_address": {"address": at.ip().to_string(), "port_value": at.port()}});
    let of = |name: &str| format!("type.googleapis.com/envoy.extensions.{name}");
    let options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    json!({"static_resources": {
        "listeners": [{"address": socket(at), "filter_chains": [{"filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": {
                "@type": of("filters.network.http_connection_manager.v3.HttpConnectionManager"),
                "stat_prefix": "in", "codec_type": "AUTO",
                "http_filters": [{
                    "name": "envoy.filters.http.router",
                    "typed_config": {"@type": of("filters.http.router.v3.Router")},
                }],
                "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [
                    {"match": {"prefix": "/"}, "route": {"cluster": "worker", "timeout": "30s"}},
                ]}]},
            },
        }]}]}],
        "clusters": [{
            "name": "worker", "type": "STATIC", "lb_policy": "LEAST_REQUEST",
            "typed_extension_protocol_options": {options: {
                "@type": format!("type.googleapis.com/{options}"),
                "explicit_http_config": {"http2_protocol_options": {}},
            }},
            "load_assignment": {"cluster_name": "worker", "endpoints": [{"lb_endpoints": [
                {"endpoint": {"address": socket(behind)}},
            ]}]},
        }],
    }})
}
