//! Runs the agent: one loop that owns it, performs its effects, and feeds back what came of them.
//!
//! ```text
//!  controller ──▶┐                ┌─▶ effects: fetch, load, validate, announce, drain, unload ────────┐
//!  completions ─▶├─▶ Agent::on ───┤                                                                  │
//!  wake_at, load ┘   ▲            └─▶ outbox ─▶ reports (the latest word, never a backlog)           │
//!                    └───────────────────────────────────────────────────────────────────────────────┘
//! ```
//! At shutdown it drains and unloads everything, says so in a last whole report, and ends.

mod acquire;
mod clock;
mod effects;
mod load;
mod load_threads;
mod outbox;
mod overhead;
mod ready;
mod retire;
mod telemetry;
mod usage;

use std::{
    num::NonZero,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use berth_mesh::local::LocalReplicas;
use berth_spec::{ByteSize, CredentialSet, FailureCategory, FromController, Gpu, InventoryChange, WorkerInfo};
use prometheus_client::registry::Registry;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use self::{
    acquire::LoadDirs,
    clock::Clock,
    effects::{Deps, EffectRunner},
    load::LoadWatch,
    load_threads::LoadThreads,
    outbox::Outbox,
    overhead::OverheadWatch,
    usage::UsageWatch,
};
use crate::{
    agent::{Agent, Effect, Event},
    artifacts::Artifacts,
    capacity::Capacity,
    config::Config,
    fault::Fault,
    gpu::Gpus,
    metrics::WorkerMetrics,
    order::Limits,
    prepare::Preparer,
    replica::Retries,
    runtime::{
        Runtime,
        metrics::Families,
        onnx::{OnnxEngine, Options},
        process::Processes,
        python::PythonRuntime,
        spi::{PerModel, SpiRuntime},
    },
};

/// Completions that may wait for the agent; when full, the work waits. It covers what comes in during one step of the agent.
const COMPLETIONS: usize = 256;

/// The share of models' memory that may be held beyond it while models are being unloaded: a load that lacks no more than this does not
/// wait for them. ModelMesh sets a hundredth to a tenth of its capacity aside for that; so little beyond it is less than what a process
/// takes beside its models.
const UNLOAD_RESERVE_SHARE: u64 = 64;

/// The time that the stop may take beyond the longest drain: a load under way can end, and a stuck engine does not hold
/// up the end of the process for long.
const STOP_GRACE: Duration = Duration::from_secs(15);

/// The time that the last report of a worker that holds nothing any more may wait for a controller: a busy one hears
/// it, and a cluster that stops whole is not held up.
const LAST_REPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// The ends of the channels to the controller.
pub struct WorkerLink {
    /// The assignments, and the news that a controller was attached, which comes first. When it closes, the worker
    /// keeps what it has.
    pub assignments: mpsc::Receiver<FromController>,
    /// The reports of what it holds. While the queue is full, later reports are joined into one.
    pub reports: mpsc::Sender<InventoryChange>,
}

/// A worker whose settings are checked and whose GPUs are found.
pub struct Worker {
    info: WorkerInfo,
    limits: Limits,
    deps: Deps,
    gpus: Gpus,
    retries: Retries,
    missing: Vec<String>,
    leaving: CancellationToken,
}

/// The state that a worker left behind when it stopped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stopped {
    /// Replicas that were unloaded after their last request.
    pub drained: usize,
    /// Requests that were still in flight when the time for draining was up.
    pub cut: usize,
    /// Replicas that could not be unloaded in time.
    pub left: usize,
}

