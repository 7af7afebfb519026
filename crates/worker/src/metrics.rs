//! Metrics of a worker, under the names of docs/observability.md where it has one.

use std::{
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
    time::{Duration, Instant},
};

use berth_spec::{Breaker, ByteSize, Gpu, GpuLoad, worker::BreakerState};
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

use crate::capacity::Capacity;

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

/// A GPU, by its id.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Device {
    gpu: String,
}

/// A circuit breaker.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BreakerLabels {
    kind: &'static str,
    dependency: String,
}

/// Metrics of the artifact cache: bytes and files on disk, hits, misses, evictions. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct CacheMetrics {
    pub(crate) bytes: Gauge,
    pub(crate) files: Gauge,
    pub(crate) hits: Counter,
    pub(crate) misses: Counter,
    pub(crate) evictions: Counter,
    pub(crate) fetched_bytes: Counter,
}

impl CacheMetrics {
    fn register(&self, registry: &mut Registry) {
        registry.register("berth_artifact_bytes", "Bytes fetched from artifact stores", self.fetched_bytes.clone());
        registry.register("berth_cache_bytes", "Disk that cached artifacts take", self.bytes.clone());
        registry.register("berth_cache_files", "Cached artifacts", self.files.clone());
        registry.register("berth_cache_hits", "Artifacts that were in the cache", self.hits.clone());
        registry.register("berth_cache_misses", "Artifacts that were not in the cache", self.misses.clone());
        registry.register("berth_cache_evictions", "Artifacts evicted for others", self.evictions.clone());
    }
}

/// Metrics of one worker: loads and their phases, memory, environments, breakers, GPUs. Clones share them.
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
    pub(crate) model_bytes: Histogram,
    pub(crate) loaded: Gauge,
    pub(crate) most_models: Gauge<f64, AtomicU64>,
    pub(crate) failed: Gauge,
    pub(crate) restarting: Gauge,
    pub(crate) memory_used: Gauge,
    pub(crate) memory_available: Gauge,
    pub(crate) memory_overhead: Gauge,
    environment_bytes: Gauge,
    environments: Gauge,
    pub(crate) system_memory: Gauge,
    pub(crate) degraded: Gauge,
    pub(crate) heartbeats_sent: Counter,
    pub(crate) heartbeats_failed: Counter,
    breakers: Family<BreakerLabels, Gauge>,
    gpu_memory: Family<Device, Gauge>,
    gpu_memory_used: Family<Device, Gauge>,
    gpu_utilization: Family<Device, Gauge>,
}

/// The last loads, newest in the lowest bit: a rate over all time hides an outage, and one over a minute hides rare loads.
#[derive(Debug, Default)]
struct Outcomes {
    succeeded: u64,
    count: u32,
}

