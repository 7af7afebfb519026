//! A control plane with an API, and workers that do at once what they are told.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use berth_control::{
    Config, Handle,
    api::{self, ApiDependencies, ApiRouter, Leader, top::ModelCounters},
    build,
    functions::FunctionHost,
    store::memory::MemoryStore,
};
use berth_spec::{
    ByteSize, Digest, Health, InventoryChange, Member, Residency, RevisionId, RuntimeInfo, WorkerId, WorkerInfo,
    deployment::ModelFormat,
    residency::{Phases, Ready},
};
use berth_wire::access::Access;
use prometheus_client::registry::Registry;
use serde_json::Value;
use tokio::{
    net::TcpListener,
    task::{AbortHandle, JoinSet},
};
use tokio_util::sync::CancellationToken;

/// Longer than anything here may take, also on a machine that compiles beside the tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A client that waits no longer, for a head or for all of a body.
pub(crate) fn client() -> reqwest::Client {
    reqwest::Client::builder().timeout(PATIENCE).build().expect("a client")
}

/// A control plane that serves its API; it stops when this goes.
pub(crate) struct World {
    pub(crate) base: String,
    pub(crate) handle: Handle,
    pub(crate) shutdown: CancellationToken,
    pub(crate) tasks: JoinSet<()>,
    client: reqwest::Client,
}

/// Response of the API.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("not JSON ({error}): {}", self.text))
    }

    /// Checks the status and reads the body.
    pub(crate) fn ok(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        self.json()
    }

    /// Checks that it is an error of this status and reason, and gives what is in it.
    pub(crate) fn refused(&self, status: u16, reason: &str) -> Value {
        let error = self.ok(status)["error"].clone();
        assert_eq!((error["code"].as_u64(), error["reason"].as_str()), (Some(status.into()), Some(reason)), "{error}");
        error
    }
}

impl World {
    pub(crate) async fn start() -> Self {
        Self::among(Vec::new(), None).await
    }

    /// As the node that answers in a cluster of `members`.
    pub(crate) async fn among(members: Vec<(Arc<Member>, Health)>, leader: Option<Leader>) -> Self {
        Self::made(Config::default(), Arc::default(), members, leader).await
    }

    /// With functions, for those whom `access` lets in.
    pub(crate) async fn with_functions(host: Arc<dyn FunctionHost>, access: Arc<Access>) -> Self {
        Self::made(Config { functions: Some(host), ..Config::default() }, access, Vec::new(), None).await
    }

    async fn made(
        config: Config,
        access: Arc<Access>,
        members: Vec<(Arc<Member>, Health)>,
        leader: Option<Leader>,
    ) -> Self {
        let shutdown = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let (control, handle) = build(config, Arc::new(MemoryStore::default()), &mut Registry::default());
        let stop = shutdown.clone();
        tasks.spawn(async move { control.run(stop).await.map(|_| ()).expect("a memory store does not fail") });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
        let base = format!("http://{}", listener.local_addr().expect("it is bound"));
        let dependencies = ApiDependencies {
            audit: berth_audit::AuditLog::default(),
            beside: None,
            metrics: Arc::new(|| "# EOF\n".to_owned()),
            top: Arc::new(|each| {
                each(ModelCounters { deployment: "iris".into(), requests: 7, ..Default::default() });
            }),
            trial: None,
            logs: None,
            version: "1.2.3".into(),
            members: Arc::new(move || members.clone()),
            leader: Arc::new(move || leader.clone()),
            rules: None,
            access,
            admin_token: None,
            issuing: None,
        };
        let served = api::serve(listener, None, ApiRouter::alone(handle.clone(), dependencies), shutdown.clone());
        tasks.spawn(async move { served.await.expect("the listener lives") });
        Self { base, handle, shutdown, tasks, client: client() }
    }

