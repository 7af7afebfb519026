//! The nodes of a cluster: who they are, what they can hold, how full and how busy they are. The capacity table.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{API_VERSION, BreakerView, Kind, ListMetadata, Memory, Metadata, TermsView, Timestamp};

/// A node as the control API shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `Node`.
    pub kind: String,
    /// Name and labels.
    pub metadata: Metadata,
    /// Settings made by operators.
    pub spec: NodeSpec,
    /// Health, capacity and drain now.
    pub status: NodeStatus,
}

impl Kind for NodeView {
    const KIND: &'static str = "Node";
}

/// Settings of a node made by operators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpec {
    /// `open`, `cordoned` (gets no new replica) or `draining` (those that it holds move elsewhere, too).
    pub cordon: String,
}

impl Default for NodeSpec {
    fn default() -> Self {
        Self { cordon: "open".to_owned() }
    }
}

/// Health, capacity and drain of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    /// True if the node leads the cluster.
    pub leader: bool,
    /// Roles: `controller`, `worker`, `gateway`.
    pub roles: Vec<String>,
    /// Health as other nodes see it: `Alive`, `Suspect`, `Failed` or `Left`; empty for one that nobody has seen.
    pub health: String,
    /// `Joining` (has not reported yet), `Ready`, `Detached` (it answers, but the leader cannot reach it), `Draining`,
    /// `Drained`, `Leaving` (it was told to stop), `Lost`, or `Expected` (a source names it, and it has not come).
    pub state: String,
    /// The node's version of Berth.
    pub version: String,
    /// Start of the process, as a number.
    pub incarnation: u64,
    /// Address for other nodes; empty for a single node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// Value of its label `region`; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Value of its label `zone`; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Capacity and load; absent if the node holds no models or has not reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Capacity>,
    /// Time of the last report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<Timestamp>,
    /// Age of the last report in milliseconds, by the leader's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_seen_age_ms: Option<u64>,
    /// Remarks: why the node does not attach to the leader, or how its settings differ from the leader's.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Circuit breakers that are not simply closed: what it leaves alone because that failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub breakers: Vec<BreakerView>,
    /// Registry's terms for the node; absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terms: Option<TermsView>,
    /// Since when and by which source it is expected; absent once it has come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<ExpectedView>,
    /// The number of the credentials that it has; 0: none.
    #[serde(skip_serializing_if = "is_zero")]
    pub credentials: u64,
    /// Progress of a drain; absent while the node is not drained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainView>,
}

/// A worker that has not come.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExpectedView {
    /// Since when: a source named it, or the leader began.
    pub since: Timestamp,
    /// Name of the source that names it; absent: it was expected without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Capacity and load of a node's worker.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Capacity {
    /// Memory for models, in bytes.
    pub memory: Memory,
    /// Memory of the machine in use, models and all, in bytes.
    pub machine_memory_used: u64,
    /// CPU cores and their use.
    pub cpus: Cpus,
    /// GPUs that models may use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuView>,
    /// Models that it holds and may hold.
    pub models: Models,
    /// Model formats that its runtimes take, with versions where they are limited: `onnx`, `sklearn:0,1`.
    pub formats: Vec<String>,
    /// Its runtimes, in the order in which they are asked for a format.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub runtimes: Vec<RuntimeView>,
    /// The versions of model cards that it may be given.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub schema_versions: Vec<String>,
    /// Loads that wait for a turn.
    pub load_queue: u32,
    /// Requests over the last minute.
    pub requests_per_minute: u32,
}

/// A runtime of a node. Limits that are absent are those of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RuntimeView {
    /// Its name: `onnx`, `python`.
    pub name: String,
    /// Formats that it takes, with versions where they are limited.
    pub formats: Vec<String>,
    /// Labels that selectors of its models match, over those of the node.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Memory that its models may take, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// The most models that it holds at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_models: Option<u32>,
    /// Device memory that its models may take, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_memory: Option<u64>,
    /// The strongest isolation that it can give a model: `none`, `process` or `sandbox`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<String>,
    /// The reason why it gives no stronger one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation_lacks: Option<String>,
}

/// CPU cores of a node and their use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Cpus {
    /// Cores that models may take.
    pub total: f32,
    /// Time in use now, in percent of all cores.
    pub used_percent: f32,
    /// Over the last minute.
    pub used_percent_1m: f32,
    /// Over the last five minutes.
    pub used_percent_5m: f32,
}

/// A GPU of a node and its use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuView {
    /// Id that `CUDA_VISIBLE_DEVICES` takes: the UUID, or the number where an operator declared it.
    pub id: String,
    /// GPU model, for example `nvidia-h200`.
    pub kind: String,
    /// Memory of the device, in bytes.
    pub memory: u64,
    /// Memory assigned to replicas, in bytes.
    pub used: u64,
    /// Memory in use by whatever process, in bytes; absent: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used: Option<u64>,
    /// The part of the time in which it computed, in percent; absent: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilization_percent: Option<u32>,
    /// Id of the revision that has it; absent if none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
}

/// Numbers of models on a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Models {
    /// Replicas that it holds or should hold.
    pub held: u32,
    /// Replicas of these that are ready.
    pub ready: u32,
    /// The most that it takes; absent: as many as fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
}

/// Progress of a drain: the replicas that are left.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DrainView {
    /// Replicas that are still there.
    pub left: u32,
    /// The first few that wait for something that is under way, the first few: a copy that loads elsewhere, requests
    /// in flight.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waiting_for: Vec<DrainStep>,
    /// The first few that have nowhere to go.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocked: Vec<DrainStep>,
}

/// A replica that is still on a node that drains.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DrainStep {
    /// Id of the revision.
    pub revision: String,
    /// Reason for waiting, or for having no destination.
    pub message: String,
}

/// The nodes of a cluster, and who leads it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeList {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `NodeList`.
    pub kind: String,
    /// The nodes, by name.
    pub items: Vec<NodeView>,
    /// State that the list shows.
    #[serde(default)]
    pub metadata: ListMetadata,
    /// Leader and losses of the cluster as a whole.
    #[serde(default)]
    pub status: ClusterStatus,
}

/// Leader and losses of the cluster as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterStatus {
    /// The node that decides; absent while nobody does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// Its term: a later leader has a higher one; absent where there is one node alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// Many workers were lost at once, and what they held is not placed elsewhere for now; absent when nothing of the kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mass_loss: Option<MassLossView>,
}

/// A loss of many workers at once, which looks like a fault of the network: until it is over only what requests wait for
/// is placed elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MassLossView {
    /// Workers that were lost.
    pub lost: u32,
    /// Workers that were there before.
    pub known: u32,
    /// Time of the first loss.
    pub since: Timestamp,
    /// Time at which the remaining replicas are placed elsewhere unless the workers return.
    pub until: Timestamp,
}

impl NodeList {
    /// Builds the list of all nodes.
    #[must_use]
    pub fn of(items: Vec<NodeView>, status: ClusterStatus) -> Self {
        let metadata = ListMetadata::default();
        Self { api_version: API_VERSION.to_owned(), kind: format!("{}List", NodeView::KIND), items, metadata, status }
    }
}
