//! The description that a worker gives of itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use crate::{
    ByteSize, FormatSupport, Isolation, IsolationOffer, ModelFormat, Time, WorkerId, WorkerLimits,
    deployment::GpuNeed,
    member::{REGION, ZONE},
};

/// The identity and capacity of a worker. Sent when it joins; a change is a new incarnation.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerInfo {
    /// The worker's name, which is its node's.
    pub id: WorkerId,
    /// Grows with each start of the process, so that an old one's words can be told from a new one's.
    pub incarnation: u64,
    /// Free labels that selectors match.
    pub labels: BTreeMap<String, String>,
    /// Memory that models may take.
    pub memory: ByteSize,
    /// CPU cores that it may use, with fractions.
    pub cpus: f32,
    /// GPUs that models may use.
    pub gpus: Vec<Gpu>,
    /// The most models that it holds at once; `None`: as many as fit.
    pub max_models: Option<u32>,
    /// Its runtimes, in the order in which they are asked for a format.
    pub runtimes: Vec<RuntimeInfo>,
    /// The versions of model cards that it reads.
    pub schema_versions: Vec<String>,
    /// Its version of Berth.
    pub version: String,
}

impl WorkerInfo {
    /// The runtime that runs models of a format: the first that takes it.
    #[must_use]
    pub fn runtime_for(&self, format: &ModelFormat) -> Option<&RuntimeInfo> {
        self.runtimes.iter().find(|runtime| runtime.takes(format))
    }

    /// The value of a label for the models of one of its runtimes: the runtime's own, else the worker's.
    #[must_use]
    pub fn label<'l>(&'l self, runtime: &'l RuntimeInfo, key: &str) -> Option<&'l String> {
        runtime.labels.get(key).or_else(|| self.labels.get(key))
    }

    /// The formats that its runtimes take, as texts, each once.
    #[must_use]
    pub fn formats(&self) -> Vec<String> {
        let all: BTreeSet<String> =
            self.runtimes.iter().flat_map(|runtime| &runtime.formats).map(ToString::to_string).collect();
        all.into_iter().collect()
    }

    /// The value of its label [`REGION`](crate::member::REGION); `None`: it has none.
    #[must_use]
    pub fn region(&self) -> Option<&str> {
        self.labels.get(REGION).map(String::as_str)
    }

    /// The value of its label [`ZONE`](crate::member::ZONE); `None`: it has none.
    #[must_use]
    pub fn zone(&self) -> Option<&str> {
        self.labels.get(ZONE).map(String::as_str)
    }
}

/// A runtime of a worker: the formats that it takes, and how much it can hold beside the worker's own limits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeInfo {
    /// Its name: `onnx`, `python`.
    pub name: String,
    /// The formats that it takes, with their versions.
    pub formats: Vec<FormatSupport>,
    /// Labels that selectors of its models match, over those of the worker.
    pub labels: BTreeMap<String, String>,
    /// Memory that its models may take; `None`: as much as the worker has.
    pub memory: Option<ByteSize>,
    /// The most models that it holds at once; `None`: as many as fit.
    pub max_models: Option<u32>,
    /// Device memory that its models may take; `None`: all of the GPUs that they are given.
    pub device_memory: Option<ByteSize>,
    /// The memory to set aside for a model of which nothing is known yet; `None`: the planner's default.
    pub default_size: Option<ByteSize>,
    /// The isolation that it can give its models; `None`: nothing is said of it, and loads tell.
    pub isolation: Option<IsolationOffer>,
}

impl RuntimeInfo {
    /// A runtime of any version of some formats, without limits of its own.
    #[must_use]
    pub fn unlimited(name: &str, formats: &[ModelFormat]) -> Self {
        let formats = formats.iter().map(FormatSupport::any).collect();
        Self { name: name.to_owned(), formats, ..Self::default() }
    }

    /// The runtimes of every worker with ONNX Runtime: `onnx` and `python`, without limits.
    #[must_use]
    pub fn built_in() -> Vec<Self> {
        vec![Self::unlimited("onnx", &[ModelFormat::ONNX]), Self::unlimited("python", &[ModelFormat::PYTHON])]
    }

