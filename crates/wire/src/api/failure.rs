//! What went wrong: loads that failed, and what a node leaves alone because of it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Timestamp;

/// A load that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailureView {
    /// What kind: `network`, `not_found`, `checksum`, `schema`, `dependencies`, `code`, `memory`, …
    pub category: String,
    /// What went wrong and what to do.
    pub message: String,
    /// How many attempts there were.
    pub attempts: u32,
    /// When the last one ended.
    pub at: Timestamp,
    /// When the worker tries again by itself; absent: it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
    /// What the model's own code said last, e.g. a Python traceback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// The attempts before the last one, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<AttemptView>,
}

/// An attempt to load that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AttemptView {
    /// When it ended.
    pub at: Timestamp,
    /// What kind of failure it was.
    pub category: String,
    /// What went wrong.
    pub message: String,
}

/// A circuit breaker of a node towards something that it depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BreakerView {
    /// What it depends on: `s3://bucket`, `https://host`.
    pub dependency: String,
    /// What that is: `storage`, `git`, `packages` or `controller`.
    pub kind: String,
    /// `open` (it is left alone), `half-open` (one may try) or `closed` (failures are counted).
    pub state: String,
    /// Failures in a row.
    pub failures: u32,
    /// When it opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_at: Option<Timestamp>,
    /// When it lets somebody try again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
}

/// A replica that had to leave its worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvictionView {
    /// When that was decided.
    pub at: Timestamp,
    /// Which one.
    pub revision: String,
    /// From where.
    pub worker: String,
    /// The deployment that got its room; absent: its worker had less room than was claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room_for: Option<String>,
}

/// What the registry says of a node's worker, over what that says of itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TermsView {
    /// Memory that models may take, in bytes; absent: all that it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Cores that models may take; absent: all that it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f32>,
    /// The most models at once; absent: as many as fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_models: Option<u32>,
    /// GPUs that models may use; absent: all that it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_gpus: Option<u32>,
    /// The versions of model cards that it may be given.
    pub schema_versions: Vec<String>,
    /// What goes first when room is made: `lru` or `priority`.
    pub eviction_strategy: String,
    /// Whether anything goes to make room for another model.
    pub evicts: bool,
}
