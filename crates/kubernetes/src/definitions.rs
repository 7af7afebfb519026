//! Custom resources of KServe and ModelMesh for clusters that have none: what people write is kept as it is, and read by the fleet.
//!
//! Their schemas say nothing about fields. KServe's own are stricter; where these are installed they are used.

use serde_json::{Value, json};

use crate::kind::Kind;

/// The definitions, as a cluster is given them.
#[must_use]
pub fn kserve_definitions() -> Vec<Value> {
    Kind::ALL.into_iter().filter(|kind| kind.is_of_kserve()).map(definition).collect()
}

fn definition(kind: Kind) -> Value {
    let (group, version) = kind.group_version();
    let open = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let mut served = json!({
        "name": version,
        "served": true,
        "storage": true,
        "schema": { "openAPIV3Schema": { "type": "object", "properties": { "spec": open, "status": open } } },
        "additionalPrinterColumns": columns(kind),
    });
    if kind.is_model() {
        served["subresources"] = json!({ "status": {} });
    }
    let plural = kind.plural();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": {
            "group": group,
            "names": {
                "kind": kind.name(),
                "listKind": format!("{}List", kind.name()),
                "plural": plural,
                "singular": plural.trim_end_matches('s'),
                "shortNames": short_names(kind),
            },
            "scope": if kind == Kind::ClusterServingRuntime { "Cluster" } else { "Namespaced" },
            "versions": [served],
        },
    })
}

fn short_names(kind: Kind) -> Value {
    match kind {
        Kind::InferenceService => json!(["isvc"]),
        Kind::TrainedModel => json!(["tm"]),
        _ => json!([]),
    }
}

/// The columns of `kubectl get`, as KServe and ModelMesh have them.
fn columns(kind: Kind) -> Value {
    let ready = ("Ready", "string", r#".status.conditions[?(@.type=="Ready")].status"#);
    let url = ("URL", "string", ".status.url");
    let columns: &[(&str, &str, &str)] = match kind {
        Kind::Model | Kind::Route => &[],
        Kind::InferenceService => &[
            url,
            ready,
            ("Prev", "integer", ".status.components.predictor.traffic[?(@.tag=='prev')].percent"),
            ("Latest", "integer", ".status.components.predictor.traffic[?(@.latestRevision==true)].percent"),
        ],
        Kind::TrainedModel => &[url, ready],
        Kind::Predictor => &[
            ("Type", "string", ".spec.modelType.name"),
            ("Available", "boolean", ".status.available"),
            ("ActiveModel", "string", ".status.activeModelState"),
            ("TargetModel", "string", ".status.targetModelState"),
            ("Transition", "string", ".status.transitionStatus"),
        ],
        Kind::ServingRuntime | Kind::ClusterServingRuntime => {
            &[("Disabled", "boolean", ".spec.disabled"), ("ModelType", "string", ".spec.supportedModelFormats[*].name")]
        }
    };
    let age = ("Age", "date", ".metadata.creationTimestamp");
    let column = |(name, form, path): &(&str, &str, &str)| json!({ "name": name, "type": form, "jsonPath": path });
    columns.iter().chain([&age]).map(column).collect()
}
