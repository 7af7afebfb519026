//! A gateway with everything around it made by hand: routes, replicas, clients.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use berth_mesh::{
    Config, DrainReport, Fleet, Gateway, GatewayLink, Handle, Limits, build,
    local::{Batching, DocumentSchemas, LocalReplicas, Model, Replica, Statistics},
};
use berth_spec::{
    Datatype, Demand, DeploymentName, GatewayEvent, InferError, InferRequest, RevisionId, Route, RouteChange,
    Signature, Tensor, TensorSpec, WorkerId,
    deployment::Concurrency,
    inference::{Shed, Violation},
    routes::{OnMiss, Readiness, Version},
};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use prometheus_client::registry::Registry;
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

pub(crate) const WORKER: &str = "w1";

/// Longer than anything here may take, also on a machine that compiles beside the tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until it is so, while other tasks and threads go on.
pub(crate) async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < end, "never came: {what}");
        tokio::task::yield_now().await;
    }
}

/// Awaits a result that must come.
pub(crate) async fn soon<T>(what: &str, comes: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, comes).await.unwrap_or_else(|_| panic!("never came: {what}"))
}

/// A model that gives back what it takes.
pub(crate) struct Echo {
    signature: Arc<Signature>,
    schema: serde_json::Value,
    /// Requests take a permit each; closed: they go through.
    pub(crate) gate: Semaphore,
    /// No request may run on it any more.
    pub(crate) unloaded: AtomicBool,
    /// Its queue takes nothing.
    pub(crate) full: AtomicBool,
    /// Requests at once; 0: any number.
    pub(crate) bound: AtomicU32,
    pub(crate) runs: AtomicU64,
    pub(crate) started: Semaphore,
}

impl Echo {
    pub(crate) fn open() -> Arc<Self> {
        let echo = Self::shut();
        echo.gate.close();
        echo
    }

    /// Requests wait until the gate lets them through.
    pub(crate) fn shut() -> Arc<Self> {
        let tensor = |name: &str, datatype| TensorSpec { name: name.to_owned(), datatype, shape: vec![-1, 4] };
        let signature = Signature {
            inputs: vec![tensor("x", Datatype::Fp32)],
            outputs: vec![tensor("x", Datatype::Fp32)],
            ..Signature::default()
        };
        Arc::new(Self {
            signature: Arc::new(signature),
            schema: serde_json::json!({ "type": "object" }),
            gate: Semaphore::new(0),
            unloaded: AtomicBool::new(false),
            full: AtomicBool::new(false),
            bound: AtomicU32::new(0),
            runs: AtomicU64::new(0),
            started: Semaphore::new(0),
        })
    }

    /// Waits until one more request has reached the model.
    pub(crate) async fn starts(&self) {
        soon("a request in the model", self.started.acquire()).await.expect("it is never closed").forget();
    }
}

impl Model for Echo {
    fn signature(&self) -> &Arc<Signature> {
        &self.signature
    }

    fn platform(&self) -> &'static str {
        "echo_echo"
    }

    fn bound(&self) -> Option<u32> {
        Some(self.bound.load(Ordering::SeqCst)).filter(|bound| *bound > 0)
    }

    fn infer(&self, request: InferRequest, _: Instant) -> BoxFuture<'_, Result<Vec<Tensor>, InferError>> {
        Box::pin(async move {
            self.started.add_permits(1);
            if request.inputs.iter().any(|input| input.name == "panic") {
                panic!("asked to");
            }
            if request.inputs.iter().any(|input| input.name == "fail") {
                return Err(InferError::Model("the model failed".to_owned()));
            }
            if self.full.load(Ordering::SeqCst) {
                return Err(InferError::shed(Shed::QueueFull, "full", Duration::from_secs(1)));
            }
            if request.inputs.is_empty() {
                return Err(InferError::Invalid("no inputs".to_owned()));
            }
            if let Ok(permit) = self.gate.acquire().await {
                permit.forget();
            }
            assert!(!self.unloaded.load(Ordering::SeqCst), "a request ran on an unloaded model");
            self.runs.fetch_add(1, Ordering::SeqCst);
            Ok(request.inputs)
        })
    }

    fn has_json(&self) -> bool {
        true
    }

    /// Gives the document back, unless it asks for something else.
    fn call(&self, body: Bytes, _: Instant) -> BoxFuture<'_, Result<Bytes, InferError>> {
        Box::pin(async move {
            self.started.add_permits(1);
            if let Ok(permit) = self.gate.acquire().await {
                permit.forget();
            }
            self.runs.fetch_add(1, Ordering::SeqCst);
            match body.as_ref() {
                br#"{"text":7}"# => {
                    let violation = Violation { path: "/text".to_owned(), message: "7 is no string".to_owned() };
                    let message = "/text: 7 is no string".to_owned();
                    Err(InferError::Unprocessable { message, violations: vec![violation] })
                }
                b"fail" => Err(InferError::Model("ValueError: asked to".to_owned())),
                _ => Ok(body),
            }
        })
    }

    fn schemas(&self) -> Option<DocumentSchemas<'_>> {
        Some(DocumentSchemas { input: &self.schema, output: &self.schema })
    }

    fn statistics(&self) -> Statistics {
        Statistics { inference_count: self.runs.load(Ordering::SeqCst), memory: 7, ..Statistics::default() }
    }

    fn batching(&self) -> Batching {
        Batching { max_rows: 8, max_delay: Duration::from_millis(3) }
    }
}

