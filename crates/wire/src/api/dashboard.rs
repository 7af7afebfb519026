//! Shapes of the dashboard: lists that are searched, sorted and cut on the server, so that a page of them stays small.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Kind, Memory, ModelTop, Timestamp};

/// One page of the models that match a search, in the order asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelPage {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `ModelPage`.
    pub kind: String,
    /// Time of the figures.
    pub at: Timestamp,
    /// Time of the table that the order and the counts come from; the rows themselves are as of `at`.
    pub table_at: Timestamp,
    /// Period of the rates in milliseconds.
    pub window_ms: u64,
    /// Nodes whose gateways did not answer in time: what they did is missing in the figures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// All deployments.
    pub total: u64,
    /// Deployments that match the search.
    pub matching: u64,
    /// Number of the first row, from 0.
    pub offset: u64,
    /// Deployments per phase, of those that match but for their phase.
    pub phases: BTreeMap<String, u64>,
    /// The rows of the page.
    pub items: Vec<ModelRow>,
}

impl Kind for ModelPage {
    const KIND: &'static str = "ModelPage";
}

/// One model in a list: the figures of `top` and what the table shows beside them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelRow {
    /// Name, phase, memory and activity.
    #[serde(flatten)]
    pub figures: ModelTop,
    /// Replicas wanted now.
    pub desired: u32,
    /// Format of its model: `onnx`, `sklearn:1`.
    pub format: String,
    /// Time of the last request; absent if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_used: Option<Timestamp>,
    /// Reason for a phase other than `Available` and `ScaledDown`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Memory of every worker by model, the largest models first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerMemory {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `WorkerMemory`.
    pub kind: String,
    /// Name of the worker.
    pub worker: String,
    /// Memory for models: total, used and free.
    pub memory: Memory,
    /// The largest replicas, the largest first.
    pub largest: Vec<MemoryPart>,
    /// Number of the other replicas.
    pub others: u64,
    /// Memory of the other replicas, in bytes.
    pub others_memory: u64,
    /// The model that leaves first when room is needed; absent if all of them stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaves_first: Option<LeavesFirst>,
}

/// The next model to be evicted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeavesFirst {
    /// Deployment of the replica that leaves.
    pub deployment: String,
    /// Time of its last request; absent if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_used: Option<Timestamp>,
}

impl Kind for WorkerMemory {
    const KIND: &'static str = "WorkerMemory";
}

/// One replica's part of a worker's memory.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MemoryPart {
    /// Name of the deployment.
    pub deployment: String,
    /// Id of the revision.
    pub revision: String,
    /// State as in a deployment's `replicaDetails`.
    pub state: String,
    /// Bytes of memory that are set aside for it.
    pub memory: u64,
}

/// History of a model, of all models or of a worker: points at equal distances, the newest last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HistoryView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `History`.
    pub kind: String,
    /// The deployment or worker; empty for all models together.
    pub of: String,
    /// Distance of two points in milliseconds.
    pub step_ms: u64,
    /// Time of the newest point.
    pub end: Timestamp,
    /// Nodes whose gateways did not answer in time: what they did is missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// One line per figure; of the same length.
    pub lines: Vec<HistoryLine>,
}

impl Kind for HistoryView {
    const KIND: &'static str = "History";
}

/// One figure over time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HistoryLine {
    /// Name of the figure, by which the dashboard knows its unit.
    pub name: String,
    /// Its values; `null` where none is known.
    pub points: Vec<Option<f64>>,
}

/// The state of the whole in a few numbers, sent to dashboards every second or two.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Pulse {
    /// The node that decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// Nodes known, reachable or not.
    pub nodes: u32,
    /// Nodes that the others can reach.
    pub alive: u32,
    /// Requests per second, all models.
    pub requests_per_second: f64,
    /// Failures per second, all models.
    pub failures_per_second: f64,
    /// Requests in flight or parked.
    pub in_flight: u64,
}
