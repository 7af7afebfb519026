//! Failed loads, and their consequences on a node.

use berth_spec::{WorkerTerms, worker::EvictionStrategy};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Timestamp;

/// A load that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailureView {
    /// Category: `network`, `not_found`, `checksum`, `schema`, `dependencies`, `code`, `memory`, …
    pub category: String,
    /// Cause and remedy.
    pub message: String,
    /// Attempts so far, the last one included.
    pub attempts: u32,
    /// End of the last attempt.
    pub at: Timestamp,
    /// Time of the next automatic attempt; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
    /// Last output of the model's own code, for example a Python traceback.
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
    /// End of the attempt.
    pub at: Timestamp,
    /// Category, as in [`FailureView::category`].
    pub category: String,
    /// Cause of the failure.
    pub message: String,
}

/// A circuit breaker of a node towards something that it depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BreakerView {
    /// Dependency: `s3://bucket`, `https://host`.
    pub dependency: String,
    /// Kind of dependency: `storage`, `git`, `packages` or `controller`.
    pub kind: String,
    /// `open` (it is left alone), `half-open` (one may try) or `closed` (failures are counted).
    pub state: String,
    /// Failures since the last success.
    pub failures: u32,
    /// Time at which the breaker opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_at: Option<Timestamp>,
    /// Time of the next trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
}

/// A replica that had to leave its worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvictionView {
    /// Time of the decision.
    pub at: Timestamp,
    /// Id of the revision that had to leave.
    pub revision: String,
    /// Name of the worker that it had to leave.
    pub worker: String,
    /// The deployment that got its room; absent: its worker had less room than was claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room_for: Option<String>,
}

/// Registry's terms for a worker, which override its own settings.
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
    /// Eviction order: `lru` or `priority`.
    pub eviction_strategy: String,
    /// True if models may be evicted to make room.
    pub evicts: bool,
}

impl TermsView {
    /// The JSON form of terms, without their labels.
    #[must_use]
    pub fn of(terms: &WorkerTerms) -> Self {
        Self {
            memory: terms.memory.map(|memory| memory.0),
            cpus: terms.cpus,
            max_models: terms.max_models,
            max_gpus: terms.max_gpus,
            schema_versions: terms.schema_versions.clone(),
            eviction_strategy: match terms.eviction.strategy {
                EvictionStrategy::Lru => "lru",
                EvictionStrategy::Priority => "priority",
            }
            .to_owned(),
            evicts: terms.eviction.automatic,
        }
    }
}