impl WorkerMetrics {
    /// Makes the metrics and registers them under their names; call it once for a registry.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        // 1 ms to an hour: beyond the last one an alert would see nothing, and 10 minutes is where one looks.
        let seconds = || Histogram::new(exponential_buckets(0.001, 2.0, 20).chain([600.0, 1_200.0, 3_600.0]));
        let metrics = Self {
            cache: CacheMetrics::default(),
            load: seconds(),
            reload: seconds(),
            unload: seconds(),
            phases: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.000_25, 2.0, 20))),
            failures: Family::default(),
            success_rate: Gauge::default(),
            outcomes: Arc::default(),
            // 256 KiB to 1 TiB.
            model_bytes: Histogram::new(exponential_buckets(262_144.0, 4.0, 12)),
            loaded: Gauge::default(),
            most_models: Gauge::default(),
            failed: Gauge::default(),
            restarting: Gauge::default(),
            memory_used: Gauge::default(),
            memory_available: Gauge::default(),
            memory_overhead: Gauge::default(),
            environment_bytes: Gauge::default(),
            environments: Gauge::default(),
            system_memory: Gauge::default(),
            degraded: Gauge::default(),
            heartbeats_sent: Counter::default(),
            heartbeats_failed: Counter::default(),
            breakers: Family::default(),
            gpu_memory: Family::default(),
            gpu_memory_used: Family::default(),
            gpu_utilization: Family::default(),
        };
        metrics.success_rate.set(100.0);
        metrics.register_models(registry);
        metrics.register_machine(registry);
        metrics.register_gpus(registry);
        metrics.cache.register(registry);
        metrics
    }

    fn register_models(&self, registry: &mut Registry) {
        registry.register(
            "worker_models_load_duration_seconds",
            "From the begin of the fetch to ready",
            self.load.clone(),
        );
        registry.register(
            "worker_models_reload_duration_seconds",
            "As load, beside an older revision",
            self.reload.clone(),
        );
        registry.register(
            "worker_models_unload_duration_seconds",
            "From the last request to freed",
            self.unload.clone(),
        );
        registry.register("worker_models_load_success_rate", "Percent of the last 64 loads", self.success_rate.clone());
        registry.register("worker_models_load_failures", "Loads that failed, by category", self.failures.clone());
        registry.register("berth_model_bytes", "Memory of models when they were loaded", self.model_bytes.clone());
        registry.register("worker_models_loaded_count", "Models in memory", self.loaded.clone());
        registry.register(
            "berth_worker_models_max",
            "The most models in memory; inf: no limit",
            self.most_models.clone(),
        );
        registry.register("worker_models_failed_count", "Models that could not be made ready", self.failed.clone());
        registry.register(
            "berth_worker_models_restarting",
            "Models whose process died and is not up again: they answer nobody",
            self.restarting.clone(),
        );
        registry.register(
            "worker_memory_used_bytes",
            "Memory that models take or are promised",
            self.memory_used.clone(),
        );
        registry.register(
            "berth_worker_memory_overhead_bytes",
            "Memory of the process beside its models, which they cannot have",
            self.memory_overhead.clone(),
        );
        registry.register("worker_memory_available_bytes", "Memory left for models", self.memory_available.clone());
        registry.register(
            "berth_load_phase_seconds",
            "Phases of a load: queued, prepare (model cards), fetch, load, validate",
            self.phases.clone(),
        );
    }

    fn register_gpus(&self, registry: &mut Registry) {
        registry.register("berth_gpu_memory_bytes", "Memory of a GPU", self.gpu_memory.clone());
        registry.register(
            "berth_gpu_memory_used_bytes",
            "Memory of a GPU in use by whatever process",
            self.gpu_memory_used.clone(),
        );
        registry.register(
            "berth_gpu_utilization",
            "The part of the time in which a GPU computed, in percent",
            self.gpu_utilization.clone(),
        );
    }

    /// Sets the memory that each GPU has in all. Called at the start: devices do not change.
    pub(crate) fn gpus(&self, gpus: &[Gpu]) {
        for gpu in gpus {
            let device = Device { gpu: gpu.id.clone() };
            self.gpu_memory.get_or_create(&device).set(i64::try_from(gpu.memory.0).unwrap_or(i64::MAX));
        }
    }

    /// Sets the load of the GPUs.
    pub(crate) fn gpu_load(&self, gpus: &[GpuLoad]) {
        for gpu in gpus {
            let device = Device { gpu: gpu.id.to_string() };
            let used = i64::try_from(gpu.memory_used.0).unwrap_or(i64::MAX);
            self.gpu_memory_used.get_or_create(&device).set(used);
            self.gpu_utilization.get_or_create(&device).set(gpu.utilization_percent.into());
        }
    }

    fn register_machine(&self, registry: &mut Registry) {
        registry.register(
            "berth_environment_bytes",
            "Disk that Python environments take",
            self.environment_bytes.clone(),
        );
        registry.register("berth_environments", "Python environments on disk", self.environments.clone());
        registry.register(
            "berth_worker_system_memory_used_bytes",
            "Memory of the machine or control group in use, models and all",
            self.system_memory.clone(),
        );
        registry.register(
            "berth_worker_degraded",
            "1 while more than 80 % of the machine's or control group's memory is in use",
            self.degraded.clone(),
        );
        registry.register("worker_heartbeat_sent", "Reports to the controller", self.heartbeats_sent.clone());
        registry.register("worker_heartbeat_failed", "Reports that nobody took", self.heartbeats_failed.clone());
        registry.register(
            "berth_worker_circuit_breaker",
            "Circuit breakers that are not simply closed: 0 closed and counting, 1 half-open, 2 open",
            self.breakers.clone(),
        );
        let cores: Gauge<f64, AtomicU64> = Gauge::default();
        cores.set(f64::from(Capacity::probe().cpus));
        registry.register("berth_worker_cpu_cores", "CPU cores of the machine or control group", cores);
        registry.register_collector(Box::new(Cpu::default()));
    }

    /// Observes the time that a phase of a load took; told in seconds.
    pub(crate) fn phase(&self, phase: &'static str, milliseconds: f64) {
        self.phases.get_or_create(&Phase { phase }).observe(milliseconds / 1e3);
    }

    /// Sets the state of a circuit breaker; `None`: it is simply closed again.
    pub(crate) fn breaker(&self, breaker: &Breaker, state: Option<BreakerState>) {
        let labels = BreakerLabels { kind: breaker.kind.as_str(), dependency: breaker.dependency.to_string() };
        match state {
            Some(state) => drop(self.breakers.get_or_create(&labels).set(match state {
                BreakerState::Closed => 0,
                BreakerState::HalfOpen => 1,
                BreakerState::Open => 2,
            })),
            None => drop(self.breakers.remove(&labels)),
        }
    }

    /// Sets the disk space of environments, and their number.
    pub(crate) fn environments(&self, size: ByteSize, count: usize) {
        self.environment_bytes.set(i64::try_from(size.0).unwrap_or(i64::MAX));
        self.environments.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// A load ended well.
    pub(crate) fn succeeded(&self) {
        self.outcome(1);
    }

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

/// The cores that this process and its models' processes used since the last scrape.
#[derive(Debug, Default)]
struct Cpu {
    last: Mutex<Option<(Instant, Duration)>>,
}

impl Collector for Cpu {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let now = (Instant::now(), cpu_time() + cpu_time_of_children());
        let before = self.last.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
        // Processes that ended take their time with them: then less was used than before.
        let cores = before.map_or(0.0, |(at, used)| {
            let elapsed = now.0.duration_since(at).as_secs_f64();
            if elapsed > 0.0 { now.1.saturating_sub(used).as_secs_f64() / elapsed } else { 0.0 }
        });
        let gauge = ConstGauge::new(cores);
        let help = "CPU cores that the process and its models' processes used since the last scrape";
        let metric = encoder.encode_descriptor("worker_cpu_used_cores", help, None, gauge.metric_type())?;
        gauge.encode(metric)
    }
}

/// User and system time of this process.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// User and system time of the processes that this one has started; nothing where the kernel does not list them.
fn cpu_time_of_children() -> Duration {
    /// The kernel counts processor time in hundredths of a second, whatever its own tick is.
    const TICK: Duration = Duration::from_millis(10);
    let threads = fs_err::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let children = threads.filter_map(|thread| fs_err::read_to_string(thread.path().join("children")).ok());
    let ticks = |list: String| -> u64 { list.split_whitespace().filter_map(ticks_of).sum() };
    TICK * u32::try_from(children.map(ticks).sum::<u64>()).unwrap_or(u32::MAX)
}

/// Of one process: `PID (NAME) STATE …`, of which the name may hold anything.
fn ticks_of(pid: &str) -> Option<u64> {
    let stat = fs_err::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}