pub(crate) fn name(name: &str) -> DeploymentName {
    DeploymentName::new(name).expect("a name")
}

pub(crate) fn revision(deployment: &str, version: &str) -> RevisionId {
    RevisionId::of(name(deployment), version.as_bytes())
}

/// A cold on-demand deployment that parks.
pub(crate) fn cold(deployment: &str) -> Route {
    Route {
        deployment: name(deployment),
        split: Vec::new(),
        versions: Vec::new(),
        on_miss: OnMiss::Park,
        on_demand: true,
        timeout: Duration::from_secs(60),
        concurrency: Concurrency { max: None, queue: 100 },
        limits: berth_spec::UseLimits::default(),
        idempotent: true,
        endpoint: None,
    }
}

/// A deployment whose `version` is ready here.
pub(crate) fn warm(deployment: &str, version: &str) -> Route {
    let revision = revision(deployment, version);
    let version = Version {
        name: version.to_owned(),
        revision: revision.clone(),
        ready: vec![WorkerId::new(WORKER).expect("a name")],
    };
    Route { split: vec![(revision, 100)], versions: vec![version], ..cold(deployment) }
}

/// A deployment whose `version` is ready on these workers.
pub(crate) fn on(deployment: &str, version: &str, workers: &[&str]) -> Route {
    let mut route = warm(deployment, version);
    route.versions[0].ready = workers.iter().map(|worker| WorkerId::new(worker).expect("a name")).collect();
    route
}

/// A change to build on; [`TestGateway::change`] numbers it.
pub(crate) fn delta() -> RouteChange {
    RouteChange { base: Some(0), ..RouteChange::default() }
}

/// A running gateway.
pub(crate) struct TestGateway {
    pub(crate) handle: Handle,
    pub(crate) replicas: Arc<LocalReplicas>,
    pub(crate) registry: Registry,
    routes: mpsc::Sender<RouteChange>,
    pub(crate) events: mpsc::Receiver<GatewayEvent>,
    pub(crate) shutdown: CancellationToken,
    pub(crate) running: JoinHandle<DrainReport>,
    client: Client<HttpConnector, Full<Bytes>>,
    seq: u64,
}

impl TestGateway {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(limits: impl FnOnce(&mut Limits)) -> Self {
        let mut config = Config::new(([127, 0, 0, 1], 0).into());
        limits(&mut config.limits);
        Self::of(WORKER, config, None)
    }

    /// The gateway of a node, with others beside it where there is a fleet.
    pub(crate) fn of(me: &str, config: Config, fleet: Option<Fleet>) -> Self {
        let replicas = Arc::new(LocalReplicas::default());
        let mut registry = Registry::default();
        let me = WorkerId::new(me).expect("a name");
        let (gateway, handle): (Gateway, Handle) =
            build(config, me, Arc::clone(&replicas), fleet, &mut registry).expect("a free port");
        let (routes, from_controller) = mpsc::channel(16);
        let (to_controller, events) = mpsc::channel(16);
        let shutdown = CancellationToken::new();
        let link = GatewayLink { routes: from_controller, events: to_controller };
        let stop = shutdown.clone();
        let running = tokio::task::spawn(async move { gateway.run(link, stop).await.expect("it serves") });
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { handle, replicas, registry, routes, events, shutdown, running, client, seq: 0 }
    }

