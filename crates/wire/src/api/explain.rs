//! Explanation of a deployment's placement.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ConditionView, EvictionView, Kind, Memory, Metadata};

/// Explanation of a deployment's placement: one verdict per worker, with numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExplainView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `Explanation`.
    pub kind: String,
    /// Name of the deployment.
    pub metadata: Metadata,
    /// The deployment's phase in one word.
    pub phase: String,
    /// A sentence that says it all.
    pub summary: String,
    /// The revision that this is about: the wanted one.
    pub revision: String,
    /// Replicas that are wanted now.
    pub desired: u32,
    /// Bytes of memory that one replica needs.
    pub need: u64,
    /// Origin of `need`: `declared`, `measured`, `predicted` or `default` (nothing is known yet).
    pub need_from: String,
    /// One verdict for each worker, by name.
    pub workers: Vec<WorkerVerdict>,
    /// The last evictions that it was part of, the oldest first: what left for it, and what of it left for others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evictions: Vec<EvictionView>,
    /// Conditions of the deployment's status.
    #[serde(default)]
    pub conditions: Vec<ConditionView>,
}

impl Kind for ExplainView {
    const KIND: &'static str = "Explanation";
}

/// Verdict for one worker, with its numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerVerdict {
    /// Name of the worker.
    pub worker: String,
    /// The verdict in one word.
    pub verdict: WorkerVerdictKind,
    /// A sentence for people, with the numbers.
    pub message: String,
    /// Rank among workers with room: 1 is the best.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// The worker's memory for models, in bytes.
    pub memory: Memory,
    /// The state of the replica, where it holds one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The reason, of a worker that cannot hold one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejection: Option<Rejection>,
    /// Replicas that would be evicted to make room.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub would_evict: Vec<Victim>,
}

/// Verdict on a worker in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum WorkerVerdictKind {
    /// Holds a replica, or will.
    Holds,
    /// Has room for one, perhaps after evicting others.
    Fits,
    /// Cannot hold one.
    Rejected,
}

/// Reason why a worker cannot hold a replica.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Rejection {
    /// One CamelCase word for machines: `NoRuntime`, `Label`, `Isolation`, `Memory`, `Cpu`, `Gpu`, `Models`, `Region`, `Lost`,
    /// `Detached`, `Cordoned`, `Draining`, `FailedHere`, …
    pub reason: String,
    /// Bytes that are needed, for `Memory`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub need: Option<u64>,
    /// Bytes that are free, for `Memory`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free: Option<u64>,
    /// Bytes that could be freed by evicting others, for `Memory`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evictable: Option<u64>,
}

/// A replica that would have to go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Victim {
    /// Id of the revision.
    pub revision: String,
}
