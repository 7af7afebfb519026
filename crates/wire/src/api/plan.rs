//! Preview of changes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ApplyResult, Kind};

/// Preview of applying manifests. Changes nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `Plan`.
    pub kind: String,
    /// Result for each document.
    pub documents: Vec<ApplyResult>,
    /// Steps of the workers in the order in which they would begin.
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
    /// Deployment name.
    pub deployment: String,
    /// Reason for people.
    pub message: String,
}

impl Kind for PlanView {
    const KIND: &'static str = "Plan";
}

/// One thing that a worker would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanStep {
    /// Action of the step.
    pub action: StepKind,
    /// Deployment name.
    pub deployment: String,
    /// Revision of the replica.
    pub revision: String,
    /// Worker of the replica.
    pub worker: String,
    /// Bytes of memory that it takes or frees.
    pub memory: u64,
    /// Origin of the figure, for what is loaded: `declared`, `measured`, `predicted` (from the size of the artifact) or
    /// `default` (nothing is known yet). The last two are guesses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_from: Option<String>,
    /// Of a reload: the revision that it replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// Action of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub enum StepKind {
    /// Unload a replica to make room for another.
    Evict,
    /// Unload a replica that is not wanted any more.
    Unload,
    /// Load a new revision beside the old one, move traffic, unload the old one.
    Reload,
    /// Loads a replica.
    Load,
}

/// A worker's memory before and after, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerMemoryChange {
    /// Worker name.
    pub worker: String,
    /// All that models may take.
    pub total: u64,
    /// Memory assigned now.
    pub before: u64,
    /// The most on the way: old and new revisions beside each other.
    pub peak: u64,
    /// Set aside in the end.
    pub after: u64,
}
