//! Functions: the host that builds and runs them.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use berth_functions::source::{Host, HostConfig, TraceHook};
use berth_mesh::{PropagateHook, config::FunctionHook};
use prometheus_client::registry::Registry;

use super::{ServerSettings, tls::scheme};
use crate::failure::Failure;

/// Opens the host. `gateway`: where clients reach the functions; `all_local`: all run here, whatever their specs say;
/// `artifacts`: so many are kept beyond those in use; `image`: builds run in it; `traces`: where spans belong.
///
/// # Errors
/// A node that is no gateway, or a folder that cannot be used.
pub(crate) fn host(
    server: &ServerSettings,
    gateway: Option<SocketAddr>,
    (all_local, artifacts, image, traces): (bool, usize, Option<&str>, Option<TraceHook>),
    registry: &mut Registry,
) -> Result<Arc<Host>, Failure> {
    let gateway = gateway.ok_or_else(|| {
        Failure::Usage("a controller with --source etcd=URL serves functions: give it the role gateway, too".to_owned())
    })?;
    let host = if gateway.ip().is_unspecified() { "127.0.0.1".to_owned() } else { shown(gateway) };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let config = HostConfig {
        root: server.data.join("functions"),
        gateway: format!("{}://{host}:{}", scheme(server.tls.is_some()), gateway.port()),
        credentials: credentials(server),
        python: server.cards.clone(),
        all_local,
        // Bundlers and resolvers take a core each.
        parallel: cores.clamp(1, 4),
        artifacts,
        builder_image: image.map(str::to_owned),
        traces,
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

/// The address without its port.
fn shown(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    }
}

/// The gateway's way to functions; `propagate` has them continue the traces of requests.
pub(crate) fn hook(host: &Arc<Host>, propagate: Option<PropagateHook>) -> FunctionHook {
    let host = Arc::clone(host);
    Arc::new(move |mut request| {
        if let Some(propagate) = &propagate {
            propagate(request.headers_mut());
        }
        Box::pin(Arc::clone(&host).call(request))
    })
}
