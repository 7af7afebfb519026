//! Settings of NetworkPolicies, for commands that print what runs in a cluster.

use berth_operator::install::{Callers, Labels, SCRAPERS, namespace_labels};
use clap::Args;

#[derive(Debug, Args)]
pub(super) struct NetworkArgs {
    /// Print NetworkPolicies, by which pods are reached at the ports that others need: on, off
    #[arg(long, value_name = "HOW", default_value = "on", value_parser = ["on", "off"])]
    network_policies: String,
    /// Labels of the namespaces whose pods may read metrics
    #[arg(long, value_name = "KEY=VALUE,…", default_value = SCRAPERS, value_parser = namespace_labels)]
    metrics_from: Labels,
    /// Labels of the namespaces whose pods may send requests to models [default: everybody may]
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = namespace_labels)]
    clients_from: Option<Labels>,
}

impl NetworkArgs {
    /// Those who may connect; `None`: policies are off.
    pub(super) fn callers(&self) -> Option<Callers> {
        (self.network_policies == "on")
            .then(|| Callers { metrics: self.metrics_from.clone(), clients: self.clients_from.clone() })
    }
}
