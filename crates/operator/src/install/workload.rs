//! The operator's own Deployment, and what a cluster knows about it.

use serde_json::{Value, json};

use super::{PORT, Settings, WEBHOOK_PORT, labels, named};
use crate::render::{EXECUTOR_PORT, MANAGED_BY, SELECTOR};

/// The folder of the webhook's key.
const KEYS: &str = "/webhook";

pub(super) fn deployment(settings: &Settings) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": named(&settings.namespace),
        "spec": {
            "replicas": settings.replicas,
            "selector": { "matchLabels": labels() },
            "template": { "metadata": { "labels": labels() }, "spec": pod(settings) },
        },
    })
}

fn pod(settings: &Settings) -> Value {
    json!({
        "serviceAccountName": "berth-operator",
        "securityContext": { "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": { "type": "RuntimeDefault" } },
        // A node that fails takes one operator along; never a reason not to start.
        "topologySpreadConstraints": [{
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": { "matchLabels": labels() },
        }],
        "containers": [container(settings)],
        // The webhook's key: it outlives a container, not a pod.
        "volumes": [{ "name": "webhook", "emptyDir": { "medium": "Memory" } }],
    })
}

fn container(settings: &Settings) -> Value {
    let image = &settings.image;
    let field = |path: &str| json!({ "fieldRef": { "fieldPath": path } });
    let probe = |path: &str| json!({ "httpGet": { "path": path, "port": "metrics" } });
    json!({
        "name": "operator",
        "image": image,
        "command": ["berth"],
        "args": ["operator", "run"],
        "env": [
            // For init containers and executors: the same.
            { "name": "BERTH_OPERATOR_IMAGE", "value": image },
            { "name": "BERTH_OPERATOR_EXECUTOR_IMAGE", "value": settings.executor_image.as_deref().unwrap_or_default() },
            { "name": "BERTH_OPERATOR_SIDECARS", "value": settings.sidecars },
            // Empty: all.
            { "name": "BERTH_OPERATOR_WATCH_NAMESPACE", "value": settings.watch.as_deref().unwrap_or_default() },
            { "name": "BERTH_OPERATOR_NAMESPACE", "valueFrom": field("metadata.namespace") },
            { "name": "BERTH_OPERATOR_IDENTITY", "valueFrom": field("metadata.name") },
            { "name": "BERTH_OPERATOR_LISTEN", "value": format!("0.0.0.0:{PORT}") },
            { "name": "BERTH_OPERATOR_WEBHOOK_LISTEN", "value": format!("0.0.0.0:{WEBHOOK_PORT}") },
            { "name": "BERTH_OPERATOR_WEBHOOK_FOLDER", "value": format!("{KEYS}/own") },
        ],
        "ports": [
            { "name": "metrics", "containerPort": PORT, "protocol": "TCP" },
            { "name": "webhook", "containerPort": WEBHOOK_PORT, "protocol": "TCP" },
        ],
        "volumeMounts": [{ "name": "webhook", "mountPath": KEYS }],
        "livenessProbe": probe("/livez"),
        "readinessProbe": probe("/readyz"),
        "resources": { "requests": { "cpu": "50m", "memory": "64Mi" }, "limits": { "memory": "512Mi" } },
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"] },
            "readOnlyRootFilesystem": true,
        },
    })
}

pub(super) fn service(namespace: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": named(namespace),
        "spec": {
            "selector": labels(),
            "ports": [
                { "name": "metrics", "port": PORT, "targetPort": "metrics", "protocol": "TCP" },
                { "name": "webhook", "port": 443, "targetPort": "webhook", "protocol": "TCP" },
            ],
        },
    })
}

pub(super) fn disruption_budget(namespace: &str) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": named(namespace),
        "spec": { "minAvailable": 1, "selector": { "matchLabels": labels() } },
    })
}

pub(super) fn service_monitor(namespace: &str) -> Value {
    json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": named(namespace),
        "spec": { "selector": { "matchLabels": labels() }, "endpoints": [{ "port": "metrics" }] },
    })
}

/// Executors in the pods of all models. No Service leads to their metrics.
pub(super) fn pod_monitor(namespace: &str) -> Value {
    let mut metadata = named(namespace);
    metadata["name"] = json!("berth-executors");
    json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": metadata,
        "spec": {
            "namespaceSelector": { "any": true },
            "selector": { "matchLabels": { MANAGED_BY.0: MANAGED_BY.1 } },
            "podTargetLabels": [SELECTOR],
            "podMetricsEndpoints": [{ "port": EXECUTOR_PORT }],
        },
    })
}
