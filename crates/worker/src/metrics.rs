//! What a worker counts, under the names of the Git PRD (seed G §9.1) where it names one.

use std::{
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
    time::{Duration, Instant},
};

use berth_spec::ByteSize;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

/// One phase of a load.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Phase {
    phase: &'static str,
}

/// The kind of a failed load.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Category {
    category: &'static str,
}

/// The artifact cache.
#[derive(Debug, Clone, Default)]
pub struct CacheMetrics {
    pub(crate) bytes: Gauge,
    pub(crate) files: Gauge,
    pub(crate) hits: Counter,
    pub(crate) misses: Counter,
    pub(crate) evictions: Counter,
    pub(crate) fetched_bytes: Counter,
}

/// Everything else of the worker.
#[derive(Debug, Clone)]
pub struct WorkerMetrics {
    pub(crate) cache: CacheMetrics,
    pub(crate) load: Histogram,
    pub(crate) reload: Histogram,
    pub(crate) unload: Histogram,
    phases: Family<Phase, Histogram>,
    failures: Family<Category, Counter>,
    success_rate: Gauge<f64, AtomicU64>,
    outcomes: Arc<Mutex<Outcomes>>,
    pub(crate) loaded: Gauge,
    pub(crate) failed: Gauge,
    pub(crate) memory_used: Gauge,
    pub(crate) memory_available: Gauge,
    environment_bytes: Gauge,
    environments: Gauge,
}

/// The last loads, newest in the lowest bit: a rate over all time hides an outage, and one over a minute hides rare loads.
#[derive(Debug, Default)]
struct Outcomes {
    succeeded: u64,
    count: u32,
}

impl WorkerMetrics {
    /// Registers all of them.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let seconds = || Histogram::new(exponential_buckets(0.001, 2.0, 20));
        let metrics = Self {
            cache: CacheMetrics::default(),
            load: seconds(),
            reload: seconds(),
            unload: seconds(),
            phases: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.000_25, 2.0, 20))),
            failures: Family::default(),
            success_rate: Gauge::default(),
            outcomes: Arc::default(),
            loaded: Gauge::default(),
            failed: Gauge::default(),
            memory_used: Gauge::default(),
            memory_available: Gauge::default(),
            environment_bytes: Gauge::default(),
            environments: Gauge::default(),
        };
        metrics.success_rate.set(100.0);
        let m = &metrics;
        registry.register(
            "worker_models_load_duration_seconds",
            "From the begin of the fetch to ready",
            m.load.clone(),
        );
        registry.register(
            "worker_models_reload_duration_seconds",
            "As load, beside an older revision",
            m.reload.clone(),
        );
        registry.register("worker_models_unload_duration_seconds", "From the last request to freed", m.unload.clone());
        registry.register("worker_models_load_success_rate", "Percent of the last 64 loads", m.success_rate.clone());
        registry.register("worker_models_load_failures", "Loads that failed, by category", m.failures.clone());
        registry.register("worker_models_loaded_count", "Models in memory", m.loaded.clone());
        registry.register("worker_models_failed_count", "Models that could not be made ready", m.failed.clone());
        registry.register("worker_memory_used_bytes", "Memory that models take or are promised", m.memory_used.clone());
        registry.register("worker_memory_available_bytes", "Memory left for models", m.memory_available.clone());
        registry.register(
            "berth_load_phase_seconds",
            "Phases of a load: queued, prepare (model cards), fetch, load, validate",
            m.phases.clone(),
        );
        registry.register("berth_environment_bytes", "Disk that Python environments take", m.environment_bytes.clone());
        registry.register("berth_environments", "Python environments on disk", m.environments.clone());
        let c = &metrics.cache;
        registry.register("berth_artifact_bytes", "Bytes fetched from artifact stores", c.fetched_bytes.clone());
        registry.register("berth_cache_bytes", "Disk that cached artifacts take", c.bytes.clone());
        registry.register("berth_cache_files", "Cached artifacts", c.files.clone());
        registry.register("berth_cache_hits", "Artifacts that were in the cache", c.hits.clone());
        registry.register("berth_cache_misses", "Artifacts that were not in the cache", c.misses.clone());
        registry.register("berth_cache_evictions", "Artifacts evicted for others", c.evictions.clone());
        registry.register_collector(Box::new(Cpu::default()));
        metrics
    }

    /// A phase of a load ended.
    pub(crate) fn phase(&self, phase: &'static str, milliseconds: f64) {
        self.phases.get_or_create(&Phase { phase }).observe(milliseconds / 1e3);
    }

    /// What environments take on disk, and how many there are.
    pub(crate) fn environments(&self, size: ByteSize, count: usize) {
        self.environment_bytes.set(i64::try_from(size.0).unwrap_or(i64::MAX));
        self.environments.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// A load ended well.
    pub(crate) fn succeeded(&self) {
        self.outcome(1);
    }

    /// A load failed.
    pub(crate) fn failed_load(&self, category: &'static str) {
        self.failures.get_or_create(&Category { category }).inc();
        self.outcome(0);
    }

    fn outcome(&self, bit: u64) {
        let mut outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        outcomes.succeeded = outcomes.succeeded << 1 | bit;
        outcomes.count = (outcomes.count + 1).min(64);
        self.success_rate.set(f64::from(outcomes.succeeded.count_ones()) * 100.0 / f64::from(outcomes.count));
    }
}

/// The cores that this process used since the last scrape.
#[derive(Debug, Default)]
struct Cpu {
    last: Mutex<Option<(Instant, Duration)>>,
}

impl Collector for Cpu {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let now = (Instant::now(), cpu_time());
        let before = self.last.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
        let cores = before.map_or(0.0, |(at, used)| {
            let elapsed = now.0.duration_since(at).as_secs_f64();
            if elapsed > 0.0 { now.1.saturating_sub(used).as_secs_f64() / elapsed } else { 0.0 }
        });
        let gauge = ConstGauge::new(cores);
        let help = "CPU cores that the process used since the last scrape";
        let metric = encoder.encode_descriptor("worker_cpu_used_cores", help, None, gauge.metric_type())?;
        gauge.encode(metric)
    }
}

/// User and system time of this process.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
