//! The objects that run a fleet in a cluster: a StatefulSet of one node or of several, its address, and the rights that its source uses.

mod cluster;
#[cfg(test)]
mod fixture;
mod network;
mod pod;
pub(crate) mod pool;

use berth_operator::install::Callers;
use serde_json::{Value, json};

use self::pod::{PodRole, pod};
pub use self::{cluster::ClusterSettings, pool::with_pool};
use crate::kind::rules;

/// The port of inference: Berth's default.
const PORT: u16 = 8080;

/// The user of the image, by number, so that Kubernetes can tell that it is not root.
const USER: u32 = 65_532;

/// Time for requests in flight at the end of a pod, in seconds; a pod gets twice that.
const DRAIN: u32 = 30;

/// Choices of whoever installs a fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetSettings {
    /// The name of the fleet and of all its objects.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// The image of Berth.
    pub image: String,
    /// The only namespace whose objects it follows; `None`: all.
    pub follow: Option<String>,
    /// Labels that these must have.
    pub selector: Option<String>,
    /// Memory of the pod, as in a pod: models take it up.
    pub memory: String,
    /// The size of the volume for the store and for fetched models.
    pub storage: String,
    /// A Secret whose entries are its environment: credentials of buckets.
    pub credentials: Option<String>,
    /// A Secret that describes storages by name, as ModelMesh and KServe have it.
    pub storage_config: Option<String>,
    /// PersistentVolumeClaims whose files models may be: `pvc://NAME/PATH`.
    pub volumes: Vec<String>,
    /// True for a ServiceMonitor of the Prometheus operator, and metrics at the port of inference.
    pub service_monitor: bool,
    /// The address of models; `None`: that of the Service.
    pub url: Option<String>,
    /// `NAMESPACE/NAME` of a Gateway that gets a route for each `InferenceService`.
    pub gateway: Option<String>,
    /// Those who may connect, by NetworkPolicies; `None`: there are no policies.
    pub network: Option<Callers>,
}

impl FleetSettings {
    fn metadata(&self) -> Value {
        json!({ "name": self.name, "namespace": self.namespace, "labels": self.labels() })
    }

    fn labels(&self) -> Value {
        json!({ "app.kubernetes.io/name": "berth-fleet", "app.kubernetes.io/instance": self.name })
    }
}

/// The objects of a fleet that is one node, in the order in which they are applied.
#[must_use]
pub fn fleet_objects(settings: &FleetSettings) -> Vec<Value> {
    objects(settings, None)
}

/// The objects of a fleet of several nodes, in the order in which they are applied.
#[must_use]
pub fn cluster_objects(settings: &FleetSettings, cluster: &ClusterSettings) -> Vec<Value> {
    objects(settings, Some(cluster))
}

fn objects(settings: &FleetSettings, cluster: Option<&ClusterSettings>) -> Vec<Value> {
    let mut objects = vec![account(&settings.metadata())];
    objects.extend(rights(settings));
    objects.push(service(settings));
    objects.extend(settings.network.iter().flat_map(|callers| network::of_fleet(settings, callers, cluster.is_some())));
    match cluster {
        Some(cluster) => objects.extend(cluster.objects(settings)),
        None => objects.push(stateful_set(settings, pod(settings, PodRole::Alone))),
    }
    if settings.service_monitor {
        objects.push(monitor(settings));
    }
    let routed = settings.follow.as_deref().filter(|_| settings.gateway.is_some());
    objects.extend(routed.map(|namespace| grant(settings, namespace)));
    objects
}

fn account(metadata: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata })
}

/// The rights of the source.
fn rights(settings: &FleetSettings) -> [Value; 2] {
    let name = settings.name.as_str();
    let (kind, metadata) = match &settings.follow {
        Some(namespace) => ("Role", json!({ "name": name, "namespace": namespace, "labels": settings.labels() })),
        None => ("ClusterRole", json!({ "name": name, "labels": settings.labels() })),
    };
    role(settings, kind, &metadata, &rules(settings.gateway.is_some()))
}

/// A role, and its binding to the service account of those who decide.
fn role(settings: &FleetSettings, kind: &str, metadata: &Value, rules: &Value) -> [Value; 2] {
    const API: &str = "rbac.authorization.k8s.io";
    let subjects = json!([{ "kind": "ServiceAccount", "name": settings.name, "namespace": settings.namespace }]);
    let role = json!({ "apiGroup": API, "kind": kind, "name": metadata["name"] });
    let version = format!("{API}/v1");
    [
        json!({ "apiVersion": version, "kind": kind, "metadata": metadata, "rules": rules }),
        json!({ "apiVersion": version, "kind": format!("{kind}Binding"), "metadata": metadata, "roleRef": role, "subjects": subjects }),
    ]
}

fn service(settings: &FleetSettings) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": settings.metadata(),
        "spec": {
            "selector": settings.labels(),
            "ports": [{ "name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP" }],
        },
    })
}

fn monitor(settings: &FleetSettings) -> Value {
    json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": settings.metadata(),
        "spec": { "selector": { "matchLabels": settings.labels() }, "endpoints": [{ "port": "http", "path": "/metrics" }] },
    })
}

/// Lets routes of a namespace lead to the fleet. It cannot say "of all namespaces".
fn grant(settings: &FleetSettings, namespace: &str) -> Value {
    let from = json!([{ "group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": namespace }]);
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1beta1",
        "kind": "ReferenceGrant",
        "metadata": settings.metadata(),
        "spec": { "from": from, "to": [{ "group": "", "kind": "Service", "name": settings.name }] },
    })
}

/// A StatefulSet of one pod.
fn stateful_set(settings: &FleetSettings, pod: Value) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": settings.metadata(),
        "spec": {
            "serviceName": settings.name,
            // A node alone keeps its state by itself: two of them would be two fleets.
            "replicas": 1,
            "selector": { "matchLabels": settings.labels() },
            "template": { "metadata": { "labels": settings.labels() }, "spec": pod },
            "volumeClaimTemplates": [{
                "metadata": { "name": "data" },
                "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": settings.storage } } },
            }],
        },
    })
}
