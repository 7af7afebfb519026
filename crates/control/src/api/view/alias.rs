//! Aliases and the state of their targets.

use berth_spec::alias::TargetStatus;
use berth_wire::api::{AliasStatus, AliasTarget, AliasView, DeploymentMetadata, Timestamp};

use super::{annotations, head};
use crate::handle;

/// The phase of a target that does not exist.
const MISSING: &str = "Missing";

/// Converts an alias.
pub(crate) fn alias(view: &handle::DeclaredAlias) -> AliasView {
    let (api_version, kind) = head::<AliasView>();
    let alias = &view.alias;
    let missing = view.targets.iter().filter(|target| target.phase.is_none());
    AliasView {
        api_version,
        kind,
        metadata: DeploymentMetadata {
            name: alias.name.name().to_owned(),
            namespace: alias.name.namespace().to_owned(),
            labels: alias.labels.clone(),
            annotations: annotations(&view.manifest),
            base_uri: None,
            generation: alias.generation.0,
            resource_version: view.rev.to_string(),
            creation_timestamp: Some(Timestamp(alias.created)),
            origin: alias.origin.to_string(),
            deleting: false,
        },
        spec: view.manifest.get("spec").cloned().unwrap_or_default(),
        status: AliasStatus {
            targets: view.targets.iter().map(target).collect(),
            missing: missing.map(|target| target.deployment.to_string()).collect(),
        },
    }
}

fn target(target: &TargetStatus) -> AliasTarget {
    AliasTarget {
        deployment: target.deployment.to_string(),
        weight: target.weight,
        share: target.share,
        phase: target.phase.map_or(MISSING, |phase| phase.as_str()).to_owned(),
    }
}
