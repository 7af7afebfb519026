//! The operator's rights: those that it uses, which a test reads from the API server's audit log.

use serde_json::{Value, json};

use super::{labels, named};
use crate::api::{GROUP, spokes::CONVERTED};

/// The rights in all namespaces. The operator reads no Secret and no pod, and deletes autoscalers alone.
#[must_use]
pub fn rules() -> Value {
    json!([
        { "apiGroups": [GROUP], "resources": ["clopsdeployments"], "verbs": ["list", "watch"] },
        { "apiGroups": [GROUP], "resources": ["modeldeployments"], "verbs": ["get", "list", "watch", "create", "patch"] },
        { "apiGroups": [GROUP], "resources": ["clopsdeployments/status", "modeldeployments/status"], "verbs": ["patch"] },
        // A cluster that checks who may block a deletion asks for these.
        { "apiGroups": [GROUP], "resources": ["clopsdeployments/finalizers", "modeldeployments/finalizers"], "verbs": ["update"] },
        { "apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "list", "watch", "create", "patch"] },
        // ConfigMaps hold the configuration of executors.
        { "apiGroups": [""], "resources": ["services", "configmaps"], "verbs": ["get", "list", "watch", "create", "patch"] },
        { "apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": ["get", "list", "watch", "create", "patch"] },
        // One that a spec no longer asks for would go on changing the number of pods.
        { "apiGroups": ["autoscaling"], "resources": ["horizontalpodautoscalers"], "verbs": ["get", "list", "watch", "create", "patch", "delete"] },
        { "apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"] },
        // For the certificate of its own webhook: where objects are admitted, and where they are converted.
        { "apiGroups": ["admissionregistration.k8s.io"], "resources": ["validatingwebhookconfigurations"], "resourceNames": ["berth-operator"], "verbs": ["get", "update"] },
        { "apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "resourceNames": CONVERTED, "verbs": ["get", "patch"] },
    ])
}

/// The rights in the operator's own namespace: its Lease. A name cannot limit what is created.
fn own_rules() -> Value {
    json!([
        { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"] },
        { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["berth-operator"], "verbs": ["get", "update"] },
    ])
}

pub(super) fn objects(namespace: &str) -> Vec<Value> {
    let subjects = json!([{ "kind": "ServiceAccount", "name": "berth-operator", "namespace": namespace }]);
    let api = "rbac.authorization.k8s.io/v1";
    let reference =
        |kind: &str| json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "berth-operator" });
    let cluster = json!({ "name": "berth-operator", "labels": labels() });
    vec![
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": named(namespace) }),
        json!({ "apiVersion": api, "kind": "ClusterRole", "metadata": cluster, "rules": rules() }),
        json!({ "apiVersion": api, "kind": "ClusterRoleBinding", "metadata": cluster, "roleRef": reference("ClusterRole"), "subjects": subjects }),
        json!({ "apiVersion": api, "kind": "Role", "metadata": named(namespace), "rules": own_rules() }),
        json!({ "apiVersion": api, "kind": "RoleBinding", "metadata": named(namespace), "roleRef": reference("Role"), "subjects": subjects }),
    ]
}
