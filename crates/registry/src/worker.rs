//! The configuration of one worker, as operations write it.

use std::collections::BTreeMap;

use berth_spec::{
    card::size,
    worker::{Eviction, EvictionStrategy, WorkerTerms},
};
use serde::{Deserialize, Serialize};

/// A file of `workers/`: the settings that override the worker's own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerConfig {
    /// Worker's name.
    pub worker_id: String,
    /// The versions of cards that it can load.
    pub supported_schema_versions: Vec<String>,
    /// Address of its controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broker_endpoint: Option<String>,
    /// Upper limits of what models may take.
    pub capacity: Capacity,
    /// Labels. `pool` and `region` are always present.
    pub labels: BTreeMap<String, String>,
    /// Rules for making room on it.
    #[serde(default)]
    pub eviction_policy: EvictionPolicy,
}

/// Upper limits of what models may take on a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Capacity {
    /// Most models at a time.
    pub max_models: u32,
    /// Memory as a quantity, for example `16Gi`.
    pub max_memory: String,
    /// CPU cores that models may take.
    pub max_cpu: f32,
    /// GPUs that models may take; `None`: all that there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_gpu: Option<u32>,
}

/// Rules for making room on a worker.
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
    /// The same in the planner's terms.
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
