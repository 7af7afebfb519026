//! The objects that a cluster is given: custom resources, and an operator with the rights that it uses.

mod network;
mod rights;
mod webhook;
mod workload;

use serde_json::{Value, json};

pub use self::{
    network::{Callers, Labels, SCRAPERS, namespace_labels, policy},
    rights::{picker_rules, rules},
};
use crate::api::{self, definitions};

/// The port of the operator's metrics and health.
pub const PORT: u16 = 8080;

/// The port of the operator's webhook.
pub const WEBHOOK_PORT: u16 = 9443;

/// Choices of whoever installs an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The namespace that the operator itself runs in.
    pub namespace: String,
    /// The only namespace whose objects it looks at; `None`: all.
    pub watch: Option<String>,
    /// The image of the operator, and of the init containers and executors in pods of models.
    pub image: String,
    /// The image of executors, where it is another one.
    pub executor_image: Option<String>,
    /// The form of executors: auto, native or container.
    pub sidecars: String,
    /// Operators; one of them leads.
    pub replicas: u16,
    /// A `ServiceMonitor`, and a `PodMonitor` for executors, for the Prometheus operator, whose custom resources must be there.
    pub service_monitor: bool,
    /// Handling of objects that the webhook cannot be asked about.
    pub webhook_failure: FailurePolicy,
    /// Those who may connect, by NetworkPolicies; `None`: there are no policies.
    pub network: Option<Callers>,
    /// Namespaces with models that are reached through their executors alone.
    pub model_policies: Vec<String>,
}

/// Handling of objects that a webhook cannot be asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailurePolicy {
    /// Written; their status tells what is wrong with them.
    Ignore,
    /// Refused.
    Fail,
}

impl FailurePolicy {
    fn text(self) -> &'static str {
        match self {
            Self::Ignore => "Ignore",
            Self::Fail => "Fail",
        }
    }
}

/// The objects that come and go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstallPart {
    /// The definitions of the custom resources: a deletion of them takes all objects along.
    CustomResources,
    /// The operator's namespace, without the objects in it.
    Namespace,
    /// The service account and its rights.
    Rights,
    /// The operator's Deployment and Service.
    Workload,
    /// The webhook that objects are shown to before they are written.
    Webhook,
    /// The rule who may reach the operator.
    NetworkPolicy,
    /// The rules who may reach the pods of models.
    ModelPolicies,
    /// Operators that a drain leaves running: only where there are several, else no node with one could be drained.
    DisruptionBudget,
    /// The places where Prometheus finds the operator, and the executors of models.
    ServiceMonitor,
}

impl InstallPart {
    /// All, in the order in which they are applied.
    pub const ALL: [Self; 9] = [
        Self::CustomResources,
        Self::Namespace,
        Self::Rights,
        Self::Workload,
        Self::Webhook,
        Self::NetworkPolicy,
        Self::ModelPolicies,
        Self::DisruptionBudget,
        Self::ServiceMonitor,
    ];

    /// The objects of this part; of the policies none where `settings` names no callers.
    #[must_use]
    pub fn objects(self, settings: &Settings) -> Vec<Value> {
        let namespace = settings.namespace.as_str();
        match self {
            Self::CustomResources => custom_resources(namespace),
            Self::Namespace => {
                vec![json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } })]
            }
            Self::Rights => rights::objects(settings),
            Self::Workload => vec![workload::deployment(settings), workload::service(namespace)],
            Self::Webhook => vec![webhook::configuration(settings)],
            Self::NetworkPolicy => {
                settings.network.iter().map(|callers| network::of_operator(namespace, callers)).collect()
            }
            Self::ModelPolicies => {
                let of = |callers: &Callers| -> Vec<Value> {
                    let namespaces = settings.model_policies.iter();
                    namespaces.flat_map(|namespace| network::of_models(namespace, callers)).collect()
                };
                settings.network.as_ref().map(of).unwrap_or_default()
            }
            Self::DisruptionBudget => vec![workload::disruption_budget(namespace)],
            Self::ServiceMonitor => vec![workload::service_monitor(namespace), workload::pod_monitor(namespace)],
        }
    }

    fn is_wanted(self, settings: &Settings) -> bool {
        match self {
            Self::DisruptionBudget => settings.replicas > 1,
            Self::ServiceMonitor => settings.service_monitor,
            _ => true,
        }
    }
}

/// The custom resources, as documents, for an operator in `namespace`.
#[must_use]
pub fn custom_resources(namespace: &str) -> Vec<Value> {
    definitions(namespace).into_iter().filter_map(|definition| serde_json::to_value(definition).ok()).collect()
}

/// The same objects, with rules in the custom resources that API servers check by themselves (Kubernetes 1.25). Older ones drop the rules;
/// their kubectl refuses them, unless it is told not to look (`--validate=false`).
#[must_use]
pub fn with_schema_rules(mut objects: Vec<Value>) -> Vec<Value> {
    objects.iter_mut().for_each(api::rules::write);
    objects
}

/// Everything for an operator.
#[must_use]
pub fn everything(settings: &Settings) -> Vec<Value> {
    let parts = InstallPart::ALL.into_iter().filter(|part| part.is_wanted(settings));
    parts.flat_map(|part| part.objects(settings)).collect()
}

/// The labels of all that belongs to the operator.
fn labels() -> Value {
    json!({ "app.kubernetes.io/name": "berth-operator" })
}

fn named(namespace: &str) -> Value {
    json!({ "name": "berth-operator", "namespace": namespace, "labels": labels() })
}
