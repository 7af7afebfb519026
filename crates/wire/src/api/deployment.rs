//! A deployment: what was declared, and what is true of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{FailureView, Kind, Timestamp};

/// A deployment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeploymentView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `ModelDeployment`.
    pub kind: String,
    /// Name, version, origin.
    pub metadata: DeploymentMetadata,
    /// What was declared, as it was written.
    #[schema(value_type = Object)]
    pub spec: serde_json::Value,
    /// What is true.
    #[serde(default)]
    pub status: DeploymentStatus,
}

impl Kind for DeploymentView {
    const KIND: &'static str = "ModelDeployment";
}

/// Name, version, origin.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentMetadata {
    /// What clients call the model.
    pub name: String,
    /// Free labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Free annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Counts changes of the spec.
    pub generation: u64,
    /// Opaque; changes with every write. Send it back to make sure that nobody wrote in between.
    pub resource_version: String,
    /// When it was declared first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<Timestamp>,
    /// Who declared it: `api`, or `directory:` and the folder.
    pub origin: String,
    /// It is going away: replicas drain, then it is forgotten.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deleting: bool,
}

/// What is true of a deployment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentStatus {
    /// In one word: `Progressing`, `Available`, `Degraded`, `Failed`, `ScheduleFailed`, `ScaledDown`, `Terminating`.
    pub phase: String,
    /// The generation that this speaks of.
    pub observed_generation: u64,
    /// `Available`, `Progressing`, `Scheduled`, in this order.
    pub conditions: Vec<ConditionView>,
    /// Replicas in numbers.
    pub replicas: ReplicaCount,
    /// Which revision is wanted, which serves.
    pub revision: RevisionPair,
    /// Every replica, wanted or on its way out.
    pub replica_details: Vec<ReplicaDetail>,
    /// When a request last came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_used: Option<Timestamp>,
}

/// One aspect of a status, in the form that Kubernetes users know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConditionView {
    /// Which aspect.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// One CamelCase word for machines.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
}

/// Replicas in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaCount {
    /// Wanted now.
    pub desired: u32,
    /// Ready, of any revision that gets traffic.
    pub ready: u32,
}

/// Which revision is wanted, which serves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RevisionPair {
    /// The one that the spec asks for.
    pub wanted: String,
    /// The one that answers requests, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serving: Option<String>,
}

/// One replica of a deployment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaDetail {
    /// Which revision.
    pub revision: String,
    /// Where.
    pub worker: String,
    /// `Assigned` (not yet reported), `Queued`, `Fetching`, `Preparing`, `Loading`, `Validating`, `Ready`,
    /// `Restarting` (it is loaded, and its process died), `Draining` or `Failed`.
    pub state: String,
    /// Bytes of memory: measured where it is ready, else what is set aside.
    pub memory: u64,
    /// Whether `memory` was measured.
    pub measured: bool,
    /// What is worth knowing: why it failed and what to do, when it is tried again, how many requests it still drains,
    /// what its worker does while it is queued.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The load that failed, whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureView>,
    /// How far the artifact is, while it is fetched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Requests that it was given since it was loaded; absent: its worker has not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// When one was last seen, within about two seconds; absent: there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_used: Option<Timestamp>,
}

/// How far an artifact is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Progress {
    /// Bytes that are here.
    pub done: u64,
    /// Bytes in all, once known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
}
