//! The configuration of one worker, as operations write it.

use std::collections::BTreeMap;

use berth_spec::{
    card::size,
    worker::{Eviction, EvictionStrategy, WorkerTerms},
};
use serde::{Deserialize, Serialize};

/// A file of `workers/`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerConfig {
    /// The worker's name.
    pub worker_id: String,
    /// The versions of cards that it can load.
    pub supported_schema_versions: Vec<String>,
    /// Where it finds its controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broker_endpoint: Option<String>,
    /// What it can hold.
    pub capacity: Capacity,
    /// What it is: `pool` and `region` are always there.
    pub labels: BTreeMap<String, String>,
    /// How room is made.
    #[serde(default)]
    pub eviction_policy: EvictionPolicy,
}

/// What a worker can hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Capacity {
    /// Models at once.
    pub max_models: u32,
    /// `16Gi`.
    pub max_memory: String,
    /// Cores.
    pub max_cpu: f32,
    /// GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_gpu: Option<u32>,
}

/// How room is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EvictionPolicy {
    /// What goes first.
    pub strategy: Strategy,
    /// Whether anything goes without a person.
    pub enable_auto_eviction: bool,
}

/// What goes first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// What was used least recently.
    #[default]
    Lru,
    /// What is least important.
    Priority,
}

impl Default for EvictionPolicy {
    fn default() -> Self {
        Self { strategy: Strategy::Lru, enable_auto_eviction: true }
    }
}

impl WorkerConfig {
    /// What the registry says of this worker, for those who place models.
    #[must_use]
    pub fn terms(&self) -> WorkerTerms {
        let strategy = match self.eviction_policy.strategy {
            Strategy::Lru => EvictionStrategy::Lru,
            Strategy::Priority => EvictionStrategy::Priority,
        };
        WorkerTerms {
            labels: self.labels.clone(),
            memory: size(&self.capacity.max_memory),
            cpus: Some(self.capacity.max_cpu),
            max_models: Some(self.capacity.max_models),
            max_gpus: self.capacity.max_gpu,
            schema_versions: self.supported_schema_versions.clone(),
            eviction: Eviction { strategy, automatic: self.eviction_policy.enable_auto_eviction },
        }
    }

    /// Whether it has all of `labels`.
    #[must_use]
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        labels.iter().all(|(name, value)| self.labels.get(name) == Some(value))
    }
}
