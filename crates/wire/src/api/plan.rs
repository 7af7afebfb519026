//! Preview of changes.

use std::collections::BTreeMap;

use berth_spec::{
    ByteSize, UnknownWorkers, WorkerTerms,
    worker::{Eviction, EvictionStrategy},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ApplyResult, Kind, TermsView};

/// All that a registry declares, for a preview.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RegistryDraft {
    /// Manifests of its deployments, as `berth apply` takes them.
    pub manifests: Vec<serde_json::Value>,
    /// Names of deployments that would be deleted.
    pub deleted: Vec<String>,
    /// Its settings of workers, by worker. They replace all that there are.
    pub workers: BTreeMap<String, WorkerDraft>,
    /// Treatment of other workers: `allow`, `ignore` or `refuse`.
    #[schema(value_type = String)]
    pub unknown_workers: UnknownWorkers,
}

/// A worker's settings in a registry.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkerDraft {
    /// Labels, over the worker's own.
    pub labels: BTreeMap<String, String>,
    /// Capacity, and how room is made.
    #[serde(flatten)]
    pub terms: TermsView,
}

impl WorkerDraft {
    /// The JSON form of settings.
    #[must_use]
    pub fn of(terms: &WorkerTerms) -> Self {
        Self { labels: terms.labels.clone(), terms: TermsView::of(terms) }
    }

    /// The typed form; `None` if the eviction order is unknown.
    #[must_use]
    pub fn typed(self) -> Option<WorkerTerms> {
        let Self { labels, terms } = self;
        let strategy = match terms.eviction_strategy.as_str() {
            "lru" => EvictionStrategy::Lru,
            "priority" => EvictionStrategy::Priority,
            _ => return None,
        };
        Some(WorkerTerms {
            labels,
            memory: terms.memory.map(ByteSize),
            cpus: terms.cpus,
            max_models: terms.max_models,
            max_gpus: terms.max_gpus,
            schema_versions: terms.schema_versions,
            eviction: Eviction { strategy, automatic: terms.evicts },
        })
    }
}

/// Preview of applying manifests. Changes nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `Plan`.
    pub kind: String,
    /// Result for each document, in their order.
    pub documents: Vec<ApplyResult>,
    /// Steps of the workers in the order in which they would begin.
    pub steps: Vec<PlanStep>,
    /// Memory of every worker before and after, by name.
    pub memory: Vec<WorkerMemoryChange>,
    /// Deployments that would not get what they want, and why.
    pub unplaced: Vec<Unplaced>,
}

/// A deployment that would not get what it wants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Unplaced {
    /// Name of the deployment.
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
    /// Action, on one replica.
    pub action: StepKind,
    /// Name of the deployment.
    pub deployment: String,
    /// Id of the revision that is loaded or unloaded.
    pub revision: String,
    /// Name of the worker.
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
    /// Name of the worker.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_workers_survive_the_wire() {
        let whole = WorkerTerms {
            labels: [("pool".to_owned(), "production".to_owned())].into(),
            memory: Some(ByteSize::gib(2)),
            cpus: Some(1.5),
            max_models: Some(3),
            max_gpus: Some(0),
            schema_versions: vec!["3.1.0".to_owned()],
            eviction: Eviction { strategy: EvictionStrategy::Priority, automatic: false },
        };
        for terms in [whole, WorkerTerms::default()] {
            let text = serde_json::to_string(&WorkerDraft::of(&terms)).expect("it is JSON");
            let read: WorkerDraft = serde_json::from_str(&text).expect("it is a draft");
            assert_eq!(read.typed(), Some(terms), "{text}");
        }
        let unknown: WorkerDraft = serde_json::from_str(r#"{"evictionStrategy": "fifo"}"#).expect("it is a draft");
        assert_eq!(unknown.typed(), None);
    }
}