/// A worker with the built-in runtimes. One whose library is missing is left out, and [`Worker::missing`] says why.
/// Blocks for the time of opening the cache.
pub fn build(config: Config, local: Arc<LocalReplicas>, registry: &mut Registry) -> Result<Worker, Fault> {
    let families = Families::register(registry);
    let engine = OnnxEngine::open(config.onnx_library.as_deref(), &Options::default(), families.clone());
    let mut config = config;
    let gpus = WorkerGpus::find(&mut config)?;
    let mut runtimes = servers(&mut config, &gpus, &families)?;
    let disk = |error: std::io::Error| Fault::disk(&error);
    let processes = Processes::open(&config.data, &config.isolation).map_err(disk)?;
    let missing = match engine {
        Ok(engine) => {
            runtimes.push(Arc::new(engine.with_processes(Arc::clone(&processes))));
            Vec::new()
        }
        Err(error) => vec![error.to_string()],
    };
    let python = PythonRuntime::over(processes, &config.data, families).map_err(disk)?;
    runtimes.push(Arc::new(python));
    for reason in &missing {
        tracing::warn!(event = "runtime_missing", runtime = "onnx", reason);
    }
    Ok(Worker { missing, ..build_on(gpus, config, runtimes, local, registry)? })
}

/// A worker with the declared model servers and nothing else.
pub fn build_with_servers(
    mut config: Config,
    local: Arc<LocalReplicas>,
    registry: &mut Registry,
) -> Result<Worker, Fault> {
    let gpus = WorkerGpus::find(&mut config)?;
    let runtimes = servers(&mut config, &gpus, &Families::register(registry))?;
    // The models are elsewhere: this machine's memory says nothing about them.
    let said: Option<ByteSize> = runtimes.iter().map(|runtime| runtime.info().memory).sum();
    config.memory = config.memory.or(said);
    // Each server has a reserve of its own.
    config.unload_reserve = Some(ByteSize::ZERO);
    build_on(gpus, config, runtimes, local, registry)
}

/// The declared model servers, once they are ready. Blocks. As many loads run at once as they take, unless the operator says.
fn servers(config: &mut Config, gpus: &WorkerGpus, families: &Families) -> Result<Vec<Arc<dyn Runtime>>, Fault> {
    let mut runtimes: Vec<Arc<dyn Runtime>> = Vec::new();
    let mut loads = 0;
    for mut settings in std::mem::take(&mut config.runtimes) {
        if let Some(factory) = settings.per_model.take() {
            let runtime = PerModel::new(settings, factory, gpus.devices.clone(), families.clone());
            loads += runtime.parallel_loads();
            runtimes.push(Arc::new(runtime));
            continue;
        }
        settings.program = settings.program.map(|program| program.with_gpus(&gpus.devices));
        let runtime = SpiRuntime::open(settings, families.clone())
            .map_err(|error| Fault::new(FailureCategory::Runtime, error.to_string()))?;
        loads += runtime.parallel_loads();
        runtimes.push(Arc::new(runtime));
    }
    if loads > 0 {
        config.parallel_loads.get_or_insert(loads.max(default_loads()));
    }
    Ok(runtimes)
}

/// Loads at once of a worker that was not told.
fn default_loads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    (cores / 2).clamp(1, 4)
}

/// The GPUs that models of a worker may use.
struct WorkerGpus {
    /// Those that the driver knows: their load is looked at.
    found: Gpus,
    /// The declared ones; else those that were found.
    devices: Vec<Gpu>,
}

impl WorkerGpus {
    fn find(config: &mut Config) -> Result<Self, Fault> {
        let found = Gpus::find(config.nvml_library.as_deref())
            .map_err(|error| Fault::new(FailureCategory::Runtime, error.to_string()))?;
        let declared = std::mem::take(&mut config.gpus);
        let devices = if declared.is_empty() { found.devices().to_vec() } else { numbered(declared) };
        Ok(Self { found, devices })
    }
}

/// Builds a worker on runtimes that the caller made, and registers its metrics. Those of `config` are not opened.
pub fn build_with(
    mut config: Config,
    runtimes: Vec<Arc<dyn Runtime>>,
    local: Arc<LocalReplicas>,
    registry: &mut Registry,
) -> Result<Worker, Fault> {
    let gpus = WorkerGpus::find(&mut config)?;
    build_on(gpus, config, runtimes, local, registry)
}

