//! Functions: the host that builds and runs them.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use berth_functions::source::{Host, HostConfig, TraceHook};
use berth_worker::config::IsolationSettings;
use prometheus_client::registry::Registry;

use super::{ServerSettings, source::SourceSettings, tls::scheme, values};
use crate::failure::Failure;

/// The choices of a node about functions.
pub(crate) struct FunctionSettings<'a> {
    /// The address at which its gateway listens; `None`: it is no gateway.
    pub(crate) gateway: Option<SocketAddr>,
    /// The host that others use for this node.
    pub(crate) advertised: Option<&'a values::Host>,
    /// Other nodes may lead.
    pub(crate) in_cluster: bool,
    pub(crate) sources: &'a SourceSettings,
    /// Joins spans of builds to traces.
    pub(crate) traces: Option<TraceHook>,
    /// The isolation of functions on this machine.
    pub(crate) isolation: IsolationSettings,
}

/// Opens the host.
///
/// # Errors
/// A node that is no gateway, or a folder that cannot be used.
pub(crate) fn host(
    server: &ServerSettings,
    settings: FunctionSettings<'_>,
    registry: &mut Registry,
) -> Result<Arc<Host>, Failure> {
    let FunctionSettings { gateway, advertised, in_cluster, sources, traces, isolation } = settings;
    let gateway = gateway.ok_or_else(|| {
        Failure::Usage("a controller with --source etcd=URL serves functions: give it the role gateway, too".to_owned())
    })?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let config = HostConfig {
        root: server.data.join("functions"),
        gateway: reached_at(gateway, advertised, server.tls.is_some()),
        credentials: credentials(server),
        python: server.cards.clone(),
        all_local: sources.functions_are_local(),
        // Bundlers and resolvers take a core each.
        parallel: cores.clamp(1, 4),
        artifacts: sources.function_artifacts(),
        builder_image: sources.function_builder_image().map(str::to_owned),
        build_hosts: sources.function_build_hosts().to_vec(),
        // Not the link to this process's program that models are launched by: a shell starts it, and bubblewrap shows it.
        launcher: std::env::current_exe().ok(),
        traces,
        in_cluster,
        isolation,
    };
    Host::open(config, registry).map_err(|error| Failure::doing("functions cannot start", error))
}

/// Credentials of object stores and of Azure, whose managed identity has variables of its own.
fn credentials(server: &ServerSettings) -> BTreeMap<String, String> {
    let managed = ["IDENTITY_ENDPOINT", "IDENTITY_HEADER"];
    let managed =
        managed.into_iter().filter_map(|name| Some((name.to_owned(), std::env::var_os(name)?.into_string().ok()?)));
    server.credentials.clone().into_iter().chain(managed).collect()
}

/// URL at which clients reach the gateway. A name that is advertised stays a name: the certificate may have no address. A gateway
/// on loopback is reached from this machine alone, whatever the node advertises.
fn reached_at(gateway: SocketAddr, advertised: Option<&values::Host>, has_tls: bool) -> String {
    let ip = gateway.ip();
    let host = match advertised {
        Some(host) if !ip.to_canonical().is_loopback() => host.to_string(),
        _ if ip.is_unspecified() => "127.0.0.1".to_owned(),
        _ => ip.to_string(),
    };
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    format!("{}://{host}:{}", scheme(has_tls), gateway.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_reached_at_the_advertised_host_where_the_gateway_is_open_to_others() {
        for (gateway, advertised, has_tls, url) in [
            ("127.0.0.1:80", None, false, "http://127.0.0.1:80"),
            ("127.0.0.1:80", Some("10.0.0.9"), false, "http://127.0.0.1:80"),
            ("[::1]:80", Some("10.0.0.9"), true, "https://[::1]:80"),
            ("0.0.0.0:80", None, false, "http://127.0.0.1:80"),
            ("[::]:80", None, false, "http://127.0.0.1:80"),
            ("10.0.0.2:80", None, true, "https://10.0.0.2:80"),
            ("[fd00::2]:80", None, false, "http://[fd00::2]:80"),
            ("0.0.0.0:80", Some("10.0.0.9"), false, "http://10.0.0.9:80"),
            ("10.0.0.2:80", Some("node-a.example"), true, "https://node-a.example:80"),
            ("[::]:80", Some("[fd00::9]"), false, "http://[fd00::9]:80"),
        ] {
            let host = advertised.map(|host| values::Host::parse(host).expect("a host"));
            let gateway = gateway.parse().expect("an address");
            assert_eq!(reached_at(gateway, host.as_ref(), has_tls), url, "{gateway} {advertised:?}");
        }
    }
}
