//! A control plane with workers whose loads do what the path of a model says, and a client of the API.
//!
//! | path | load |
//! |---|---|
//! | `FAIL_text` | fails with this text |
//! | `SLOW` | waits for [`TestCluster::open`] |
//! | `AWAY` | fails on the worker that is first, whose runtime cannot be reached |
//! | others | succeed at once |

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use berth_control::{
    Config, Handle,
    store::{Store, memory::MemoryStore},
};
use berth_spec::{
    ByteSize, DeploymentName, Digest, Failure, FailureCategory, FormatSupport, FromController, GatewayEvent,
    Generation, InventoryChange, OpaqueModel, Placed, Residency, RevisionId, RuntimeInfo, Time, WorkerId, WorkerInfo,
    residency::{Phases, Ready},
};
use berth_wire::mmesh::{
    EnsureLoadedRequest, GetStatusRequest, GetVModelStatusRequest, ModelInfo, ModelStatusInfo, RegisterModelRequest,
    SetVModelRequest, VModelStatusInfo, model_mesh_client::ModelMeshClient, model_status_info::ModelStatus,
    v_model_status_info::VModelStatus,
};
use prometheus_client::registry::Registry;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tonic::Status;

pub(crate) type Client = ModelMeshClient<axum::Router>;

pub(crate) struct TestCluster {
    pub(crate) handle: Handle,
    pub(crate) client: Client,
    pub(crate) store: Arc<dyn Store>,
    gate: watch::Sender<bool>,
    shutdown: CancellationToken,
    tasks: JoinSet<()>,
}

impl TestCluster {
    /// With so many workers.
    pub(crate) async fn new(workers: usize) -> Self {
        Self::over(Arc::new(MemoryStore::default()), workers).await
    }

