//! The registration of the operator's webhook. Operators put their certificates into it.

use serde_json::{Value, json};

use super::{Settings, labels};
use crate::api::GROUP;

pub(super) fn configuration(settings: &Settings) -> Value {
    let mut configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": "berth-operator", "labels": labels() },
        "webhooks": [{
            "name": "models.berth.dev",
            "clientConfig": {
                "service": { "name": "berth-operator", "namespace": settings.namespace, "path": "/admit", "port": 443 },
            },
            "rules": [{
                "apiGroups": [GROUP],
                "apiVersions": ["*"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["clopsdeployments", "modeldeployments", "asyncapis"],
                "scope": "Namespaced",
            }],
            "failurePolicy": settings.webhook_failure.text(),
            "matchPolicy": "Equivalent",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 10,
        }],
    });
    if let Some(namespace) = &settings.watch {
        // Of objects elsewhere it knows nothing. API servers set this label by themselves (Kubernetes 1.21).
        let labels = json!({ "kubernetes.io/metadata.name": namespace });
        configuration["webhooks"][0]["namespaceSelector"] = json!({ "matchLabels": labels });
    }
    configuration
}
