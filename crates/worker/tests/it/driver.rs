//! The whole worker with a scripted runtime: what its controller and its gateway see.

mod cards;
mod gpus;

use std::{sync::Arc, time::Duration};

use berth_mesh::local::LocalReplicas;
use berth_spec::{
    AssignmentChange, ByteSize, Failure, FailureCategory, FromController, Generation, InventoryChange, Placed,
    Residency, Revision, RevisionId, Serving, WorkerId, WorkerLimits,
    deployment::{Batching, Concurrency, ModelFormat, RuntimeOptions, Warmup},
    residency::Deaths,
};
use berth_worker::{
    Config, Stopped, WorkerLink, build_with, prepare,
    runtime::{
        Health, LoadError, Runtime,
        fake::{FakeRuntime, Gate, Script},
    },
};
use prometheus_client::registry::Registry;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Longer than anything here may take, also on a machine that compiles beside the tests.
const PATIENCE: Duration = Duration::from_secs(120);

struct Bench {
    dir: tempfile::TempDir,
    runtime: Arc<FakeRuntime>,
    local: Arc<LocalReplicas>,
    registry: Registry,
    assignments: mpsc::Sender<FromController>,
    reports: mpsc::Receiver<InventoryChange>,
    shutdown: CancellationToken,
    worker: JoinHandle<Stopped>,
    generation: u64,
    limits: WorkerLimits,
}

impl Bench {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let runtime = Arc::new(FakeRuntime::default());
        Self::start_with(dir, Arc::clone(&runtime), runtime, prepare::Settings::default())
    }

    /// With another runtime in front of the scripted one.
    fn start_with(
        dir: tempfile::TempDir,
        runtime: Arc<FakeRuntime>,
        front: Arc<dyn Runtime>,
        cards: prepare::Settings,
    ) -> Self {
        let config = Self::config(&dir, cards);
        Self::start_of(dir, runtime, front, config)
    }

    fn config(dir: &tempfile::TempDir, cards: prepare::Settings) -> Config {
        let mut config = Config::new(WorkerId::new("w").expect("a name"), dir.path());
        config.memory = Some(ByteSize::mib(64));
        config.cards = cards;
        config
    }

    fn start_of(dir: tempfile::TempDir, runtime: Arc<FakeRuntime>, front: Arc<dyn Runtime>, config: Config) -> Self {
        let local = Arc::new(LocalReplicas::default());
        let mut registry = Registry::default();
        let worker = build_with(config, vec![front], Arc::clone(&local), &mut registry).expect("built");
        let (assignments, receiver) = mpsc::channel(8);
        let (sender, reports) = mpsc::channel(8);
        let shutdown = CancellationToken::new();
        let link = WorkerLink { assignments: receiver, reports: sender };
        assignments.try_send(FromController::Attached).expect("room");
        let worker = TaskTracker::new().spawn(worker.run(link, shutdown.clone()));
        Self {
            dir,
            runtime,
            local,
            registry,
            assignments,
            reports,
            shutdown,
            worker,
            generation: 0,
            limits: WorkerLimits::default(),
        }
    }

    /// A replica of an artifact in a file.
    fn placed(&self, name: &str) -> Placed {
        let id: RevisionId = format!("{name}@000000000001").parse().expect("a revision");
        let path = self.dir.path().join(format!("{name}.onnx"));
        fs_err::write(&path, name).expect("written");
        let serving = Serving {
            deployment: id.deployment().clone(),
            warmup: Warmup::Off,
            concurrency: Concurrency { max: None, queue: 8 },
            batching: Batching { max_rows: 1, max_delay: Duration::ZERO },
            drain_timeout: Duration::from_secs(60),
        };
        let revision = Revision {
            id,
            format: ModelFormat::ONNX,
            uri: url::Url::from_file_path(path).expect("a path").to_string(),
            digest: None,
            version: "1".to_owned(),
            signature: None,
            runtime: RuntimeOptions::default(),
            memory: None,
            card: None,
        };
        Placed {
            revision: Arc::new(revision),
            claim: ByteSize::mib(4),
            gpu: None,
            urgent: false,
            serving: Arc::new(serving),
        }
    }

    async fn assign(&mut self, set: Vec<Placed>) {
        self.generation += 1;
        let (generation, limits) = (Generation(self.generation), self.limits);
        let change = AssignmentChange { generation, base: None, limits, set, unset: vec![] };
        self.assignments.send(change.into()).await.expect("the worker listens");
    }

    /// The next report of the worker; `None`: it has ended.
    async fn word(&mut self) -> Option<InventoryChange> {
        tokio::time::timeout(PATIENCE, self.reports.recv()).await.expect("a word of the worker")
    }

    /// Waits for a report that names the replica in this state; `None`: gone.
    async fn until(&mut self, revision: &RevisionId, is: impl Fn(Option<&Residency>) -> bool) -> Option<Residency> {
        let wait = async {
            loop {
                let report = self.reports.recv().await.expect("the worker lives");
                let named = report.replicas.iter().find(|(id, _)| id == revision);
                match named.map(|(_, residency)| residency.clone()) {
                    Some(residency) if is(residency.as_ref()) => return residency,
                    None if report.whole && is(None) => return None,
                    _ => {}
                }
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("the report comes")
    }

    fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).expect("encoded");
        text
    }
}