    pub(crate) async fn over(store: Arc<dyn Store>, workers: usize) -> Self {
        let (control, handle) = berth_control::build(Config::default(), Arc::clone(&store), &mut Registry::default());
        let (shutdown, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let stop = shutdown.clone();
        tasks.spawn(async move { control.run(stop).await.map(|_| ()).expect("it runs") });
        let (gate, _) = watch::channel(false);
        let away = Arc::new(AtomicBool::new(true));
        for number in 0..workers {
            let info = info(&format!("w-{number}"));
            let (reports, orders) = handle.attach_worker(info.clone()).await.expect("it attaches");
            tasks.spawn(work(info, reports, orders, gate.subscribe(), Arc::clone(&away)));
        }
        let client = ModelMeshClient::new(berth_modelmesh::router(handle.clone(), berth_modelmesh::Options::default()));
        Self { handle, client, store, gate, shutdown, tasks }
    }

    /// Slow loads end.
    pub(crate) fn open(&self) {
        self.gate.send_replace(true);
    }

    /// Ends it; the store stays.
    pub(crate) async fn stop(mut self) -> Arc<dyn Store> {
        self.shutdown.cancel();
        self.tasks.shutdown().await;
        self.store
    }

    pub(crate) async fn register(&mut self, id: &str, path: &str) -> Result<ModelStatusInfo, Status> {
        self.client.register_model(registering(id, path)).await.map(tonic::Response::into_inner)
    }

    /// The model, loaded.
    pub(crate) async fn loaded(&mut self, id: &str, path: &str) {
        let request = RegisterModelRequest { load_now: true, sync: true, ..registering(id, path) };
        let status = self.client.register_model(request).await.expect("registered").into_inner();
        assert_eq!(status.status(), ModelStatus::Loaded, "{status:?}");
    }

    pub(crate) async fn status(&mut self, id: &str) -> ModelStatusInfo {
        let request = GetStatusRequest { model_id: id.to_owned() };
        self.client.get_model_status(request).await.expect("a status").into_inner()
    }

    pub(crate) async fn ensure(&mut self, id: &str, sync: bool) -> Result<ModelStatusInfo, Status> {
        let request = EnsureLoadedRequest { model_id: id.to_owned(), last_used_time: 0, sync };
        self.client.ensure_loaded(request).await.map(tonic::Response::into_inner)
    }

    pub(crate) async fn set(&mut self, request: SetVModelRequest) -> Result<VModelStatusInfo, Status> {
        self.client.set_v_model(request).await.map(tonic::Response::into_inner)
    }

    pub(crate) async fn vmodel(&mut self, id: &str) -> VModelStatusInfo {
        let request = GetVModelStatusRequest { v_model_id: id.to_owned(), owner: String::new() };
        self.client.get_v_model_status(request).await.expect("a status").into_inner()
    }

    /// Has a loaded model leave, and waits until it has.
    pub(crate) async fn leaves(&mut self, id: &str) {
        let gateway = WorkerId::new("g").expect("a name");
        let (events, _routes) = self.handle.attach_gateway(gateway, None).await.expect("it attaches");
        events.send(GatewayEvent::PageOut(name(id))).await.expect("it listens");
        let until = async {
            while self.status(id).await.status() != ModelStatus::NotLoaded {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, until).await.expect("it leaves");
    }

    /// Waits until a model is no longer registered. The clock is paused.
    pub(crate) async fn goes(&mut self, id: &str) {
        let until = async {
            while self.status(id).await.status() != ModelStatus::NotFound {
                tokio::time::sleep(PATIENCE).await;
            }
        };
        tokio::time::timeout(PATIENCE * 60, until).await.expect("it goes");
    }

    /// Waits until a virtual model leads to this model, and nothing changes any more.
    pub(crate) async fn settles(&mut self, id: &str, active: &str) {
        let until = async {
            loop {
                let told = self.vmodel(id).await;
                if told.status() == VModelStatus::Defined && told.active_model_id == active {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, until).await.expect("it settles");
    }
}

/// Longer than anything here takes, also on a machine that compiles beside the tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn attributes(path: &str) -> ModelInfo {
    ModelInfo { r#type: "mt:example".to_owned(), path: path.to_owned(), key: "{}".to_owned() }
}

pub(crate) fn registering(id: &str, path: &str) -> RegisterModelRequest {
    RegisterModelRequest {
        model_id: id.to_owned(),
        model_info: Some(attributes(path)),
        ..RegisterModelRequest::default()
    }
}

pub(crate) fn setting(vmodel: &str, target: &str) -> SetVModelRequest {
    SetVModelRequest {
        v_model_id: vmodel.to_owned(),
        target_model_id: target.to_owned(),
        ..SetVModelRequest::default()
    }
}

pub(crate) fn name(text: &str) -> DeploymentName {
    DeploymentName::new(text).expect("a name")
}

fn info(id: &str) -> WorkerInfo {
    let formats = vec![FormatSupport { name: FormatSupport::ANY.to_owned(), versions: Vec::new() }];
    WorkerInfo {
        id: WorkerId::new(id).expect("a name"),
        incarnation: 1,
        labels: BTreeMap::new(),
        memory: ByteSize::gib(1),
        cpus: 4.0,
        gpus: Vec::new(),
        max_models: None,
        runtimes: vec![RuntimeInfo { name: "spi".to_owned(), formats, ..RuntimeInfo::default() }],
        schema_versions: Vec::new(),
        version: "test".to_owned(),
    }
}

fn report(
    info: &WorkerInfo,
    seen: Generation,
    whole: bool,
    said: Vec<(RevisionId, Option<Residency>)>,
) -> InventoryChange {
    InventoryChange {
        worker: info.id.clone(),
        incarnation: info.incarnation,
        seen,
        whole,
        replicas: said,
        state: berth_spec::WorkerState::Serving,
        load: None,
        breakers: None,
        credentials: Generation(0),
        usage: Vec::new(),
        overhead: ByteSize::ZERO,
    }
}

/// Loads what it is assigned, and says how that went.
async fn work(
    info: WorkerInfo,
    reports: mpsc::Sender<InventoryChange>,
    mut orders: mpsc::Receiver<FromController>,
    mut gate: watch::Receiver<bool>,
    away: Arc<AtomicBool>,
) {
    let mut slow: Vec<(RevisionId, Generation)> = Vec::new();
    if reports.send(report(&info, Generation(0), true, Vec::new())).await.is_err() {
        return;
    }
    loop {
        let (seen, said) = tokio::select! {
            order = orders.recv() => match order {
                None => return,
                Some(FromController::Assigned(change)) => {
                    slow.retain(|(id, _)| !change.unset.contains(id));
                    let gone = change.unset.iter().map(|id| (id.clone(), None));
                    let mut said: Vec<_> = gone.collect();
                    for placed in &change.set {
                        let (id, residency) = (placed.revision.id.clone(), load(placed, *gate.borrow(), &away));
                        if residency == Residency::Loading {
                            slow.push((id.clone(), change.generation));
                        }
                        said.push((id, Some(residency)));
                    }
                    (change.generation, said)
                }
                Some(_) => continue,
            },
            changed = gate.changed(), if !slow.is_empty() => {
                if changed.is_err() {
                    return;
                }
                let seen = slow.iter().map(|(_, seen)| *seen).max().unwrap_or_default();
                (seen, slow.drain(..).map(|(id, _)| (id, Some(ready()))).collect())
            }
        };
        if reports.send(report(&info, seen, false, said)).await.is_err() {
            return;
        }
    }
}

fn load(placed: &Placed, open: bool, away: &AtomicBool) -> Residency {
    let model: OpaqueModel = placed.revision.uri.parse().expect("registered here");
    assert_eq!((model.kind.as_str(), model.key.as_str()), ("mt:example", "{}"));
    match model.path.strip_prefix("FAIL_") {
        Some(text) => failed(FailureCategory::InvalidModel, text, None),
        None if model.path == "AWAY" && away.swap(false, Relaxed) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later").as_nanos();
            let later = Time(u64::try_from(now).expect("a time")) + Duration::from_secs(600);
            failed(FailureCategory::Network, "the runtime cannot be reached", Some(later))
        }
        None if model.path == "SLOW" && !open => Residency::Loading,
        None => ready(),
    }
}

fn failed(category: FailureCategory, message: &str, retry_at: Option<Time>) -> Residency {
    Residency::Failed(Arc::new(Failure {
        category,
        message: message.to_owned(),
        attempts: 1,
        at: Time(1_000_000),
        retry_at,
        trace: None,
        history: Vec::new(),
        needs: None,
    }))
}

fn ready() -> Residency {
    Residency::Ready(Arc::new(Ready {
        since: Time(5_000_000),
        memory: ByteSize::mib(10),
        measured: true,
        digest: Digest([7; 32]),
        signature: None,
        devices: Vec::new(),
        phases: Phases::default(),
        note: None,
        unvalidated: None,
        deaths: None,
    }))
}
