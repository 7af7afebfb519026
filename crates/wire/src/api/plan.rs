//! What would change.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ApplyResult, Kind, Memory};

/// What would change if manifests were applied: nothing is changed by asking.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `Plan`.
    pub kind: String,
    /// What would become of each document.
    pub documents: Vec<ApplyResult>,
    /// What workers would do, evictions first.
    pub steps: Vec<PlanStep>,
    /// Memory of every worker that is touched.
    pub memory: Vec<WorkerMemoryChange>,
    /// What would be nowhere, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl Kind for PlanView {
    const KIND: &'static str = "Plan";
}

/// One thing that a worker would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanStep {
    /// What.
    pub action: StepKind,
    /// Which deployment.
    pub deployment: String,
    /// Which revision.
    pub revision: String,
    /// On which worker.
    pub worker: String,
    /// Bytes of memory that it takes or frees.
    pub memory: u64,
    /// Why, for people; for an eviction, for whom.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// What a worker would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub enum StepKind {
    /// Unload a replica to make room for another.
    Evict,
    /// Unload a replica that is not wanted any more.
    Unload,
    /// Load a new revision beside the old one, move traffic, unload the old one.
    Reload,
    /// Load a replica.
    Load,
}

/// A worker's memory before and after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerMemoryChange {
    /// The worker.
    pub worker: String,
    /// Now.
    pub before: Memory,
    /// Afterwards.
    pub after: Memory,
}
