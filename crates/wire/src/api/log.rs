//! The log of a model, over all workers that have had a replica of it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Kind, Timestamp};

/// Recent lines of a model's log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LogView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `ModelLog`.
    pub kind: String,
    /// The lines by time, the latest last.
    pub lines: Vec<LogLine>,
    /// Opaque: send it back as `after` for the lines that follow.
    pub cursor: String,
    /// Nodes that did not answer in time: their lines are missing, and come with a later answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

impl Kind for LogView {
    const KIND: &'static str = "ModelLog";
}

/// One line: of the model's own output, or a step of its worker with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LogLine {
    /// Name of the node that wrote it.
    pub node: String,
    /// Number that grows on its node, also over a restart.
    pub number: u64,
    /// Time of the line.
    pub at: Timestamp,
    /// `INFO`, `WARN` or `ERROR`.
    pub level: String,
    /// Name of the event: `model_output` for what the model printed, else a step such as `model_load_success`.
    pub event: String,
    /// The text of the line; for `model_output` the model's own words.
    pub text: String,
}

/// Lines of one node, as it answers another.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeLog {
    /// Name of the node.
    pub node: String,
    /// Its lines, the latest last.
    pub lines: Vec<LogLine>,
    /// Number of the last line that there is, of any model.
    pub last: u64,
}
