//! The cost of one change in a large fleet: the real controller, store and wire format; 1,000 simulated workers hold 100,000
//! replicas. Simulated ones say at once that what they were assigned is ready.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use berth_control::{Config, Handle, handle::ApplyRequest, store::Store};
use berth_spec::{
    AssignmentChange, ByteSize, Digest, FromController, GatewayEvent, InventoryChange, Origin, Residency, RevisionId,
    WorkerId, WorkerInfo, WorkerState,
    deployment::ModelFormat,
    manifest::{self, ParseContext},
    residency::{Phases, Ready},
};
use berth_wire::fleet::InParts;
use prometheus_client::registry::Registry;
use prost::Message as _;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The size of the fleet, as in the bars for planning (docs/benchmarks.md).
pub(crate) const WORKERS: usize = 1_000;
pub(crate) const REPLICAS: usize = 100_000;

/// Deployments in one request.
const CHUNK: usize = 1_000;

/// Changes that are measured.
pub(crate) const CHANGES: usize = 50;

/// Times and bytes of a declaration in a large fleet.
pub(crate) struct Change {
    /// Until all of them were placed and said to be ready.
    pub(crate) filled: Duration,
    /// One more deployment, from its declaration until its worker said that it is ready: median and slowest.
    pub(crate) p50: Duration,
    pub(crate) slowest: Duration,
    /// Bytes for it, to all workers together and to one gateway.
    pub(crate) to_workers: u64,
    pub(crate) to_gateway: u64,
}

/// Messages to all workers and to the gateway.
#[derive(Default)]
struct Sent {
    assignments: AtomicU64,
    routes: AtomicU64,
    ready: AtomicU64,
}

pub(crate) async fn measure(store: Arc<dyn Store>) -> Result<Change> {
    let (control, handle) = berth_control::build(Config::default(), store, &mut Registry::default());
    let (shutdown, sent) = (CancellationToken::new(), Arc::new(Sent::default()));
    let mut tasks = JoinSet::new();
    tasks.spawn({
        let shutdown = shutdown.clone();
        async move {
            if let Err(error) = control.run(shutdown).await {
                eprintln!("the controller ended: {error}");
            }
        }
    });
    for nth in 0..WORKERS {
        tasks.spawn(worker(handle.clone(), info(nth)?, Arc::clone(&sent)));
    }
    tasks.spawn(gateway(handle.clone(), Arc::clone(&sent)));
    let began = Instant::now();
    for from in (0..REPLICAS).step_by(CHUNK) {
        declare(&handle, from..from + CHUNK).await?;
    }
    settled(&sent, REPLICAS).await?;
    let filled = began.elapsed();
    let (mut times, before) = (Vec::new(), [sent.assignments.load(Relaxed), sent.routes.load(Relaxed)]);
    for nth in REPLICAS..REPLICAS + CHANGES {
        let began = Instant::now();
        declare(&handle, nth..nth + 1).await?;
        settled(&sent, nth + 1).await?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    shutdown.cancel();
    tasks.shutdown().await;
    let each = |now: &AtomicU64, before: u64| (now.load(Relaxed) - before) / CHANGES as u64;
    Ok(Change {
        filled,
        p50: times[CHANGES / 2],
        slowest: *times.last().context("there were some")?,
        to_workers: each(&sent.assignments, before[0]),
        to_gateway: each(&sent.routes, before[1]),
    })
}

async fn settled(sent: &Sent, ready: usize) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(300);
    while sent.ready.load(Relaxed) < ready as u64 {
        ensure!(Instant::now() < end, "only {} of {ready} became ready", sent.ready.load(Relaxed));
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    Ok(())
}

async fn declare(handle: &Handle, range: Range<usize>) -> Result<()> {
    let one = |nth| {
        format!(
            "apiVersion: berth.dev/v1\nkind: ModelDeployment\nmetadata: {{name: model-{nth:06}}}\n\
             spec: {{model: {{format: onnx, uri: \"https://models.example/{nth}.onnx\"}}, replicas: 1, \
             resources: {{memory: 100MiB}}}}\n"
        )
    };
    let text: Vec<String> = range.map(one).collect();
    let context = ParseContext { file: "bench".to_owned(), base: None, ..ParseContext::default() };
    let manifests = manifest::parse(&text.join("---\n"), &context).map_err(|errors| anyhow!("{errors:?}"))?;
    let requests = manifests.into_iter().map(|manifest| ApplyRequest::new(manifest, Origin::API)).collect();
    for applied in handle.apply_all(requests).await {
        applied?;
    }
    Ok(())
}

fn info(nth: usize) -> Result<WorkerInfo> {
    let share = REPLICAS / WORKERS;
    Ok(WorkerInfo {
        id: WorkerId::new(&format!("w{nth}"))?,
        incarnation: 1,
        labels: BTreeMap::from([("zone".to_owned(), format!("z{}", nth % 3))]),
        // A tenth more than an even share.
        memory: ByteSize::mib(100 * (share + share / 10) as u64),
        cpus: 16.0,
        gpus: Vec::new(),
        max_models: None,
        runtimes: vec![berth_spec::RuntimeInfo::unlimited("onnx", &[ModelFormat::ONNX])],
        schema_versions: Vec::new(),
        version: "bench".to_owned(),
    })
}

async fn worker(handle: Handle, info: WorkerInfo, sent: Arc<Sent>) {
    let report = |replicas, whole, seen| InventoryChange {
        worker: info.id.clone(),
        incarnation: info.incarnation,
        seen,
        whole,
        state: WorkerState::Serving,
        load: None,
        breakers: None,
        credentials: berth_spec::Generation(0),
        overhead: ByteSize::ZERO,
        replicas,
        usage: Default::default(),
    };
    let Ok((reports, mut orders)) = handle.attach_worker(info.clone()).await else { return };
    let mut last = report(Vec::new(), true, Default::default());
    while reports.send(last).await.is_ok() {
        let change = loop {
            match orders.recv().await {
                Some(FromController::Assigned(change)) => break change,
                Some(_) => {}
                None => return,
            }
        };
        sent.assignments.fetch_add(bytes(change.clone()), Relaxed);
        sent.ready.fetch_add(change.set.len() as u64, Relaxed);
        last = report(held(&change), false, change.generation);
    }
}

fn held(change: &AssignmentChange) -> Vec<(RevisionId, Option<Residency>)> {
    let ready = |memory| {
        Residency::Ready(Arc::new(Ready {
            since: berth_spec::Time(1),
            memory,
            measured: true,
            digest: Digest([7; 32]),
            signature: None,
            devices: Vec::new(),
            phases: Phases::default(),
            note: None,
            unvalidated: None,
            deaths: None,
        }))
    };
    let set = change.set.iter().map(|placed| (placed.revision.id.clone(), Some(ready(placed.claim))));
    set.chain(change.unset.iter().map(|revision| (revision.clone(), None))).collect()
}

async fn gateway(handle: Handle, sent: Arc<Sent>) {
    let Ok(node) = WorkerId::new("gateway") else { return };
    let Ok((events, mut routes)) = handle.attach_gateway(node, None).await else { return };
    while let Some(change) = routes.recv().await {
        let seq = change.seq;
        sent.routes.fetch_add(bytes(change), Relaxed);
        if events.send(GatewayEvent::Applied(seq)).await.is_err() {
            return;
        }
    }
}

/// Bytes on the wire.
fn bytes<C: InParts>(change: C) -> u64 {
    change.in_parts().map(|part| part.encoded_len() as u64).sum()
}
