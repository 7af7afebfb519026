//! Nodes made by hand: a gateway and a peer port each, with a membership that says what the test says.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use berth_mesh::{Config, Fleet, PeerService};
use berth_peer::{
    EventLoops, Identity, LinePolicy, Members, MembersWriter, PeerBody, PeerHandler, PeerListener, Peers,
    pki::Authority,
};
use berth_spec::{Health, Member, Roles, RouteChange, WorkerId, routes::Readiness};
use futures::future::BoxFuture;
use http::{Request, Response};
use hyper::body::Incoming;
use tokio::{runtime::Runtime, sync::Semaphore};
use tokio_util::sync::CancellationToken;

use crate::fixture::{Echo, PATIENCE, TestGateway, on, revision, soon, until};

pub(crate) fn worker(name: &str) -> WorkerId {
    WorkerId::new(name).expect("a name")
}

/// One node.
pub(crate) struct Node {
    pub(crate) name: &'static str,
    pub(crate) gateway: TestGateway,
    pub(crate) roster: MembersWriter,
    pub(crate) peers: Peers,
    pub(crate) answers: Arc<AnswerGate>,
    /// The runtime of the port. Dropping it ends all connections, as the end of a process does.
    port: Option<Runtime>,
}

/// Some nodes that know each other.
pub(crate) struct TestCluster {
    pub(crate) nodes: Vec<Node>,
    _pki: tempfile::TempDir,
}

/// Holds back the answers of a port.
pub(crate) struct AnswerGate {
    shut: AtomicBool,
    taken: Semaphore,
}

struct Port {
    service: PeerService,
    answers: Arc<AnswerGate>,
}

impl PeerHandler for Port {
    fn serve(
        self: Arc<Self>,
        _: &berth_peer::Caller,
        request: Request<Incoming>,
    ) -> BoxFuture<'static, Response<PeerBody>> {
        if self.answers.shut.load(SeqCst) {
            self.answers.taken.add_permits(1);
            return Box::pin(std::future::pending());
        }
        self.service.serve(request)
    }
}

pub(crate) fn member(name: &str, peer: SocketAddr, region: Option<&str>) -> Member {
    Member {
        name: worker(name),
        incarnation: 1,
        gossip: peer,
        peer,
        roles: Roles::ALL,
        labels: region.map(|region| ("region".to_owned(), region.to_owned())).into_iter().collect::<BTreeMap<_, _>>(),
        version: "0.0.0".to_owned(),
        protocol: berth_peer::PROTOCOL,
    }
}

impl TestCluster {
    pub(crate) async fn new(names: &[&'static str]) -> Self {
        Self::with(names, |_, _| {}).await
    }

    pub(crate) async fn with(names: &[&'static str], config: impl Fn(&str, &mut Config)) -> Self {
        let places: Vec<_> = names.iter().map(|name| (*name, None)).collect();
        Self::in_regions(&places, config).await
    }

    pub(crate) async fn in_regions(
        places: &[(&'static str, Option<&str>)],
        configure: impl Fn(&str, &mut Config),
    ) -> Self {
        let pki = tempfile::tempdir().expect("a folder");
        let authority = Authority::create(pki.path()).expect("a CA");
        let identity =
            |name: &str| Identity::load(authority.issue(&worker(name), &[]).expect("issued")).expect("an identity");
        let bound: Vec<_> = places
            .iter()
            .map(|(name, region)| {
                let listener = PeerListener::bind(([127, 0, 0, 1], 0).into(), identity(name)).expect("a port");
                let at = listener.local_addr().expect("bound");
                (*name, *region, listener, at)
            })
            .collect();
        let everyone: Vec<_> = bound.iter().map(|(name, region, _, at)| member(name, *at, *region)).collect();
        let mut nodes = Vec::new();
        for ((name, region, listener, _), me) in bound.into_iter().zip(everyone.clone()) {
            let (members, roster) = Members::by_hand(me);
            everyone.iter().for_each(|other| roster.set(other.clone(), Health::Alive));
            // Membership is the test's: nobody is given up for being slow.
            let patient = LinePolicy { dial: PATIENCE, ping_timeout: PATIENCE, ..LinePolicy::default() };
            let peers = Peers::start(identity(name), members.clone(), patient);
            let fleet = Fleet::new(peers.clone(), members, region.map(str::to_owned));
            let mut config = Config::new(([127, 0, 0, 1], 0).into());
            config.loops = Some(EventLoops::start(Some(2)).expect("threads"));
            configure(name, &mut config);
            let gateway = TestGateway::of(name, config, Some(fleet));
            let port = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
            let port = port.expect("a runtime");
            let answers = Arc::new(AnswerGate { shut: AtomicBool::new(false), taken: Semaphore::new(0) });
            let handler = Arc::new(Port { service: gateway.handle.peer_service(), answers: Arc::clone(&answers) });
            port.spawn(async move { listener.run(handler, CancellationToken::new()).await });
            until("it knows the others", || peers.all().len() + 1 >= places.len()).await;
            nodes.push(Node { name, gateway, roster, peers, answers, port: Some(port) });
        }
        Self { nodes, _pki: pki }
    }

    pub(crate) fn gateway(&mut self, name: &str) -> &mut TestGateway {
        &mut self.node(name).gateway
    }

    pub(crate) fn node(&mut self, name: &str) -> &mut Node {
        self.nodes.iter_mut().find(|node| node.name == name).expect("a node")
    }

    /// Puts a model on a node, without a word to any gateway.
    pub(crate) fn put(&mut self, name: &str, deployment: &str, model: &Arc<Echo>) -> Arc<berth_mesh::local::Replica> {
        let (model, revision) = (Arc::clone(model), revision(deployment, "1"));
        self.gateway(name).replicas.insert(revision, model)
    }

    /// Every gateway hears that `deployment` is ready on these nodes.
    pub(crate) async fn route(&mut self, deployment: &str, workers: &[&str]) {
        for node in &mut self.nodes {
            node.gateway.set(vec![on(deployment, "1", workers)]).await;
        }
    }

    /// A model on these nodes, routed to by all.
    pub(crate) async fn serve(&mut self, deployment: &str, models: &[(&str, &Arc<Echo>)]) {
        for (name, model) in models {
            self.put(name, deployment, model);
        }
        let workers: Vec<_> = models.iter().map(|(name, _)| *name).collect();
        self.route(deployment, &workers).await;
    }
}

impl Node {
    /// As kill -9 does: lines break, and nobody listens any more.
    pub(crate) fn kill(&mut self) {
        if let Some(port) = self.port.take() {
            port.shutdown_background();
        }
    }
}

impl AnswerGate {
    /// Requests are taken from now on, and not answered.
    pub(crate) fn shut(&self) {
        self.shut.store(true, SeqCst);
    }

    /// Returns once a request has arrived since.
    pub(crate) async fn arrived(&self) {
        soon("it arrives", self.taken.acquire()).await.expect("open").forget();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A change that is whole, of nothing.
pub(crate) fn nothing() -> RouteChange {
    RouteChange { base: None, readiness: Readiness { planned: true, ..Readiness::default() }, ..RouteChange::default() }
}

/// The value of a metric, of all its lines that hold `labels`.
pub(crate) fn metric(gateway: &TestGateway, name: &str, labels: &[&str]) -> u64 {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &gateway.registry).expect("text");
    let lines = text.lines().filter(|line| line.starts_with(name) && labels.iter().all(|label| line.contains(label)));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}