    /// True if one of its formats takes this one.
    #[must_use]
    pub fn takes(&self, format: &ModelFormat) -> bool {
        self.formats.iter().any(|taken| taken.takes(format))
    }

    /// The offer of isolation, where it is less than a deployment asks for; `None`: it is enough, or nobody asked.
    #[must_use]
    pub fn less_than(&self, asked: Option<Isolation>) -> Option<&IsolationOffer> {
        self.isolation.as_ref().filter(|offer| asked.is_some_and(|asked| asked > offer.most))
    }

    /// Tests for limits of its own.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.memory.is_some() || self.max_models.is_some() || self.device_memory.is_some()
    }
}

/// The registry's settings of a worker; they override the worker's own. Written by the Git source only.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WorkerTerms {
    /// Labels, over the worker's own.
    pub labels: BTreeMap<String, String>,
    /// Memory that models may take, if that is less than the worker has.
    pub memory: Option<ByteSize>,
    /// CPU cores that models may take.
    pub cpus: Option<f32>,
    /// The most models at once.
    pub max_models: Option<u32>,
    /// GPUs that models may use: the first so many.
    pub max_gpus: Option<u32>,
    /// The versions of model cards that it may be given.
    pub schema_versions: Vec<String>,
    /// The rules for making room on it.
    pub eviction: Eviction,
}

/// The rules for making room on a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Eviction {
    /// The order in which models are evicted.
    pub strategy: EvictionStrategy,
    /// True if models may be evicted to make room for another.
    pub automatic: bool,
}

impl Default for Eviction {
    fn default() -> Self {
        Self { strategy: EvictionStrategy::Lru, automatic: true }
    }
}

/// The order in which models are evicted. A model of higher priority never goes for one of lower priority.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EvictionStrategy {
    /// The lowest priority, and among equals the one that was not used for longest.
    #[default]
    Lru,
    /// The lowest priority; models of equal priority never go for each other.
    Priority,
}

impl WorkerTerms {
    /// The worker as it is under these terms. What the registry allows beyond what the worker has is not there.
    #[must_use]
    pub fn apply(&self, info: &WorkerInfo) -> WorkerInfo {
        let mut under = info.clone();
        under.labels.extend(self.labels.clone());
        under.memory = self.memory.map_or(info.memory, |memory| memory.min(info.memory));
        under.cpus = self.cpus.map_or(info.cpus, |cpus| cpus.min(info.cpus));
        under.max_models = [self.max_models, info.max_models].into_iter().flatten().min();
        if let Some(most) = self.max_gpus {
            under.gpus.truncate(most as usize);
        }
        under.schema_versions.retain(|version| self.schema_versions.contains(version));
        under
    }

    /// The limits that the worker itself must keep to.
    #[must_use]
    pub fn limits(&self) -> WorkerLimits {
        WorkerLimits { memory: self.memory, models: self.max_models }
    }
}

/// A circuit breaker towards one dependency of a worker. Reported only if it is not closed or counts failures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breaker {
    /// The dependency: `s3://bucket`, `https://host`.
    pub dependency: Arc<str>,
    /// The kind of dependency, which people group breakers by.
    pub kind: DependencyKind,
    /// Closed, open, or letting one operation through.
    pub state: BreakerState,
    /// Failures since the last success.
    pub failures: u32,
    /// The time at which it opened; `None`: it is closed.
    pub opened_at: Option<Time>,
    /// When it lets somebody try again.
    pub retry_at: Option<Time>,
}

/// The kind of a dependency whose failures are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DependencyKind {
    /// An object store or web server.
    Storage,
    /// A Git host.
    Git,
    /// A package index.
    Packages,
}

impl DependencyKind {
    /// The word in status, metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Storage => "storage",
            Self::Git => "git",
            Self::Packages => "packages",
        }
    }
}

