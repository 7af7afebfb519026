//! An alias: a name that leads to deployments, and the state of each.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{DeploymentMetadata, Kind};

/// An alias as the control API shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AliasView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `Alias`.
    pub kind: String,
    /// Name, version and origin.
    pub metadata: DeploymentMetadata,
    /// Specification as written by the user.
    #[schema(value_type = Object)]
    pub spec: serde_json::Value,
    /// Share and phase of each target now.
    #[serde(default)]
    pub status: AliasStatus,
}

impl Kind for AliasView {
    const KIND: &'static str = "Alias";
}

/// Share and phase of each target of an alias.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AliasStatus {
    /// Each target, in declared order.
    pub targets: Vec<AliasTarget>,
    /// Targets that get no requests because there is no such deployment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// One target of an alias and its share now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AliasTarget {
    /// Name of the deployment.
    pub deployment: String,
    /// Weight as declared, compared with those of the other targets.
    pub weight: u32,
    /// Its share of the requests now, in percent.
    pub share: u32,
    /// The phase of the deployment: `Available`, `ScaledDown`, …, or `Missing` where there is none of that name.
    pub phase: String,
}
