//! Shared fixtures: short ways to write stores and manifests, and an obedient worker and gateway.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use berth_control::{
    Config, Handle,
    handle::{ApplyRequest, DeploymentView, WatchEvent, WatchRequest},
    store::{Op, Store, Txn},
};
use berth_spec::{
    ByteSize, DeploymentName, Digest, FromController, Generation, InventoryChange, Origin, Residency, RevisionId,
    RuntimeInfo, Time, WorkerId, WorkerInfo,
    deployment::ModelFormat,
    manifest::{self, ManifestDeployment, ParseContext},
    residency::{Phases, Ready},
    status::Phase,
};
use bytes::Bytes;
use futures::StreamExt;
use prometheus_client::registry::Registry;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub(crate) fn put(key: &str) -> Op {
    Op::Put { key: key.to_owned(), value: Bytes::from_static(b"value") }
}

/// One commit for each key.
pub(crate) async fn put_all(store: &dyn Store, keys: &[&str]) {
    for key in keys {
        store.commit(Txn { compare: vec![], ops: vec![put(key)] }).await.expect("it commits");
    }
}

pub(crate) async fn delete(store: &dyn Store, key: &str) {
    let ops = vec![Op::Delete { key: key.to_owned() }];
    store.commit(Txn { compare: vec![], ops }).await.expect("it commits");
}

/// A checked manifest: `extra` are further lines of the spec.
pub(crate) fn manifest(name: &str, extra: &str) -> ManifestDeployment {
    let text = format!(
        "apiVersion: berth.dev/v1\nkind: ModelDeployment\nmetadata: {{name: {name}}}\nspec:\n  model: {{format: onnx, uri: \"s3://models/{name}.onnx\"}}\n{extra}"
    );
    parsed(&text)
}

pub(crate) fn parsed(text: &str) -> ManifestDeployment {
    let context =
        ParseContext { file: "test".to_owned(), base: Some("file:///models/".to_owned()), ..ParseContext::default() };
    manifest::parse(text, &context).expect("a manifest").remove(0)
}

pub(crate) fn apply(name: &str, extra: &str) -> ApplyRequest {
    ApplyRequest::new(manifest(name, extra), Origin::API)
}

pub(crate) fn name(name: &str) -> DeploymentName {
    DeploymentName::new(name).expect("a name")
}

/// A worker with a GiB.
pub(crate) fn worker(id: &str, incarnation: u64) -> WorkerInfo {
    WorkerInfo {
        id: WorkerId::new(id).expect("a name"),
        incarnation,
        labels: BTreeMap::new(),
        memory: ByteSize::gib(1),
        cpus: 4.0,
        gpus: Vec::new(),
        max_models: None,
        runtimes: vec![RuntimeInfo::unlimited("onnx", &[ModelFormat::ONNX])],
        schema_versions: Vec::new(),
        version: "test".to_owned(),
    }
}

/// First report of a worker: an empty inventory.
pub(crate) fn empty_inventory(info: &WorkerInfo) -> InventoryChange {
    inventory(info, true, Vec::new())
}

pub(crate) fn inventory(
    info: &WorkerInfo,
    whole: bool,
    replicas: Vec<(RevisionId, Option<Residency>)>,
) -> InventoryChange {
    InventoryChange {
        worker: info.id.clone(),
        incarnation: info.incarnation,
        seen: Generation(0),
        whole,
        replicas,
        state: berth_spec::WorkerState::Serving,
        load: None,
        breakers: None,
        credentials: berth_spec::Generation(0),
        overhead: ByteSize::ZERO,
        usage: Vec::new(),
    }
}

/// A replica that answers.
pub(crate) fn ready(at: Time) -> Residency {
    Residency::Ready(Arc::new(Ready {
        since: at,
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

/// A running control plane.
pub(crate) struct Running {
    pub(crate) handle: Handle,
    shutdown: CancellationToken,
    tasks: JoinSet<()>,
}

impl Running {
    pub(crate) fn start(store: Arc<dyn Store>) -> Self {
        Self::start_with(Config::default(), store, &mut Registry::default())
    }

    pub(crate) fn start_with(config: Config, store: Arc<dyn Store>, registry: &mut Registry) -> Self {
        let (control, handle) = berth_control::build(config, store, registry);
        let shutdown = CancellationToken::new();
        let token = shutdown.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { control.run(token).await.map(|_| ()).expect("it runs") });
        Self { handle, shutdown, tasks }
    }

    /// Stops it and waits until it has.
    pub(crate) async fn stop(mut self) {
        self.shutdown.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("no panic");
        }
    }

    /// A worker that makes ready whatever it is assigned, and lets go of what is not.
    pub(crate) async fn obedient_worker(&mut self, info: WorkerInfo) {
        let (reports, mut assignments) = self.handle.attach_worker(info.clone()).await.expect("it attaches");
        self.tasks.spawn(async move {
            let mut held: BTreeSet<RevisionId> = BTreeSet::new();
            if reports.send(empty_inventory(&info)).await.is_err() {
                return;
            }
            while let Some(word) = assignments.recv().await {
                let FromController::Assigned(change) = word else { continue };
                let mut said: Vec<(RevisionId, Option<Residency>)> = Vec::new();
                if change.base.is_none() {
                    let kept = |id: &&RevisionId| change.set.iter().any(|placed| placed.revision.id == **id);
                    said.extend(held.iter().filter(|id| !kept(id)).map(|id| (id.clone(), None)));
                }
                said.extend(change.unset.iter().map(|id| (id.clone(), None)));
                said.extend(change.set.iter().map(|placed| (placed.revision.id.clone(), Some(ready(Time(1))))));
                for (id, residency) in &said {
                    if residency.is_some() {
                        held.insert(id.clone())
                    } else {
                        held.remove(id)
                    };
                }
                let report = InventoryChange { seen: change.generation, ..inventory(&info, false, said) };
                if reports.send(report).await.is_err() {
                    return;
                }
            }
        });
    }

    /// Waits until a deployment is in a phase.
    pub(crate) async fn until(&self, name: &DeploymentName, phase: Phase) -> DeploymentView {
        let request = WatchRequest { name: Some(name.clone()), ..WatchRequest::default() };
        let mut watch = self.handle.watch(request).await.expect("a watch");
        while let Some(event) = watch.next().await {
            if let WatchEvent::Added(view) | WatchEvent::Modified(view) = event.expect("an event")
                && view.status.as_ref().is_some_and(|status| status.phase == phase)
            {
                return view;
            }
        }
        panic!("the watch ended before {name} was {}", phase.as_str());
    }
}
