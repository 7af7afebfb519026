//! From a deployment of a commit to the hub version of a manifest ([`berth_spec::dialect::registry_v3`]).

use std::sync::Arc;

use berth_spec::{
    PinnedCard,
    dialect::{ConversionError, registry_v3::Declaration},
    manifest::{ManifestDeployment, ParseContext, raw::RawDeployment},
};

use crate::DesiredDeployment;

/// The hub version of a deployment. `commit` is the registry's.
///
/// # Errors
/// The fields that the hub does not take; none for a deployment of a commit that passed.
pub fn to_hub(deployment: &DesiredDeployment, commit: Option<&str>) -> Result<RawDeployment, Vec<ConversionError>> {
    declaration(deployment, commit).to_hub()
}

fn declaration(deployment: &DesiredDeployment, commit: Option<&str>) -> Declaration {
    let reference = &deployment.manifest.model_card_ref;
    Declaration {
        manifest: Arc::clone(&deployment.manifest),
        card: Arc::new(PinnedCard {
            card: (*deployment.card).clone(),
            repository: reference.repository.clone(),
            reference: reference.reference.clone(),
            commit: deployment.card_commit.to_string(),
            code_commit: deployment.code_commit.to_string(),
        }),
        environment: deployment.environment.as_str().to_owned(),
        path: deployment.path.clone(),
        commit: commit.map(str::to_owned),
    }
}

/// The reasons why the rest of Berth would not take a deployment: a JSON pointer into the registry's manifest, the
/// message and the remedy.
pub(crate) fn check(deployment: &DesiredDeployment) -> Vec<(String, String, String)> {
    let document = match to_hub(deployment, None) {
        Ok(document) => document,
        Err(errors) => {
            let pointer = |path: &str| format!("/{}", path.replace('.', "/"));
            return errors.into_iter().map(|error| (pointer(&error.path), error.message, error.remedy)).collect();
        }
    };
    let Err(errors) = ManifestDeployment::of(document, &ParseContext::default()) else { return Vec::new() };
    errors.into_iter().map(|error| (pointer_of(&error.path).to_owned(), error.message, error.remedy)).collect()
}

/// The field of the registry's manifest that a field of the hub comes from.
fn pointer_of(path: &str) -> &'static str {
    match path {
        "spec.endpoint" => "/deployment_config/endpoint",
        "spec.replicas" | "spec.replicas.max" => "/deployment_config/replicas",
        "spec.replicas.min" => "/berth/minReplicas",
        "spec.replicas.regions" => "/berth/regions",
        "spec.idleAfter" => "/berth/idleAfter",
        path if path.starts_with("spec.rollout") => "/berth/rollout",
        path if path.starts_with("spec.selector") => "/deployment_config/worker_selector",
        path if path.starts_with("spec.model") => "/model_card_ref/ref",
        path if OF_BLOCK.iter().any(|field| path.starts_with(field)) => "/berth",
        _ => "/id",
    }
}

/// Fields of the hub that the block `berth` names, and nothing else.
const OF_BLOCK: [&str; 7] = [
    "spec.scaling",
    "spec.placement",
    "spec.warmup",
    "spec.timeout",
    "spec.concurrency",
    "spec.limits",
    "spec.batching",
];