/// The state of a circuit breaker, without its times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BreakerState {
    /// All goes through; failures are counted.
    Closed,
    /// Nothing goes through.
    Open,
    /// One operation goes through, to see whether the dependency is back.
    HalfOpen,
}

impl BreakerState {
    /// The word in status, metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half-open",
        }
    }
}

/// The treatment of a worker that the registry does not name, where there is a registry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownWorkers {
    /// A worker like any other, with its own settings.
    #[default]
    Allow,
    /// Connected without models; what it holds moves elsewhere.
    Ignore,
    /// Refused. A worker that is connected already is treated as with [`Self::Ignore`] until it holds nothing, and then
    /// disconnected.
    Refuse,
}

impl UnknownWorkers {
    /// The word in settings.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ignore => "ignore",
            Self::Refuse => "refuse",
        }
    }
}

/// A GPU of a machine, as a worker offers it to models.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gpu {
    /// The name by which `CUDA_VISIBLE_DEVICES` takes it: its UUID, or its number where an operator declared it.
    pub id: String,
    /// The driver's name of the device, in lower case with dashes: `nvidia-h200`.
    pub kind: String,
    /// Memory of the device in all.
    pub memory: ByteSize,
}

impl Gpu {
    /// Tests its kind and memory against a need.
    #[must_use]
    pub fn suits(&self, need: &GpuNeed) -> bool {
        need.kind.as_ref().is_none_or(|kind| self.is_a(kind)) && need.memory.is_none_or(|memory| self.memory >= memory)
    }

    /// True if the device is of the requested kind: all words of the request are words of its own kind. `T4` asks for a
    /// `tesla-t4` or an `nvidia-t4`, `nvidia-a100` for an `nvidia-a100-sxm4-80gb`, and `nvidia` for any of them.
    #[must_use]
    pub fn is_a(&self, kind: &str) -> bool {
        fn words(text: &str) -> impl Iterator<Item = &str> {
            text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty())
        }
        words(kind).all(|asked| words(&self.kind).any(|word| word.eq_ignore_ascii_case(asked)))
    }
}

/// The load of one GPU at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuLoad {
    /// The device's [`id`](Gpu::id).
    pub id: Arc<str>,
    /// Memory in use, by whatever process.
    pub memory_used: ByteSize,
    /// The part of the time in which it computed, in percent.
    pub utilization_percent: u32,
}

/// The intention of a worker to stay in the fleet or leave.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkerState {
    /// Stays, and takes models.
    #[default]
    Serving,
    /// Leaves: it was told to stop, and its models move elsewhere while it still answers.
    Leaving,
}

/// The load that a worker reports of itself. Sent when it changes noticeably.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Load {
    /// The time of the measurement.
    pub at: Time,
    /// Processor time in use, in percent of all cores: now, over a minute, over five minutes.
    pub cpu_percent: [f32; 3],
    /// Memory of the machine or control group in use, models and all.
    pub memory_used: ByteSize,
    /// Loads that wait for a turn.
    pub queue: u32,
    /// Requests per minute over the last minute.
    pub requests_per_minute: u32,
    /// True if memory is short: more than 80 % of the machine's or control group's is in use.
    pub degraded: bool,
    /// The load of its GPUs, where it can be read.
    pub gpus: Arc<[GpuLoad]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_gpus_are_compared_word_by_word() {
        for (has, asked, is) in [
            ("nvidia-h200", "nvidia-h200", true),
            ("nvidia-t4", "T4", true),
            ("Tesla-T4", "t4", true),
            ("nvidia-a100-sxm4-80gb", "A100", true),
            ("nvidia-a100-sxm4-80gb", "nvidia-a100", true),
            ("nvidia-h100", "nvidia", true),
            ("nvidia-t400", "T4", false),
            ("nvidia-h200", "H100", false),
            ("tesla-t4", "nvidia-t4", false),
        ] {
            let gpu = Gpu { id: "0".to_owned(), kind: has.to_owned(), memory: ByteSize::gib(16) };
            assert_eq!(gpu.is_a(asked), is, "{asked} of {has}");
        }
    }
}