#[tokio::test]
async fn loads_serves_drains_and_says_so() {
    let mut bench = Bench::start();
    let first = bench.word().await.expect("the first word");
    assert!(first.whole && first.seen == Generation(0) && first.replicas.is_empty(), "{first:?}");
    let placed = bench.placed("a");
    let id = placed.revision.id.clone();
    bench.assign(vec![placed]).await;
    let Some(Residency::Ready(ready)) = bench.until(&id, |r| r.is_some_and(Residency::is_ready)).await else {
        panic!("it should be ready")
    };
    assert_eq!((ready.memory, ready.measured), (ByteSize::mib(1), true));
    let metrics = bench.metrics();
    for line in [
        "worker_models_loaded_count 1",
        "worker_models_load_duration_seconds_count 1",
        "worker_models_load_success_rate 100.0",
        "worker_memory_used_bytes 4194304",
        "berth_load_phase_seconds_count{phase=\"load\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} in\n{metrics}");
    }

    let lease = bench.local.get(&id).and_then(|replica| replica.acquire()).expect("it takes requests");
    bench.assign(vec![]).await;
    bench.until(&id, |r| matches!(r, Some(Residency::Draining { in_flight: 1, .. }))).await;
    assert!(bench.local.get(&id).is_some_and(|replica| replica.acquire().is_none()), "no new ones");
    assert_eq!(bench.runtime.loaded(), 1, "the last request still has its model");
    drop(lease);
    bench.until(&id, |r| r.is_none()).await;
    assert_eq!(bench.runtime.loaded(), 0, "freed");
    assert!(bench.local.get(&id).is_none());
}

#[tokio::test]
async fn a_process_that_dies_is_told_and_so_is_that_it_is_up_again() {
    let mut bench = Bench::start();
    let placed = bench.placed("a");
    let (id, health) = (placed.revision.id.clone(), watch::Sender::new(Health::default()));
    let script = Script { health: Some(health.clone()), ..Script::default() };
    bench.runtime.script(placed.revision.uri.clone(), script);
    bench.assign(vec![placed.clone()]).await;
    bench.until(&id, |r| r.is_some_and(Residency::is_ready)).await;
    let died = |count, again_at| {
        let cause = "it ended with code 3".to_owned();
        let deaths = Deaths { count, in_a_row: count, at: berth_spec::Time(1), cause, again_at };
        health.send_replace(Health { memory: None, deaths: Some(Arc::new(deaths)), lost: None });
    };
    for count in 1..4 {
        died(count, Some(berth_spec::Time(9)));
        let down = bench.until(&id, |r| r.is_some_and(|r| !r.is_ready())).await.expect("it is there");
        assert_eq!((down.as_str(), down.is_loaded()), ("Restarting", true));
        assert!(bench.metrics().contains("berth_worker_models_restarting 1"), "{}", bench.metrics());
        died(count, None);
        bench.until(&id, |r| r.is_some_and(Residency::is_ready)).await;
        assert!(bench.metrics().contains("berth_worker_models_restarting 0"), "{}", bench.metrics());
    }
    assert_eq!(bench.runtime.loads(), 1, "its supervisor starts it, not the worker");
    bench.assign(vec![]).await;
    bench.until(&id, |r| r.is_none()).await;
    bench.shutdown.cancel();
    assert_eq!(
        bench.worker.await.expect("no panic"),
        Stopped { drained: 1, cut: 0, left: 0 },
        "nobody listens any more"
    );
}

#[tokio::test]
async fn metrics_go_by_the_tighter_limit() {
    let mut bench = Bench::start();
    let (first, second) = (bench.placed("a"), bench.placed("b"));
    let ids = [&first, &second].map(|placed| placed.revision.id.clone());
    bench.assign(vec![first.clone()]).await;
    bench.until(&ids[0], |r| r.is_some_and(Residency::is_ready)).await;
    for line in ["worker_memory_available_bytes 62914560", "berth_worker_models_max inf"] {
        assert!(bench.metrics().contains(line), "{line} in\n{}", bench.metrics());
    }
    bench.limits = WorkerLimits { memory: Some(ByteSize::mib(16)), models: Some(2) };
    bench.assign(vec![first, second]).await;
    bench.until(&ids[1], |r| r.is_some_and(Residency::is_ready)).await;
    // 16 MiB without two claims of 4 MiB.
    for line in ["worker_memory_available_bytes 8388608", "berth_worker_models_max 2.0"] {
        assert!(bench.metrics().contains(line), "{line} in\n{}", bench.metrics());
    }
}

