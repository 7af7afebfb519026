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
    /// Worker's name.
    pub worker_id: String,
    /// The versions of cards that it can load.
    pub supported_schema_versions: Vec<String>,
    /// Address of its controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broker_endpoint: Option<String>,
    /// Capacity of the worker.
    pub capacity: Capacity,
    /// Labels. `pool` and `region` are always present.
    pub labels: BTreeMap<String, String>,
    /// Eviction of models.
    #[serde(default)]
    pub eviction_policy: EvictionPolicy,
}

/// Capacity of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Capacity {
    /// Most models at a time.
    pub max_models: u32,
    /// Memory as a quantity, for example `16Gi`.
    pub max_memory: String,
    /// CPU cores.
    pub max_cpu: f32,
    /// Number of GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_gpu: Option<u32>,
}

/// Rules for eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EvictionPolicy {
    /// Order of eviction.
    pub strategy: Strategy,
    /// Permits eviction without a person.
    pub enable_auto_eviction: bool,
}

/// Order in which models are evicted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// Least recently used first.
    #[default]
    Lru,
    /// Lowest priority first.
    Priority,
}

impl Default for EvictionPolicy {
    fn default() -> Self {
        Self { strategy: Strategy::Lru, enable_auto_eviction: true }
    }
}

impl WorkerConfig {
    /// Terms of this worker for the planner.
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

    /// True if the worker has all of `labels`.
    #[must_use]
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        labels.iter().all(|(name, value)| self.labels.get(name) == Some(value))
    }
}
