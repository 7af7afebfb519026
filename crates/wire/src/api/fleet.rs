//! Workers, replicas and revisions.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Kind, Metadata, Progress, Timestamp};

/// A worker as the control API shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `Worker`.
    pub kind: String,
    /// Name and labels.
    pub metadata: Metadata,
    /// Settings made by operators.
    pub spec: WorkerSpec,
    /// Reachability, memory and models now.
    pub status: WorkerStatus,
}

impl Kind for WorkerView {
    const KIND: &'static str = "Worker";
}

/// Settings of a worker made by operators.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkerSpec {
    /// Gets no new replica.
    pub cordoned: bool,
}

/// Reachability, memory and models of a worker.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkerStatus {
    /// `Joining` (attached, has not reported yet), `Ready`, `Detached` (it answers, but the leader cannot reach it) or `Lost`.
    pub state: String,
    /// The worker's version of Berth.
    pub version: String,
    /// Start of the process, as a number.
    pub incarnation: u64,
    /// Number of CPU cores.
    pub cpus: f32,
    /// Model formats that it has a runtime for.
    pub formats: Vec<String>,
    /// Memory for models, in bytes.
    pub memory: Memory,
    /// Replicas that it holds or should hold.
    pub replicas: u32,
    /// Replicas of these that are ready.
    pub ready: u32,
    /// Their revisions, by name.
    pub models: Vec<String>,
}

/// Memory for models, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Memory {
    /// All that models may take.
    pub total: u64,
    /// Set aside for replicas.
    pub used: u64,
    /// Kept free for what the worker's process takes beside its models.
    pub overhead: u64,
    /// Left of the total without both: replicas can claim it.
    pub free: u64,
}

/// A replica: one revision on one worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `Replica`.
    pub kind: String,
    /// Named by revision and worker: `iris@3f2a9c41d07b/node-1`.
    pub metadata: Metadata,
    /// State and memory now.
    pub status: ReplicaState,
}

impl Kind for ReplicaView {
    const KIND: &'static str = "Replica";
}

/// State and memory of a replica.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaState {
    /// Name of the deployment.
    pub deployment: String,
    /// Id of the revision.
    pub revision: String,
    /// The version name that clients see; empty for one that is on its way out.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Name of the worker.
    pub worker: String,
    /// As in a deployment's `replicaDetails`.
    pub state: String,
    /// Memory in bytes: measured where it is ready, else what is set aside.
    pub memory: u64,
    /// True if `memory` was measured.
    pub measured: bool,
    /// Details for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Download progress of the artifact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Time at which it became ready; absent before that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_since: Option<Timestamp>,
}

/// A revision: one immutable version of a deployment's model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RevisionView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `Revision`.
    pub kind: String,
    /// Its id: `iris@3f2a9c41d07b`.
    pub metadata: Metadata,
    /// Use of the revision by its deployment now.
    pub status: RevisionState,
}

impl Kind for RevisionView {
    const KIND: &'static str = "Revision";
}

/// Use of a revision by its deployment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RevisionState {
    /// Name of the deployment.
    pub deployment: String,
    /// The version name that clients see, where the deployment wants it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Location of the artifact, if the deployment wants this revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// The SHA-256 of the artifact, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// True if the deployment's spec asks for it.
    pub wanted: bool,
    /// True if it receives the deployment's traffic.
    pub serving: bool,
    /// Replicas, in whatever state.
    pub replicas: u32,
    /// Number of ready replicas.
    pub ready: u32,
}
