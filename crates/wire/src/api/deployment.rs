//! A deployment: what was declared, and what is true of it.

use std::collections::BTreeMap;

use berth_spec::id::DEFAULT_NAMESPACE;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{FailureView, Kind, Timestamp};

/// A model deployment as the control API shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeploymentView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `ModelDeployment`.
    pub kind: String,
    /// Name, version and origin.
    pub metadata: DeploymentMetadata,
    /// Specification as written by the user.
    #[schema(value_type = Object)]
    pub spec: serde_json::Value,
    /// Phase, conditions and replicas now.
    #[serde(default)]
    pub status: DeploymentStatus,
}

impl Kind for DeploymentView {
    const KIND: &'static str = "ModelDeployment";
}

/// Name, version and origin.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentMetadata {
    /// Name under which clients call the model.
    pub name: String,
    /// Namespace that the name is unique in.
    pub namespace: String,
    /// Labels set by users.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations set by users.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The folder that relative locations in the spec start from, as a `file:` URI; absent where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_uri: Option<String>,
    /// Counts changes of the spec.
    pub generation: u64,
    /// Opaque; changes with every write. Send it back to make sure that nobody wrote in between.
    pub resource_version: String,
    /// Time of the first declaration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<Timestamp>,
    /// Source of the declaration: `api`, or `directory:` and the folder.
    pub origin: String,
    /// True while the deployment is deleted: its replicas drain first.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deleting: bool,
}

impl DeploymentMetadata {
    /// The written form of namespace and name: `iris`, `team/iris`, `default/a/b`.
    #[must_use]
    pub fn written(&self) -> String {
        match self.namespace.as_str() {
            "" | DEFAULT_NAMESPACE if !self.name.contains('/') => self.name.clone(),
            "" => format!("{DEFAULT_NAMESPACE}/{}", self.name),
            namespace => format!("{namespace}/{}", self.name),
        }
    }
}

/// Phase, conditions and replicas of a deployment, computed for each answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentStatus {
    /// In one word: `Progressing`, `Available`, `Degraded`, `Failed`, `ScheduleFailed`, `ScaledDown`, `Terminating`.
    pub phase: String,
    /// The generation that this status is of.
    pub observed_generation: u64,
    /// `Available`, `Progressing`, `Scheduled`, in this order.
    pub conditions: Vec<ConditionView>,
    /// Replicas that are wanted, and those that are ready.
    pub replicas: ReplicaCount,
    /// Desired and serving revision.
    pub revision: RevisionPair,
    /// Every replica, wanted or on its way out.
    pub replica_details: Vec<ReplicaDetail>,
    /// Time of the last request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_used: Option<Timestamp>,
}

/// One aspect of a status, in the form that Kubernetes users know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConditionView {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// One CamelCase word for machines.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
}

/// Numbers of replicas.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaCount {
    /// Replicas wanted now.
    pub desired: u32,
    /// Ready, of any revision that gets traffic.
    pub ready: u32,
}

/// Desired and serving revision.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RevisionPair {
    /// The one that the spec asks for.
    pub wanted: String,
    /// The one that answers requests, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serving: Option<String>,
}

/// One replica of a deployment, whatever its state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaDetail {
    /// Id of the revision.
    pub revision: String,
    /// Name of the worker.
    pub worker: String,
    /// `Assigned` (not yet reported), `Queued`, `Fetching`, `Preparing`, `Loading`, `Validating`, `Ready`,
    /// `Restarting` (it is loaded, and its process died), `Draining` or `Failed`.
    pub state: String,
    /// Bytes of memory: measured where it is ready, else what is set aside.
    pub memory: u64,
    /// True if `memory` was measured.
    pub measured: bool,
    /// Details: cause and remedy of a failure, time of the next attempt, requests still draining, or what the worker
    /// does while the replica is queued or prepared.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The load that failed, whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureView>,
    /// Download progress of the artifact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Requests that it was given since it was loaded; absent: its worker has not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Time of the last request, within about two seconds; absent if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_used: Option<Timestamp>,
}

/// Progress of fetching an artifact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Progress {
    /// Bytes that are here.
    pub done: u64,
    /// Bytes in all, once known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
}
