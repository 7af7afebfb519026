//! `AsyncAPI`: the asynchronous requests of one port of a model. The operator derives it, and people read it.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::status::{Condition, Conditions};

pub(crate) const KIND: &str = "AsyncAPI";

/// The answer to whoever writes one.
pub(crate) const NOT_WRITTEN: &str = "an AsyncAPI is derived, not written: delete it, and write async in \
                                      spec.model.executor.ports[].settings of a CLOpsDeployment";

/// The kind of a queue that each pod has for itself.
pub(crate) const MEMORY: &str = "Memory";

/// The asynchronous requests that a port of a model takes. The operator derives it from `async` in the settings of the executor's port; write it there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, CustomResource)]
#[kube(
    group = "berth.dev",
    version = "v1",
    kind = "AsyncAPI",
    plural = "asyncapis",
    shortname = "aapi",
    category = "berth",
    namespaced,
    status = "AsyncAPIStatus",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Queue","type":"string","jsonPath":".spec.queue.kind"}"#,
    printcolumn = r#"{"name":"Address","type":"string","jsonPath":".status.address"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Message","type":"string","priority":1,"jsonPath":".status.conditions[?(@.type==\"Ready\")].message"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct AsyncAPISpec {
    /// The ModelDeployment whose executor takes the requests.
    #[schemars(length(min = 1, max = 63))]
    pub model: String,
    /// The name of the container's port.
    #[schemars(length(min = 1, max = 15))]
    pub port: String,
    /// The number that the Service answers at.
    #[schemars(range(min = 1, max = 65535))]
    pub service_port: u16,
    /// Templates of the paths whose requests may be queued.
    pub paths: Vec<String>,
    /// True where all requests of these paths are queued, asked for or not.
    pub always: bool,
    /// The path below which jobs are asked for.
    pub prefix: String,
    /// The queue of the jobs.
    pub queue: Queue,
    /// The addresses that may be told of the end of a job.
    pub callbacks: Vec<String>,
}

/// The queue of jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Queue {
    /// The place of the queue: `Redis` or `NATS`, which all pods share, or `Memory`, of each pod alone.
    #[schemars(regex(pattern = "^(Memory|NATS|Redis)$"))]
    pub kind: String,
    /// The key that names in Redis or NATS begin with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// The observed state of an `AsyncAPI`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AsyncAPIStatus {
    /// The generation of the spec that this speaks of.
    pub observed_generation: i64,
    /// The state, one entry a topic.
    pub conditions: Vec<Condition>,
    /// The address of the jobs inside the cluster; below it, a job is asked for by its id.
    // Null where there is none, so that a patch takes it out.
    pub address: Option<String>,
}

impl Conditions for AsyncAPIStatus {
    fn conditions(&self) -> &[Condition] {
        &self.conditions
    }
}
