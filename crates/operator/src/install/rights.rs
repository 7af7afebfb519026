//! The operator's rights: those that it uses, which a test reads from the API server's audit log.

use serde_json::{Value, json};

use super::{Settings, labels, named};
use crate::{
    api::{GROUP, spokes::CONVERTED},
    render::PICKER_ROLE,
};

/// The role of an operator in the only namespace that it looks at.
const WATCHED: &str = "berth-operator-models";

/// The rights of an operator of all namespaces.
#[must_use]
pub fn rules() -> Value {
    let both = [model_rules(), certificate_rules()];
    both.iter().filter_map(Value::as_array).flatten().cloned().collect()
}

/// The rights where models are. The operator reads no Secret and no pod, and deletes nothing but autoscalers, pools, routes and
/// `AsyncAPI`s.
fn model_rules() -> Value {
    json!([
        { "apiGroups": [GROUP], "resources": ["clopsdeployments"], "verbs": ["list", "watch"] },
        { "apiGroups": [GROUP], "resources": ["modeldeployments"], "verbs": ["get", "list", "watch", "create", "patch"] },
        // One that a port no longer has would go on telling people that it takes their requests.
        { "apiGroups": [GROUP], "resources": ["asyncapis"], "verbs": ["get", "list", "watch", "create", "patch", "delete"] },
        { "apiGroups": [GROUP], "resources": ["clopsdeployments/status", "modeldeployments/status", "asyncapis/status"], "verbs": ["patch"] },
        // A cluster that checks who may block a deletion asks for these.
        { "apiGroups": [GROUP], "resources": ["clopsdeployments/finalizers", "modeldeployments/finalizers"], "verbs": ["update"] },
        { "apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "list", "watch", "create", "patch"] },
        // ConfigMaps hold the configuration of executors.
        { "apiGroups": [""], "resources": ["services", "configmaps"], "verbs": ["get", "list", "watch", "create", "patch"] },
        { "apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": ["get", "list", "watch", "create", "patch"] },
        // One that a spec no longer asks for would go on changing the number of pods.
        { "apiGroups": ["autoscaling"], "resources": ["horizontalpodautoscalers"], "verbs": ["get", "list", "watch", "create", "patch", "delete"] },
        // Gateways would go on sending requests to a pool, and by a route, that a spec no longer asks for.
        { "apiGroups": ["inference.networking.k8s.io"], "resources": ["inferencepools"], "verbs": ["get", "list", "watch", "create", "patch", "delete"] },
        { "apiGroups": ["gateway.networking.k8s.io"], "resources": ["httproutes"], "verbs": ["get", "list", "watch", "create", "patch", "delete"] },
        // An endpoint picker sees the pods of its namespace: the operator, which sees none, may give it this role.
        { "apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["get", "list", "watch", "create", "patch"] },
        { "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["rolebindings"], "verbs": ["get", "list", "watch", "create", "patch"] },
        { "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "resourceNames": [PICKER_ROLE], "verbs": ["bind"] },
        { "apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"] },
    ])
}

/// The rights for the certificate of its own webhook: where objects are admitted, and where they are converted. These are in no namespace.
fn certificate_rules() -> Value {
    json!([
        { "apiGroups": ["admissionregistration.k8s.io"], "resources": ["validatingwebhookconfigurations"], "resourceNames": ["berth-operator"], "verbs": ["get", "update"] },
        { "apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "resourceNames": CONVERTED, "verbs": ["get", "patch"] },
    ])
}

/// The right to see its own Deployment, which the Lease goes with.
fn owner_rule() -> Value {
    json!({ "apiGroups": ["apps"], "resources": ["deployments"], "resourceNames": ["berth-operator"], "verbs": ["get"] })
}

/// The rights in the operator's own namespace: its Lease. A name cannot limit what is created.
fn own_rules() -> Value {
    json!([
        { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"] },
        { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["berth-operator"], "verbs": ["get", "update"] },
    ])
}

/// The rights of an endpoint picker in its namespace.
#[must_use]
pub fn picker_rules() -> Value {
    json!([{ "apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"] }])
}

/// A service account, and roles with their bindings. An operator of one namespace has its rights there: only what is in no namespace is
/// in the cluster's role.
pub(super) fn objects(settings: &Settings) -> Vec<Value> {
    let namespace = settings.namespace.as_str();
    let subjects = json!([{ "kind": "ServiceAccount", "name": "berth-operator", "namespace": namespace }]);
    let api = "rbac.authorization.k8s.io/v1";
    let reference =
        |kind: &str, name: &str| json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name });
    let cluster = json!({ "name": "berth-operator", "labels": labels() });
    let picker = json!({ "name": PICKER_ROLE, "labels": labels() });
    let everywhere = if settings.watch.is_some() { certificate_rules() } else { rules() };
    let mut here = own_rules();
    if let (Some(_), Some(here)) = (&settings.watch, here.as_array_mut()) {
        here.push(owner_rule());
    }
    let mut objects = vec![
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": named(namespace) }),
        json!({ "apiVersion": api, "kind": "ClusterRole", "metadata": cluster, "rules": everywhere }),
        json!({ "apiVersion": api, "kind": "ClusterRole", "metadata": picker, "rules": picker_rules() }),
        json!({ "apiVersion": api, "kind": "ClusterRoleBinding", "metadata": cluster, "roleRef": reference("ClusterRole", "berth-operator"), "subjects": subjects }),
        json!({ "apiVersion": api, "kind": "Role", "metadata": named(namespace), "rules": here }),
        json!({ "apiVersion": api, "kind": "RoleBinding", "metadata": named(namespace), "roleRef": reference("Role", "berth-operator"), "subjects": subjects }),
    ];
    if let Some(watched) = &settings.watch {
        // Another name: the operator may be in the same namespace.
        let metadata = json!({ "name": WATCHED, "namespace": watched, "labels": labels() });
        objects.extend([
            json!({ "apiVersion": api, "kind": "Role", "metadata": metadata, "rules": model_rules() }),
            json!({ "apiVersion": api, "kind": "RoleBinding", "metadata": metadata, "roleRef": reference("Role", WATCHED), "subjects": subjects }),
        ]);
    }
    objects
}
