//! The objects that a cluster is given: custom resources, and an operator with the rights that it uses.

use serde_json::{Value, json};

use crate::api::{GROUP, definitions};

/// The custom resources, as documents.
#[must_use]
pub fn custom_resources() -> Vec<Value> {
    definitions().into_iter().filter_map(|definition| serde_json::to_value(definition).ok()).collect()
}

/// Everything for an operator in `namespace`: custom resources, service account, rights, Deployment.
#[must_use]
pub fn everything(namespace: &str, image: &str) -> Vec<Value> {
    let mut objects = custom_resources();
    objects.push(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } }));
    objects.push(json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": named(namespace) }));
    objects.extend(rights(namespace));
    objects.push(operator(namespace, image));
    objects
}

fn named(namespace: &str) -> Value {
    json!({ "name": "berth-operator", "namespace": namespace, "labels": { "app.kubernetes.io/name": "berth-operator" } })
}

/// The rights of the operator, and no more: it reads no Secret and no pod.
#[must_use]
pub fn rules() -> Value {
    json!([
        { "apiGroups": [GROUP], "resources": ["clopsdeployments"], "verbs": ["get", "list", "watch"] },
        { "apiGroups": [GROUP], "resources": ["modeldeployments"], "verbs": ["get", "list", "watch", "create", "patch"] },
        { "apiGroups": [GROUP], "resources": ["clopsdeployments/status", "modeldeployments/status"], "verbs": ["patch"] },
        // A cluster that checks who may block a deletion asks for these.
        { "apiGroups": [GROUP], "resources": ["clopsdeployments/finalizers", "modeldeployments/finalizers"], "verbs": ["update"] },
        { "apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "list", "watch", "create", "patch"] },
        { "apiGroups": [""], "resources": ["services"], "verbs": ["get", "list", "watch", "create", "patch"] },
        { "apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"] },
    ])
}

fn rights(namespace: &str) -> Vec<Value> {
    let subjects = json!([{ "kind": "ServiceAccount", "name": "berth-operator", "namespace": namespace }]);
    let api = "rbac.authorization.k8s.io/v1";
    let reference =
        |kind: &str| json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "berth-operator" });
    let leases = json!([{ "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"] }]);
    let cluster = json!({ "name": "berth-operator", "labels": { "app.kubernetes.io/name": "berth-operator" } });
    vec![
        json!({ "apiVersion": api, "kind": "ClusterRole", "metadata": cluster, "rules": rules() }),
        json!({ "apiVersion": api, "kind": "ClusterRoleBinding", "metadata": cluster, "roleRef": reference("ClusterRole"), "subjects": subjects }),
        json!({ "apiVersion": api, "kind": "Role", "metadata": named(namespace), "rules": leases }),
        json!({ "apiVersion": api, "kind": "RoleBinding", "metadata": named(namespace), "roleRef": reference("Role"), "subjects": subjects }),
    ]
}

fn operator(namespace: &str, image: &str) -> Value {
    let labels = json!({ "app.kubernetes.io/name": "berth-operator" });
    let field = |path: &str| json!({ "fieldRef": { "fieldPath": path } });
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": named(namespace),
        "spec": {
            "replicas": 1,
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "serviceAccountName": "berth-operator",
                    "securityContext": { "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": { "type": "RuntimeDefault" } },
                    "containers": [{
                        "name": "operator",
                        "image": image,
                        "command": ["berth"],
                        "args": ["operator", "run", "--image", image],
                        "env": [
                            { "name": "BERTH_OPERATOR_NAMESPACE", "valueFrom": field("metadata.namespace") },
                            { "name": "BERTH_OPERATOR_IDENTITY", "valueFrom": field("metadata.name") },
                        ],
                        "resources": { "requests": { "cpu": "50m", "memory": "64Mi" }, "limits": { "memory": "512Mi" } },
                        "securityContext": {
                            "allowPrivilegeEscalation": false,
                            "capabilities": { "drop": ["ALL"] },
                            "readOnlyRootFilesystem": true,
                        },
                    }],
                },
            },
        },
    })
}
