//! Settings of NetworkPolicies, for commands that print what runs in a cluster.

use berth_operator::install::{Callers, Labels, namespace_labels};
use clap::Args;

use crate::failure::Failure;

#[derive(Debug, Args)]
pub(super) struct NetworkArgs {
    /// Print NetworkPolicies, by which pods are reached at the ports that others need: on, off
    #[arg(long, value_name = "HOW", default_value = "on", value_parser = ["on", "off"])]
    network_policies: String,
    /// Labels of the namespaces whose pods may read metrics [default: berth.dev/metrics=true]
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = namespace_labels)]
    metrics_from: Option<Labels>,
    /// Labels of the namespaces whose pods may send requests to models [default: everybody may]
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = namespace_labels)]
    clients_from: Option<Labels>,
}

impl NetworkArgs {
    /// Those who may connect; `None`: policies are off.
    ///
    /// # Errors
    /// Somebody is named, and policies are off.
    pub(super) fn callers(&self) -> Result<Option<Callers>, Failure> {
        if self.network_policies == "on" {
            let metrics = self.metrics_from.clone().unwrap_or_else(|| Callers::default().metrics);
            return Ok(Some(Callers { metrics, clients: self.clients_from.clone() }));
        }
        let named = [("--clients-from", &self.clients_from), ("--metrics-from", &self.metrics_from)];
        match named.into_iter().find(|(_, labels)| labels.is_some()) {
            Some((flag, _)) => {
                Err(Failure::Usage(format!("{flag} is for NetworkPolicies, and --network-policies is off")))
            }
            None => Ok(None),
        }
    }
}
