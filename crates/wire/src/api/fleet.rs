//! What runs where: workers, replicas, revisions, aliases.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Kind, Metadata, Progress, Timestamp};

/// A worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `Worker`.
    pub kind: String,
    /// Name and labels.
    pub metadata: Metadata,
    /// What operators asked of it.
    pub spec: WorkerSpec,
    /// What is true of it.
    pub status: WorkerStatus,
}

impl Kind for WorkerView {
    const KIND: &'static str = "Worker";
}

/// What operators asked of a worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkerSpec {
    /// Gets no new replica.
    pub cordoned: bool,
}

/// What is true of a worker.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkerStatus {
    /// `Joining` (attached, has not reported yet), `Ready`, `Detached` (it answers, but the leader cannot reach it) or `Lost`.
    pub state: String,
    /// Its version of Berth.
    pub version: String,
    /// Which start of the process.
    pub incarnation: u64,
    /// CPU cores.
    pub cpus: f32,
    /// Model formats that it has a runtime for.
    pub formats: Vec<String>,
    /// Memory for models.
    pub memory: Memory,
    /// Replicas that it holds or should hold.
    pub replicas: u32,
    /// Those of them that are ready.
    pub ready: u32,
    /// Their revisions, by name.
    pub models: Vec<String>,
}

/// Memory for models, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Memory {
    /// In all.
    pub total: u64,
    /// Set aside for replicas.
    pub used: u64,
    /// The rest.
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
    /// What is true of it.
    pub status: ReplicaState,
}

impl Kind for ReplicaView {
    const KIND: &'static str = "Replica";
}

/// What is true of a replica.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaState {
    /// The deployment.
    pub deployment: String,
    /// The revision.
    pub revision: String,
    /// The version name that clients see; empty for one that is on its way out.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// The worker.
    pub worker: String,
    /// As in a deployment's `replicaDetails`.
    pub state: String,
    /// Bytes of memory.
    pub memory: u64,
    /// Whether `memory` was measured.
    pub measured: bool,
    /// What is worth knowing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// How far the artifact is, while it is fetched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Since when it is ready.
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
    /// What is true of it.
    pub status: RevisionState,
}

impl Kind for RevisionView {
    const KIND: &'static str = "Revision";
}

/// What is true of a revision.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RevisionState {
    /// The deployment.
    pub deployment: String,
    /// The version name that clients see, where the deployment wants it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Where the artifact is, where the deployment wants it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// The SHA-256 of the artifact, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// The deployment wants it.
    pub wanted: bool,
    /// It gets the deployment's traffic.
    pub serving: bool,
    /// Replicas, in whatever state.
    pub replicas: u32,
    /// Ready replicas.
    pub ready: u32,
}

/// An alias: a name that clients use, and the revisions that share its traffic.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AliasView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `Alias`.
    pub kind: String,
    /// The name that clients use.
    pub metadata: Metadata,
    /// Where it leads.
    pub status: AliasStatus,
}

impl Kind for AliasView {
    const KIND: &'static str = "Alias";
}

/// Where an alias leads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AliasStatus {
    /// The revisions that share the traffic; empty while nothing was ready yet.
    pub revisions: Vec<WeightedRevision>,
}

/// A revision and its share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WeightedRevision {
    /// The revision.
    pub revision: String,
    /// Its weight among the others.
    pub weight: u32,
}
