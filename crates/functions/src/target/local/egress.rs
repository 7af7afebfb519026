//! The way of a function to the hosts of its spec: a proxy on the loopback of its own network, as models have it.

use std::{
    ffi::{OsStr, OsString},
    net::TcpListener,
    sync::Arc,
};

use berth_spec::network::{Destination, Host};
use berth_worker::egress::{self, Allowed, Client, EgressPolicy, Outcome, Refusal, Upstream};
use tokio_util::task::AbortOnDropHandle;

use crate::{build::BuildLog, source::Metrics};

/// Connections of one process at once: more than clients of an API keep, and their buffers are two megabytes together.
const CONNECTIONS: usize = 64;

/// Variables that name the proxy.
const PROXIES: [&str; 6] = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];

/// Names of a function's own loopback.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Has Node.js obey the variables, as Python's libraries do (from versions 22.21 and 24 on).
const NODE_OBEYS: (&str, &str) = ("NODE_USE_ENV_PROXY", "1");

/// Serves a listener until the handle is dropped.
pub(super) fn serve(
    listener: TcpListener,
    hosts: &[Destination],
    own_ports: Vec<u16>,
    function: Function,
) -> AbortOnDropHandle<()> {
    let allowed = Allowed::declared(hosts.to_vec(), own_ports);
    let policy = EgressPolicy::new(allowed, CONNECTIONS, Arc::new(function));
    AbortOnDropHandle::new(tokio::runtime::Handle::current().spawn(egress::serve(listener, Arc::new(policy))))
}

/// A function as the proxy knows it.
pub(super) struct Function {
    /// The key of the function, as people know it.
    pub(super) key: String,
    pub(super) metrics: Arc<Metrics>,
    pub(super) log: Arc<BuildLog>,
}

impl Client for Function {
    /// Counts an outcome, and tells one that is no success in the function's log.
    fn note(&self, outcome: Outcome, wanted: Option<&Destination>) {
        self.metrics.connection(&self.key, outcome);
        let Some(wanted) = wanted.filter(|_| outcome != Outcome::Connected) else { return };
        let why = match outcome {
            Outcome::Refused(why) => self.refusal(why, wanted),
            _ => "it cannot be reached".to_owned(),
        };
        self.log.line(&format!("berth: {wanted}: {why}"));
    }

    fn refusal(&self, why: Refusal, _wanted: &Destination) -> String {
        let told = match why {
            Refusal::Undeclared => "it is not declared: add it to spec.network.hosts",
            Refusal::Private => "the name stands for a private address, which has to be declared as an address",
            Refusal::Forbidden => "functions do not get to this address",
            Refusal::OwnPort => "functions do not get to this port of Berth",
        };
        told.to_owned()
    }

    /// None: functions connect directly, as models do.
    fn upstream(&self, _wanted: &Destination, _tunnels: bool) -> Option<Upstream> {
        None
    }
}

/// Variables without those that name proxies of the operator, which a network of its own does not reach; `hosts`: those that it
/// reaches through ours.
pub(super) fn environment(variables: Vec<(OsString, OsString)>, hosts: &[Destination]) -> Vec<(OsString, OsString)> {
    let names_proxy = |name: &OsStr| name.to_string_lossy().to_ascii_lowercase().ends_with("_proxy");
    let mut kept: Vec<_> = variables.into_iter().filter(|(name, _)| !names_proxy(name)).collect();
    if hosts.is_empty() {
        return kept;
    }
    kept.extend(PROXIES.map(|name| (name.into(), egress::address().into())));
    // A loopback address that is declared is the machine's.
    let is_declared = |name: &str| hosts.iter().any(|host| Host::read(name).as_ref() == Some(&host.host));
    let direct = LOOPBACK.into_iter().filter(|name| !is_declared(name)).collect::<Vec<_>>().join(",");
    kept.extend(["NO_PROXY", "no_proxy"].map(|name| (name.into(), direct.clone().into())));
    kept.push((NODE_OBEYS.0.into(), NODE_OBEYS.1.into()));
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_knows_the_proxy_to_its_hosts_and_no_other() {
        let variable = |name: &str| (OsString::from(name), OsString::from("x"));
        let operators = || ["PATH", "HTTPS_PROXY", "no_proxy"].map(variable).to_vec();
        let host = |text: &str| text.parse::<Destination>().expect("a host");
        let value = |found: &[(OsString, OsString)], wanted: &str| {
            found.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.to_string_lossy().into_owned())
        };
        assert_eq!(environment(operators(), &[]), [variable("PATH")]);
        let found = environment(operators(), &[host("api.example.com:443")]);
        assert_eq!(value(&found, "HTTPS_PROXY"), Some(egress::address()));
        assert_eq!(value(&found, "no_proxy").as_deref(), Some("localhost,127.0.0.1,::1"));
        let found = environment(operators(), &[host("127.0.0.1:8080"), host("[::1]:8080")]);
        assert_eq!(value(&found, "NO_PROXY").as_deref(), Some("localhost"));
        assert_eq!(found.iter().filter(|(name, _)| name == "no_proxy").count(), 1);
    }
}