/// A worker with these runtimes and GPUs.
fn build_on(
    gpus: WorkerGpus,
    config: Config,
    runtimes: Vec<Arc<dyn Runtime>>,
    local: Arc<LocalReplicas>,
    registry: &mut Registry,
) -> Result<Worker, Fault> {
    let metrics = WorkerMetrics::register(registry);
    let cache = config.data.join("cache");
    let credentials = watch::Sender::<Arc<CredentialSet>>::default();
    let artifacts = Artifacts::open(cache, config.cache, config.credentials, metrics.cache.clone())?;
    let artifacts = artifacts.with_keys(credentials.subscribe()).with_storages(config.storages);
    let prepared = config.data.join("prepared");
    let preparer = Preparer::open(&prepared, config.cache, config.cards, credentials.subscribe())?;
    let load_dirs = LoadDirs::open(prepared.join("loaded"))?;
    let capacity = Capacity::probe();
    let memory = config.memory.unwrap_or_else(|| capacity.for_models());
    let limits = Limits {
        memory,
        unload_reserve: config.unload_reserve.unwrap_or(ByteSize(memory.0 / UNLOAD_RESERVE_SHARE)),
        models: config.max_models,
        parallel_loads: config.parallel_loads.unwrap_or_else(default_loads).max(1),
        parallel_fetches: config.parallel_fetches.max(1),
    };
    let described = runtimes.iter().map(|runtime| config.runtime_limits.under(runtime.info())).collect();
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let info = WorkerInfo {
        id: config.id,
        incarnation: u64::try_from(started.as_nanos()).unwrap_or(u64::MAX),
        labels: config.labels,
        memory,
        cpus: capacity.cpus,
        gpus: gpus.devices,
        max_models: config.max_models,
        runtimes: described,
        schema_versions: berth_spec::card::SCHEMA_VERSIONS.map(str::to_owned).to_vec(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    metrics.gpus(&info.gpus);
    tracing::info!(
        event = "worker_built",
        worker_id = %info.id,
        memory = %memory,
        memory_from = if config.memory.is_some() { "--memory" } else { capacity.memory_from },
        cpus = info.cpus,
        parallel_loads = limits.parallel_loads,
    );
    Ok(Worker {
        info,
        limits,
        deps: Deps {
            runtimes,
            artifacts: Arc::new(artifacts),
            preparer: Arc::new(preparer),
            load_dirs: Arc::new(load_dirs),
            load_threads: LoadThreads::default(),
            load_times: Arc::default(),
            local,
            metrics,
            credentials,
        },
        gpus: gpus.found,
        retries: config.retries,
        missing: Vec::new(),
        leaving: CancellationToken::new(),
    })
}

/// Declared GPUs, each with its number as its id where it has none: `CUDA_VISIBLE_DEVICES` takes numbers too.
fn numbered(gpus: Vec<Gpu>) -> Vec<Gpu> {
    let id = |(n, gpu): (usize, Gpu)| Gpu { id: if gpu.id.is_empty() { n.to_string() } else { gpu.id }, ..gpu };
    gpus.into_iter().enumerate().map(id).collect()
}

impl Worker {
    /// The description that it sends when it joins.
    #[must_use]
    pub fn info(&self) -> &WorkerInfo {
        &self.info
    }

    /// The reason why runtimes are missing that it could have, one line each with the remedy.
    #[must_use]
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// Cancel it to have the worker announce that it will leave: it goes on answering, and its models move elsewhere.
    #[must_use]
    pub fn leaving(&self) -> CancellationToken {
        self.leaving.clone()
    }

    fn agent(&self) -> Agent {
        Agent::new(self.info.id.clone(), self.info.incarnation, self.limits)
            .retrying(self.retries)
            .reading(self.info.schema_versions.clone())
            .with_gpus(self.info.gpus.clone())
    }

    /// Works until `shutdown`, then drains and unloads everything.
    pub async fn run(self, link: WorkerLink, shutdown: CancellationToken) -> Stopped {
        let WorkerLink { mut assignments, reports } = link;
        let (completions, mut completed) = mpsc::channel(COMPLETIONS);
        let clock = Clock::start();
        let mut agent = self.agent();
        let mut outbox = Outbox::default();
        let (mut load, mut usage) = (LoadWatch::new(self.limits.memory, self.gpus), UsageWatch::default());
        let mut overhead = OverheadWatch::new(&self.deps.runtimes, self.limits.memory);
        let mut effects = EffectRunner::new(self.info.id, self.deps, completions);
        let (mut connected, mut announced, mut give_up) = (true, false, None);
        let mut last_report_by = None;
        loop {
            let event = loop {
                if agent.stopped() {
                    if outbox.is_empty() {
                        return effects.finish(0).await;
                    }
                    // Where no controller is left to take the last report, it is not waited for.
                    let soon = *last_report_by.get_or_insert_with(|| Instant::now() + LAST_REPORT_TIMEOUT);
                    give_up = give_up.map(|at: Instant| at.min(soon));
                }
                let wake = agent.wake_at().map(|at| clock.instant(at));
                tokio::select! {
                    biased;
                    () = shutdown.cancelled(), if give_up.is_none() => {
                        give_up = Some(Instant::now() + STOP_GRACE + effects.longest_drain(&agent));
                        break Event::Stop;
                    }
                    // Where nobody listens any more, it is dropped: the next controller asks for the whole.
                    permit = reports.reserve(), if outbox.is_due(Instant::now()) => {
                        // At the end of a process its controller may end first, which is no failure.
                        (permit.is_ok() || give_up.is_none()).then(|| effects.log_heartbeat(&agent, permit.is_ok()));
                        if let (Ok(permit), Some(report)) = (permit, outbox.take()) {
                            permit.send(report);
                        }
                    }
                    () = sleep_until(outbox.due()), if !outbox.is_due(Instant::now()) => {}
                    () = self.leaving.cancelled(), if !announced => {
                        announced = true;
                        break Event::Leave;
                    }
                    Some(completion) = completed.recv() => break effects.absorb(completion),
                    change = assignments.recv(), if connected => match change {
                        Some(FromController::Attached) => break Event::Attached,
                        Some(FromController::Assigned(change)) => {
                            effects.log_command(&change);
                            break Event::Assigned(change);
                        }
                        Some(FromController::Credentials(set)) => {
                            let generation = set.generation;
                            effects.take_credentials(set);
                            break Event::Credentials(generation);
                        }
                        None => connected = false,
                    },
                    () = sleep_until(wake) => break Event::Tick,
                    () = load.due() => {
                        for (revision, health) in effects.health() {
                            perform(&mut agent, Event::Health { revision, health }, &clock, &mut effects, &mut outbox);
                        }
                        if let Some(used) = usage.look(effects.counts(), clock.now()) {
                            perform(&mut agent, Event::Used(used), &clock, &mut effects, &mut outbox);
                        }
                        if let Some(news) = overhead.look() {
                            perform(&mut agent, news, &clock, &mut effects, &mut outbox);
                        }
                        if let Some(changed) = load.look(&agent, effects.requests(), clock.now()) {
                            break Event::Load(changed);
                        }
                    }
                    () = sleep_until(give_up) => {
                        let left = agent.len();
                        return effects.finish(left).await;
                    }
                }
            };
            for event in overhead.before(&event).into_iter().chain([event]) {
                perform(&mut agent, event, &clock, &mut effects, &mut outbox);
            }
            effects.gauge(&agent);
        }
    }
}

/// Performs what the agent wants done after an event, and after those with which its effects are answered at once.
fn perform(agent: &mut Agent, event: Event, clock: &Clock, effects: &mut EffectRunner, outbox: &mut Outbox) {
    let mut events = vec![event];
    while !events.is_empty() {
        for effect in agent.on_all(std::mem::take(&mut events), clock.now()) {
            match effect {
                Effect::Report(change) => {
                    effects.log_report(&change);
                    outbox.put(change, Instant::now());
                }
                effect => events.extend(effects.perform(effect)),
            }
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
