//! From a registry's manifest to the one that the rest of Berth reads.

use berth_spec::{
    card::PinnedCard,
    manifest::{self, ParseContext},
};
use serde_json::{Map, Value, json};

use crate::DesiredDeployment;

/// How long requests that are being answered have when a replica leaves, as the registry's document says. Halved, slow
/// models lose requests; doubled, what is disabled in an emergency holds its memory that much longer.
const DRAIN: &str = "60s";

/// The manifest (`apiVersion: berth.dev/v1`) of a deployment of a registry. `commit` is the registry's.
#[must_use]
pub fn to_manifest(deployment: &DesiredDeployment, commit: Option<&str>) -> Value {
    let DesiredDeployment { manifest, card, .. } = deployment;
    let config = &manifest.deployment_config;
    let mut spec = json!({
        "model": {"format": "python", "card": pinned(deployment)},
        "replicas": manifest.wanted(),
        "priority": config.priority,
        "selector": {"required": manifest.required_labels()},
        "rollout": {"drainTimeout": DRAIN},
    });
    if let Some(resources) = resources(card) {
        spec["resources"] = resources;
    }
    if let Some(endpoint) = &config.endpoint {
        spec["endpoint"] = endpoint.as_str().into();
    }
    json!({
        "apiVersion": "berth.dev/v1",
        "kind": "ModelDeployment",
        "metadata": {
            "name": deployment.id,
            "labels": {
                "environment": deployment.environment.as_str(),
                "region": config.region,
                "model": card.metadata.name,
                "version": card.metadata.version,
            },
            "annotations": annotations(deployment, commit),
        },
        "spec": spec,
    })
}

/// Whether [`to_manifest`] gives what the rest of Berth takes: what is wrong, in words of the hub.
pub(crate) fn check(deployment: &DesiredDeployment) -> Vec<(String, String, String)> {
    match manifest::from_value(&to_manifest(deployment, None), &ParseContext::default()) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.into_iter().map(|error| (error.path, error.message, error.remedy)).collect(),
    }
}

fn pinned(deployment: &DesiredDeployment) -> Value {
    let pinned = PinnedCard {
        card: (*deployment.card).clone(),
        repository: deployment.manifest.model_card_ref.repository.clone(),
        reference: deployment.manifest.model_card_ref.reference.clone(),
        commit: deployment.card_commit.to_string(),
        code_commit: deployment.code_commit.to_string(),
    };
    serde_json::to_value(pinned).expect("a card came from JSON")
}

fn resources(card: &berth_spec::ModelCard) -> Option<Value> {
    let needs = card.resources.as_ref()?;
    let mut found = Map::new();
    // The card's f32 as people wrote it: 0.1, not 0.10000000149.
    let cpu: f64 = needs.cpu.to_string().parse().unwrap_or_default();
    found.insert("cpu".to_owned(), cpu.into());
    if let Some(memory) = needs.memory_bytes() {
        found.insert("memory".to_owned(), memory.0.into());
    }
    if let Some(count) = needs.gpu.filter(|count| *count > 0) {
        let mut gpu = json!({"count": count});
        if let Some(kind) = &needs.gpu_type {
            gpu["kind"] = kind.as_str().into();
        }
        found.insert("gpu".to_owned(), gpu);
    }
    Some(found.into())
}

/// Where it came from, for people and for write-back.
fn annotations(deployment: &DesiredDeployment, commit: Option<&str>) -> Value {
    let manifest = &deployment.manifest;
    let mut found = Map::new();
    let mut note = |name: &str, value: Option<&str>| {
        if let Some(value) = value {
            found.insert(format!("registry.berth.dev/{name}"), value.into());
        }
    };
    note("commit", commit);
    note("path", Some(&deployment.path));
    note(
        "card",
        Some(&format!(
            "{}@{}:{}",
            manifest.model_card_ref.repository, manifest.model_card_ref.reference, manifest.model_card_ref.path
        )),
    );
    note("enabled", Some(if manifest.enabled { "true" } else { "false" }));
    note("owner", manifest.metadata.owner.as_deref());
    note("deployed-at", manifest.metadata.deployed_at.as_deref());
    note("deployed-by", manifest.metadata.deployed_by.as_deref());
    note("model-owner", Some(&deployment.card.metadata.owner));
    found.into()
}
