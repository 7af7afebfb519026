//! `spec.network`: the hosts that a function reaches.

use berth_spec::network::{Destination, Network};
use serde_json::Value;

use super::field::{Mistakes, Object};

/// Reads it; without it, a function reaches none.
pub(super) fn read(spec: &Object<'_>, mistakes: &mut Mistakes) -> Vec<Destination> {
    let network = spec.below("network", "spec.network", mistakes);
    network.only(&["hosts"], mistakes);
    match network.value("hosts") {
        None => Vec::new(),
        Some(Value::Array(hosts)) if hosts.len() > Network::MAX_HOSTS => {
            mistakes.add(format!("spec.network.hosts has more than {} hosts", Network::MAX_HOSTS));
            Vec::new()
        }
        Some(Value::Array(hosts)) => hosts.iter().filter_map(|host| mistakes.check(host_of(host))).collect(),
        Some(_) => {
            mistakes.add("spec.network.hosts must be a list: write e.g. [\"api.example.com:443\"]");
            Vec::new()
        }
    }
}

fn host_of(value: &Value) -> Result<Destination, String> {
    let text = value.as_str().ok_or("spec.network.hosts must be a list of strings")?;
    text.parse::<Destination>().map_err(|error| format!("spec.network.hosts: {error}"))
}
