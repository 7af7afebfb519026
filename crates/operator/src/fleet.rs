//! Models that a fleet serves: `spec.fleet` in the place of a container. Berth's workers hold them, many in a pod; the source `kubernetes` of
//! a fleet follows them and writes their status.

use std::collections::BTreeMap;

use berth_spec::{
    Namespace,
    manifest::{ManifestDeployment, ManifestError, ParseContext, from_value},
};
use kube::core::ObjectMeta;
use serde_json::{Value, json};

use crate::{
    api::{ModelDeployment, ModelDeploymentSpec},
    render::DIGEST,
};

/// The note that `kubectl apply` keeps for itself.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The manifest of Berth that `spec.fleet` is.
///
/// # Errors
/// The fields that are wrong, with paths of the object and what to do.
pub fn manifest(metadata: &ObjectMeta, fleet: &Value) -> Result<ManifestDeployment, String> {
    let context = context(metadata);
    // `fleet` is the hub version's `spec` as somebody wrote it: it is read, and its mistakes are told, as in a file.
    let manifest = json!({
        "apiVersion": "berth.dev/v1",
        "kind": "ModelDeployment",
        "metadata": {
            "name": metadata.name,
            "namespace": context.namespace.as_str(),
            "labels": metadata.labels.clone().unwrap_or_default(),
            "annotations": annotations(metadata),
        },
        "spec": fleet,
    });
    from_value(&manifest, &context).map_err(|errors| {
        let below = |mut error: ManifestError| {
            if let Some(rest) = error.path.strip_prefix("spec") {
                error.path = format!("spec.fleet{rest}");
            }
            error
        };
        join_errors(errors.into_iter().map(below))
    })
}

/// The annotations of an object, without those that tools keep for themselves.
#[must_use]
pub fn annotations(metadata: &ObjectMeta) -> BTreeMap<String, String> {
    let mut annotations = metadata.annotations.clone().unwrap_or_default();
    annotations.retain(|name, _| name != LAST_APPLIED && name != DIGEST);
    annotations
}

/// The context that an object is read in: the namespace is its own.
#[must_use]
pub fn context(metadata: &ObjectMeta) -> ParseContext {
    let namespace = metadata.namespace.as_deref().and_then(|name| Namespace::new(name).ok()).unwrap_or_default();
    ParseContext { namespace, ..ParseContext::default() }
}

/// Errors in one line.
#[must_use]
pub fn join_errors(errors: impl IntoIterator<Item = ManifestError>) -> String {
    let one = |ManifestError { path, message, remedy, .. }: ManifestError| {
        let path = if path.is_empty() { path } else { format!("{path}: ") };
        let remedy = if remedy.is_empty() { remedy } else { format!("; {remedy}") };
        format!("{path}{message}{remedy}")
    };
    errors.into_iter().map(one).collect::<Vec<_>>().join(". ")
}

/// The first rule that a model of a fleet breaks.
pub(crate) fn check(model: &ModelDeployment, fleet: &Value) -> Result<(), String> {
    let alone = ModelDeploymentSpec { fleet: model.spec.fleet.clone(), ..ModelDeploymentSpec::default() };
    if model.spec != alone {
        return Err("spec.fleet: a model of a fleet has no pods of its own: leave out container and all other fields"
            .to_owned());
    }
    // A name is checked where the fleet reads it; in a review it may still be missing.
    manifest(&model.metadata, fleet).map(drop)
}