#[tokio::test]
async fn a_failed_load_is_reported_with_its_kind_and_leaves_nothing() {
    let mut bench = Bench::start();
    let (load, validate) = (bench.placed("load"), bench.placed("validate"));
    let error = |category| Some(LoadError::new(category, "scripted"));
    let script = Script { load: error(FailureCategory::InvalidModel), ..Script::default() };
    bench.runtime.script(load.revision.uri.clone(), script);
    let script = Script { validate: error(FailureCategory::Validation), ..Script::default() };
    bench.runtime.script(validate.revision.uri.clone(), script);
    for (placed, expected) in [(load, FailureCategory::InvalidModel), (validate, FailureCategory::Validation)] {
        let id = placed.revision.id.clone();
        bench.assign(vec![placed]).await;
        let failed = bench.until(&id, |r| matches!(r, Some(Residency::Failed(_)))).await;
        let Some(Residency::Failed(failure)) = failed else { panic!("it should have failed") };
        let Failure { category, attempts, retry_at, .. } = &*failure;
        assert_eq!((*category, *attempts, *retry_at), (expected, 1, None));
        assert!(bench.local.get(&id).is_none(), "never callable");
    }
    bench.shutdown.cancel();
    assert_eq!(bench.worker.await.expect("no panic"), Stopped::default());
    assert_eq!(bench.runtime.loaded(), 0);
}

#[tokio::test]
async fn a_load_that_never_returns_fails_and_frees_its_slot() {
    let mut bench = Bench::start();
    let (stuck, gate) = (bench.placed("stuck"), Arc::new(Gate::default()));
    let id = stuck.revision.id.clone();
    let script = Script { gate: Some(Arc::clone(&gate)), ..Script::default() };
    bench.runtime.script(stuck.revision.uri.clone(), script);
    bench.assign(vec![stuck]).await;
    let end = std::time::Instant::now() + PATIENCE;
    while bench.runtime.loads() == 0 {
        assert!(std::time::Instant::now() < end, "it does not even begin to load");
        tokio::task::yield_now().await;
    }
    // A blocking thread is at work, so that the paused clock would not move by itself.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(3600)).await;
    tokio::time::resume();
    let failed = bench.until(&id, |r| matches!(r, Some(Residency::Failed(_)))).await;
    let Some(Residency::Failed(failure)) = failed else { panic!("it should have failed") };
    assert_eq!(failure.category, FailureCategory::Timeout, "{}", failure.message);
    gate.open();
}

#[tokio::test]
async fn a_format_without_a_runtime_is_a_typed_failure() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = Config::new(WorkerId::new("w").expect("a name"), dir.path());
    let worker = build_with(config, Vec::new(), Arc::default(), &mut Registry::default()).expect("it starts anyway");
    assert!(worker.info().runtimes.is_empty());
    assert!(worker.info().memory > ByteSize::ZERO && worker.info().cpus > 0.0);
}

#[tokio::test]
async fn at_shutdown_everything_is_drained_and_counted() {
    let mut bench = Bench::start();
    let placed: Vec<_> = ["a", "b"].iter().map(|name| bench.placed(name)).collect();
    let ids: Vec<_> = placed.iter().map(|placed| placed.revision.id.clone()).collect();
    bench.assign(placed).await;
    for _ in &ids {
        // Either may come first.
        bench.until(&ids[0], |_| true).await;
    }
    while ids.iter().any(|id| bench.local.get(id).is_none()) {
        bench.word().await.expect("more words");
    }
    let lease = bench.local.get(&ids[0]).and_then(|replica| replica.acquire()).expect("it takes requests");
    bench.shutdown.cancel();
    bench.until(&ids[0], |r| matches!(r, Some(Residency::Draining { .. }))).await;
    drop(lease);
    let mut last = None;
    while let Some(report) = bench.word().await {
        last = Some(report);
    }
    let last = last.expect("a last word");
    assert!(last.whole && last.replicas.is_empty(), "{last:?}");
    assert_eq!(bench.worker.await.expect("no panic"), Stopped { drained: 2, cut: 0, left: 0 });
    assert_eq!(bench.runtime.loaded(), 0);
}
