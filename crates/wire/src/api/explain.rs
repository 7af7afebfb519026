//! Why a deployment is where it is, or why it is nowhere.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ConditionView, EvictionView, Kind, Memory, Metadata};

/// Why a deployment is where it is, or why it is nowhere: one verdict per worker, with numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExplainView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `Explanation`.
    pub kind: String,
    /// The deployment.
    pub metadata: Metadata,
    /// Its phase in one word.
    pub phase: String,
    /// A sentence that says it all.
    pub summary: String,
    /// The revision that this is about: the wanted one.
    pub revision: String,
    /// Replicas that are wanted now.
    pub desired: u32,
    /// Bytes of memory that one replica needs.
    pub need: u64,
    /// Where `need` comes from: `declared`, `measured`, `predicted` or `default` (nothing is known yet).
    pub need_from: String,
    /// Per worker.
    pub workers: Vec<WorkerVerdict>,
    /// The last evictions that it was part of, the oldest first: what left for it, and what of it left for others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evictions: Vec<EvictionView>,
    /// The deployment's conditions.
    #[serde(default)]
    pub conditions: Vec<ConditionView>,
}

impl Kind for ExplainView {
    const KIND: &'static str = "Explanation";
}

/// What a worker means for a deployment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerVerdict {
    /// The worker.
    pub worker: String,
    /// In one word.
    pub verdict: WorkerVerdictKind,
    /// A sentence for people, with the numbers.
    pub message: String,
    /// Where it could hold one: 1 for the worker that would be chosen, 2 for the next best.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Its memory.
    pub memory: Memory,
    /// The state of the replica, where it holds one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Why not, where it cannot hold one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejection: Option<Rejection>,
    /// What would be evicted to make room.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub would_evict: Vec<Victim>,
}

/// What a worker means for a deployment, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum WorkerVerdictKind {
    /// It holds a replica, or is to hold one.
    Holds,
    /// It could hold one.
    Fits,
    /// It cannot hold one.
    Rejected,
}

/// Why a worker cannot hold a replica.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Rejection {
    /// One CamelCase word for machines: `NoRuntime`, `Label`, `Memory`, `Cpu`, `Gpu`, `Models`, `Region`, `Lost`,
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
    /// Its revision.
    pub revision: String,
}
