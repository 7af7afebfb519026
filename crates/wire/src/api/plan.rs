//! What would change.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ApplyResult, Kind};

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
    /// What workers would do, in the order in which it would begin.
    pub steps: Vec<PlanStep>,
    /// Memory of every worker.
    pub memory: Vec<WorkerMemoryChange>,
    /// Deployments that would not get what they want, and why.
    pub unplaced: Vec<Unplaced>,
}

/// A deployment that would not get what it wants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Unplaced {
    /// Which deployment.
    pub deployment: String,
    /// Why, for people.
    pub message: String,
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
    /// Of a reload: the revision that it replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
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

/// A worker's memory before and after, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerMemoryChange {
    /// The worker.
    pub worker: String,
    /// All that models may take.
    pub total: u64,
    /// Set aside now.
    pub before: u64,
    /// The most on the way: old and new revisions beside each other.
    pub peak: u64,
    /// Set aside in the end.
    pub after: u64,
}