    /// Adds a worker that reports everything that it is assigned as ready; aborted, it is lost.
    pub(crate) async fn worker(&mut self, name: &str, memory: ByteSize) -> AbortHandle {
        let id = WorkerId::new(name).expect("a name");
        let info = WorkerInfo {
            id: id.clone(),
            incarnation: 1,
            labels: BTreeMap::from([("zone".to_owned(), "a".to_owned())]),
            memory,
            cpus: 4.0,
            gpus: Vec::new(),
            max_models: None,
            runtimes: vec![RuntimeInfo::unlimited("onnx", &[ModelFormat::ONNX])],
            schema_versions: Vec::new(),
            version: "1.2.3".into(),
        };
        let (reports, mut assignments) = self.handle.attach_worker(info).await.expect("it is running");
        self.tasks.spawn(async move {
            let hello = InventoryChange {
                worker: id.clone(),
                incarnation: 1,
                seen: Default::default(),
                whole: true,
                replicas: vec![],
                state: Default::default(),
                load: None,
                breakers: None,
                credentials: berth_spec::Generation(0),
                overhead: berth_spec::ByteSize::ZERO,
                usage: Vec::new(),
            };
            let _ = reports.send(hello).await;
            while let Some(word) = assignments.recv().await {
                let berth_spec::FromController::Assigned(change) = word else { continue };
                let set = change.set.iter().map(|placed| (placed.revision.id.clone(), Some(ready())));
                let unset = change.unset.iter().map(|revision| (revision.clone(), None));
                let replicas: Vec<(RevisionId, Option<Residency>)> = set.chain(unset).collect();
                let report = InventoryChange {
                    worker: id.clone(),
                    incarnation: 1,
                    seen: change.generation,
                    whole: change.base.is_none(),
                    replicas,
                    state: Default::default(),
                    load: None,
                    breakers: None,
                    credentials: berth_spec::Generation(0),
                    overhead: berth_spec::ByteSize::ZERO,
                    usage: Vec::new(),
                };
                let _ = reports.send(report).await;
            }
        })
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        answer(self.client.get(format!("{}{path}", self.base))).await
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> Answer {
        answer(self.client.post(format!("{}{path}", self.base)).body(body)).await
    }

    /// Any request, for headers and methods that the others do not have.
    pub(crate) fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method.parse().expect("a method"), format!("{}{path}", self.base))
    }

    /// Waits until a deployment is in a phase, by watching.
    pub(crate) async fn until_phase(&self, name: &str, phase: &str) -> Value {
        let mut watch = self.lines("/v1/deployments?watch=true").await;
        loop {
            let event = watch.next().await.expect("the watch goes on");
            let object = &event["object"];
            if object["metadata"]["name"] == name && object["status"]["phase"] == phase {
                return object.clone();
            }
        }
    }

    /// The lines of a watch.
    pub(crate) async fn lines(&self, path: &str) -> Lines {
        let response = self.request("GET", path).send().await.expect("it is serving");
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "application/x-ndjson");
        Lines { response, rest: Vec::new() }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// Sends a request and reads the answer.
pub(crate) async fn answer(request: reqwest::RequestBuilder) -> Answer {
    let response = request.send().await.expect("it is serving");
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Answer { status, headers, text: response.text().await.expect("the body arrives") }
}

/// Newline-delimited JSON as it arrives.
pub(crate) struct Lines {
    response: reqwest::Response,
    rest: Vec<u8>,
}

impl Lines {
    /// The next line; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).expect("a line is JSON"));
            }
            self.rest.extend_from_slice(&self.response.chunk().await.expect("the watch goes on")?);
        }
    }
}

fn ready() -> Residency {
    Residency::Ready(Arc::new(Ready {
        since: berth_spec::Time(1),
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

/// A manifest with a model of its own.
pub(crate) fn manifest(name: &str) -> String {
    format!(
        "apiVersion: berth.dev/v1\nkind: ModelDeployment\nmetadata:\n  name: {name}\n  labels: {{app: shop}}\nspec:\n  \
         model:\n    format: onnx\n    uri: https://example.com/{name}.onnx\n    sha256: {}\n",
        "ab".repeat(32)
    )
}
