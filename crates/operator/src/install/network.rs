//! Rules who may connect to pods. What pods connect to is not limited: it differs by model, and where the API server listens by cluster.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{PORT, WEBHOOK_PORT, labels, named};
use crate::render::{
    EXECUTOR_ADMIN, EXECUTOR_FIRST, EXECUTOR_PORT, MANAGED_BY, PICKER_METRICS_PORT, PICKER_OF, PICKER_PORT, SELECTOR,
};

/// The labels of namespaces whose pods may read metrics, where nobody says others.
pub const SCRAPERS: &str = "berth.dev/metrics=true";

/// Ports of an executor that its clients reach, from the first on. A range of ports needs Kubernetes 1.25.
const EXECUTORS: u16 = 16;

/// Labels of namespaces.
pub type Labels = BTreeMap<String, String>;

/// Those who may connect, by the labels of their namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Callers {
    /// Namespaces that may read metrics.
    pub metrics: Labels,
    /// Namespaces that may send requests to models; `None`: everybody may.
    pub clients: Option<Labels>,
}

impl Default for Callers {
    fn default() -> Self {
        Self { metrics: namespace_labels(SCRAPERS).unwrap_or_default(), clients: None }
    }
}

impl Callers {
    /// Lets those who read metrics reach a port.
    #[must_use]
    pub fn scraped(&self, port: u16) -> Value {
        rule([port], Some(&self.metrics))
    }

    /// Lets clients reach ports.
    #[must_use]
    pub fn served(&self, ports: impl IntoIterator<Item = u16>) -> Value {
        rule(ports, self.clients.as_ref())
    }
}

/// Labels as they are written: `KEY=VALUE,KEY=VALUE`.
///
/// # Errors
/// The text is none of that.
pub fn namespace_labels(text: &str) -> Result<Labels, String> {
    let is_key = |key: &str| {
        !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/'))
    };
    let is_value = |value: &str| value.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    let label = |part: &str| match part.trim().split_once('=') {
        Some((key, value)) if is_key(key) && is_value(value) => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("{part:?} is no label of a namespace: write KEY=VALUE, several with commas")),
    };
    text.split(',').map(label).collect()
}

/// Lets pods of namespaces with these labels reach ports, by number or by name; without labels, everybody.
fn rule<P: Into<Value>>(ports: impl IntoIterator<Item = P>, from: Option<&Labels>) -> Value {
    let ports = ports.into_iter().map(Into::<Value>::into);
    let ports: Vec<Value> = ports.map(|port| json!({ "port": port, "protocol": "TCP" })).collect();
    match from {
        Some(labels) => json!({ "from": [{ "namespaceSelector": { "matchLabels": labels } }], "ports": ports }),
        None => json!({ "ports": ports }),
    }
}

/// A policy: the pods are reached as these rules say, and not otherwise. A node always reaches its own pods, so that probes need no rule.
#[must_use]
pub fn policy(metadata: &Value, pods: &Value, ingress: &[Value]) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": { "podSelector": pods, "policyTypes": ["Ingress"], "ingress": ingress },
    })
}

/// The operator is reached for its metrics, and for its webhook by everybody: the addresses of API servers differ by cluster.
pub(super) fn of_operator(namespace: &str, callers: &Callers) -> Value {
    let webhook = rule([WEBHOOK_PORT], None);
    policy(&named(namespace), &json!({ "matchLabels": labels() }), &[callers.scraped(PORT), webhook])
}

/// Pods of models in a namespace are reached through their executors, and endpoint pickers by Gateways.
pub(super) fn of_models(namespace: &str, callers: &Callers) -> [Value; 2] {
    let metadata = |name: &str| json!({ "name": name, "namespace": namespace, "labels": labels() });
    let exists = |label: &str| json!([{ "key": label, "operator": "Exists" }]);
    let models = json!({ "matchLabels": { MANAGED_BY.0: MANAGED_BY.1 }, "matchExpressions": exists(SELECTOR) });
    let pickers = json!({ "matchExpressions": exists(PICKER_OF) });
    let requests = callers.served(EXECUTOR_FIRST..EXECUTOR_FIRST + EXECUTORS);
    // A model may have another number, and not all networks know the names of ports of native sidecars.
    let metrics = rule([Value::from(EXECUTOR_ADMIN), Value::from(EXECUTOR_PORT)], Some(&callers.metrics));
    [
        policy(&metadata("berth-models"), &models, &[requests, metrics]),
        policy(
            &metadata("berth-pickers"),
            &pickers,
            &[callers.served([PICKER_PORT]), callers.scraped(PICKER_METRICS_PORT)],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_read() {
        let read = |text: &str| namespace_labels(text).map(|labels| labels.into_iter().collect::<Vec<_>>());
        let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(read("berth.dev/metrics=true"), Ok(vec![label("berth.dev/metrics", "true")]));
        assert_eq!(read("a=b, c="), Ok(vec![label("a", "b"), label("c", "")]));
        for wrong in ["", "a", "=b", "a=b,", "a b=c", "a=b c"] {
            assert!(read(wrong).is_err_and(|error| error.contains("KEY=VALUE")), "{wrong}");
        }
    }

    #[test]
    fn models_are_reached_through_executors_alone() {
        let callers = Callers { clients: namespace_labels("team=web").ok(), ..Callers::default() };
        let [models, pickers] = of_models("shop", &callers);
        let ports = |rule: &Value| -> Vec<u64> {
            rule["ports"].as_array().into_iter().flatten().filter_map(|one| one["port"].as_u64()).collect()
        };
        let from = |rule: &Value| rule["from"][0]["namespaceSelector"]["matchLabels"].clone();
        for (policy, requests, metrics) in [(&models, 29_001..29_017, 9_901), (&pickers, 9_002..9_003, 9_090)] {
            let rules = policy["spec"]["ingress"].as_array().expect("rules");
            let requests: Vec<u64> = requests.collect();
            assert_eq!((ports(&rules[0]), ports(&rules[1])), (requests, vec![metrics]));
            let expected = (json!({ "team": "web" }), json!({ "berth.dev/metrics": "true" }));
            assert_eq!((from(&rules[0]), from(&rules[1]), rules.len()), (expected.0, expected.1, 2));
            assert_eq!(policy["metadata"]["namespace"], "shop");
        }
        let [models, _] = of_models("shop", &Callers::default());
        assert_eq!(models["spec"]["ingress"][1]["ports"][1]["port"], "berth-executor", "whatever its number is");
        assert!(models["spec"]["ingress"][0].get("from").is_none(), "everybody");
    }
}