    /// Sends a change and waits until it is in force.
    pub(crate) async fn change(&mut self, change: RouteChange) {
        self.seq += 1;
        // Readiness changes last: once this number is seen, the rest is in force.
        let missing = vec![name(&format!("seq-{}", self.seq))];
        let readiness = Readiness { missing: missing.clone(), ..change.readiness };
        // The first is the whole.
        let base = change.base.map(|_| self.seq - 1).filter(|base| *base > 0);
        self.send(RouteChange { seq: self.seq, base, readiness, ..change }).await;
        until("the change is in force", || self.handle.readiness().missing == missing).await;
    }

    pub(crate) async fn set(&mut self, routes: Vec<Route>) {
        let ready = Readiness { planned: true, ..Readiness::default() };
        self.change(RouteChange { set: routes, readiness: ready, ..delta() }).await;
    }

    /// Sends a change as it is.
    pub(crate) async fn send(&self, change: RouteChange) {
        self.routes.send(change).await.expect("the gateway listens");
    }

    /// A model that is ready and routed to.
    pub(crate) async fn serve(&mut self, deployment: &str, version: &str, model: Arc<Echo>) -> Arc<Replica> {
        let replica = self.replicas.insert(revision(deployment, version), model);
        self.set(vec![warm(deployment, version)]).await;
        replica
    }

    /// The next event of the gateway.
    pub(crate) async fn event(&mut self) -> GatewayEvent {
        soon("a word of the gateway", self.events.recv()).await.expect("the gateway speaks")
    }

    /// Waits until it says that it is not ready.
    pub(crate) async fn leaves(&self) {
        until("it is not ready", || !self.handle.ready()).await;
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(&mut self) -> DrainReport {
        soon("the end of the gateway", &mut self.running).await.expect("it ends")
    }

    /// The next demand of a deployment that somebody waits for.
    pub(crate) async fn miss(&mut self, deployment: &str) -> Demand {
        loop {
            if let GatewayEvent::Demand(demands) = self.event().await
                && let Some(demand) = demands.into_iter().find(|d| d.waiting > 0 && d.deployment.as_str() == deployment)
            {
                return demand;
            }
        }
    }

    /// Its address for clients.
    pub(crate) fn address(&self) -> std::net::SocketAddr {
        self.handle.local_addr().expect("it listens")
    }

    pub(crate) fn uri(&self, path: &str) -> String {
        format!("http://{}{path}", self.address())
    }

    pub(crate) fn request(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> PendingAnswer {
        let mut request = Request::builder().method(method).uri(self.uri(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = self.client.request(request.body(Full::new(body.into())).expect("a request"));
        let whole = async move {
            let (head, body) = answer.await.expect("an answer").into_parts();
            let body = body.collect().await.expect("a body").to_bytes();
            Answer { status: head.status, headers: head.headers, body }
        };
        let what = format!("an answer of {path}");
        Box::pin(async move { soon(&what, whole).await })
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.request(Method::GET, path, &[], "").await
    }

    /// Asks again and again until the answer has this status.
    pub(crate) async fn comes_to(&self, status: u16, ask: impl Fn(&Self) -> PendingAnswer) {
        let end = Instant::now() + PATIENCE;
        loop {
            let answer = ask(self).await;
            if answer.status == status {
                return;
            }
            assert!(Instant::now() < end, "it is never {status}: {answer:?}");
        }
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<Bytes>) -> Answer {
        self.request(Method::POST, path, &[], body).await
    }

    /// One inference of four numbers.
    pub(crate) fn infer(&self, deployment: &str, headers: &[(&str, &str)]) -> PendingAnswer {
        self.request(Method::POST, &format!("/v2/models/{deployment}/infer"), headers, REQUEST)
    }
}

pub(crate) const REQUEST: &str =
    r#"{"id":"7","inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3.5,4]}]}"#;

pub(crate) type PendingAnswer = BoxFuture<'static, Answer>;

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    pub(crate) fn reason(&self) -> String {
        self.json()["reason"].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }
}
