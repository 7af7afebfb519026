//! Nodes with certificates and ports of their own, one store for all, and whoever the test says leads.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
};

use berth_control::{
    Config, Handle, Metrics,
    api::{
        self, ApiDependencies, ApiRouter, Leader, Relay,
        top::{ModelCounters, TopSource},
    },
    build_with,
    fleet::{self, FleetService},
    handle::{GatewayEnds, WorkerEnds},
    leadership::LeadershipView,
    store::{Store, memory::MemoryStore},
    uplink::{ConnectContext, GatewayUplink, WorkerUplink},
};
use berth_peer::{Identity, PeerBody, PeerHandler, PeerListener, Peers, pki::Authority};
use berth_spec::{
    DeploymentName, Epoch, FromController, GatewayEvent, Generation, Health, InventoryChange, Member, Residency,
    RevisionId, Roles, Route, Time, WorkerId, WorkerInfo,
};
use futures::future::BoxFuture;
use http::{Request, Response};
use hyper::body::Incoming;
use prometheus_client::registry::Registry;
use tokio::{net::TcpListener, sync::watch, task::JoinSet};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::fixture::{inventory, ready};

/// A node that may lead.
pub(super) struct Node {
    pub(super) name: WorkerId,
    pub(super) leadership: watch::Sender<LeadershipView>,
    pub(super) peers: Peers,
    pub(super) identity: Identity,
    /// Of its control API.
    pub(super) api: String,
    /// Ends its port for other nodes.
    pub(super) port: CancellationToken,
    /// Ends its controller.
    term: Option<DropGuard>,
}

/// All of them.
pub(super) struct Stage {
    pub(super) nodes: Vec<Node>,
    store: Arc<dyn Store>,
    metrics: Metrics,
    epoch: u64,
    tasks: JoinSet<()>,
    stop: CancellationToken,
    _folder: tempfile::TempDir,
}

struct Port {
    fleet: FleetService,
    front: ApiRouter,
}

impl PeerHandler for Port {
    fn serve(
        self: Arc<Self>,
        caller: &berth_peer::Caller,
        request: Request<Incoming>,
    ) -> BoxFuture<'static, Response<PeerBody>> {
        if request.uri().path().starts_with(fleet::PATH) {
            self.fleet.serve(caller, request)
        } else if ApiRouter::is_own(request.uri().path()) {
            self.front.own(&request)
        } else {
            assert!(ApiRouter::is_relayed(request.uri().path()), "{}", request.uri());
            self.front.relayed(caller, request)
        }
    }
}

pub(super) fn node(name: &str) -> WorkerId {
    WorkerId::new(name).expect("a name")
}

impl Stage {
    /// Nodes of these names; nobody leads.
    pub(super) async fn of(names: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let authority = Authority::create(folder.path().join("ca")).expect("a CA");
        let identity = |name: &&str| {
            let path = authority.issue(&node(name), &["127.0.0.1".to_owned()]).expect("issued");
            Identity::load(path).expect("loaded")
        };
        let identities: Vec<Identity> = names.iter().map(identity).collect();
        let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let bind = |identity: &Identity| PeerListener::bind(any, identity.clone()).expect("loopback has free ports");
        let listeners: Vec<PeerListener> = identities.iter().map(bind).collect();
        let address = |(name, listener): (&&str, &PeerListener)| (node(name), listener.local_addr().expect("bound"));
        let addresses: Vec<_> = names.iter().zip(&listeners).map(address).collect();
        let (mut nodes, mut tasks, stop) = (Vec::new(), JoinSet::new(), CancellationToken::new());
        for ((name, identity), listener) in names.iter().zip(identities).zip(listeners) {
            let name = node(name);
            let others = addresses.iter().filter(|(other, _)| *other != name).cloned();
            let peers = Peers::fixed(identity.clone(), others);
            let (leadership, views) = watch::channel(LeadershipView::Following { leader: None });
            let relay = Relay { peers: peers.clone(), found: None };
            let members = addresses.iter().map(|(name, at)| member(name, *at)).collect();
            let front = ApiRouter::new(views.clone(), Some(relay), dependencies(&name, members, views.clone()));
            let port = Port { fleet: FleetService::new(views, Some(peers.clone())), front: front.clone() };
            let (handler, port) = (Arc::new(port), stop.child_token());
            let shutdown = port.clone();
            tasks.spawn(async move { listener.run(handler, shutdown).await.expect("it listens") });
            let listener = TcpListener::bind(any).await.expect("loopback has free ports");
            let api = format!("http://{}", listener.local_addr().expect("bound"));
            let served = api::serve(listener, None, front, stop.clone());
            tasks.spawn(async move { served.await.expect("it listens") });
            nodes.push(Node { name, leadership, peers, identity, api, port, term: None });
        }
        let (store, metrics) = (Arc::new(MemoryStore::default()), Metrics::register(&mut Registry::default()));
        Self { nodes, store, metrics, epoch: 0, tasks, stop, _folder: folder }
    }

    /// This node leads from now on, and the others know.
    pub(super) fn elect(&mut self, index: usize) -> Handle {
        self.epoch += 1;
        let epoch = Epoch(self.epoch);
        for node in &mut self.nodes {
            node.term = None;
        }
        let (control, handle) = build_with(Config::default(), Arc::clone(&self.store), self.metrics.clone());
        let over = self.stop.child_token();
        let term = over.clone();
        self.tasks.spawn(async move { control.run(term).await.map(|_| ()).expect("it runs") });
        let leader = self.nodes[index].name.clone();
        for (other, node) in self.nodes.iter_mut().enumerate() {
            node.leadership.send_replace(if other == index {
                LeadershipView::Leading { handle: handle.clone(), epoch }
            } else {
                LeadershipView::Following { leader: Some((leader.clone(), epoch)) }
            });
        }
        self.nodes[index].term = Some(over.drop_guard());
        handle
    }

    /// A way from a node that is told nothing by its own seat.
    pub(super) fn context(&self, index: usize) -> ConnectContext {
        let Node { name, peers, .. } = &self.nodes[index];
        ConnectContext { me: name.clone(), incarnation: 1, peers: peers.clone(), leadership: LeadershipView::never() }
    }

    pub(super) fn worker(&mut self, context: ConnectContext, info: WorkerInfo) -> WorkerEnds {
        let (uplink, ends) = WorkerUplink::new(context, info);
        let stop = self.stop.clone();
        self.tasks.spawn(uplink.run(stop));
        ends
    }

    pub(super) fn gateway(&mut self, context: ConnectContext) -> GatewayEnds {
        let (uplink, ends) = GatewayUplink::new(context, Some("eu".to_owned()));
        let stop = self.stop.clone();
        self.tasks.spawn(uplink.run(stop));
        ends
    }

    /// A worker that makes ready whatever it is assigned, and checks that nothing was left out.
    pub(super) fn obedient_worker(
        &mut self,
        context: ConnectContext,
        info: WorkerInfo,
    ) -> watch::Receiver<HeldReplicas> {
        let (reports, mut orders) = self.worker(context, info.clone());
        let (tell, held) = watch::channel(HeldReplicas::default());
        self.tasks.spawn(async move {
            while let Some(order) = orders.recv().await {
                let now = tell.borrow().clone();
                let (now, report) = now.after(order, &info);
                tell.send_replace(now);
                if reports.send(report).await.is_err() {
                    return;
                }
            }
        });
        held
    }

    /// A gateway that routes by what it is told, and checks that nothing was left out.
    pub(super) fn obedient_gateway(&mut self, context: ConnectContext) -> watch::Receiver<Routed> {
        let (events, mut changes) = self.gateway(context);
        let (tell, routed) = watch::channel(Routed::default());
        self.tasks.spawn(async move {
            while let Some(change) = changes.recv().await {
                let seq = change.seq;
                tell.send_modify(|routed| routed.apply(change));
                if events.send(GatewayEvent::Applied(seq)).await.is_err() {
                    return;
                }
            }
        });
        routed
    }
}

/// Replicas that a worker holds.
#[derive(Clone, Default)]
pub(super) struct HeldReplicas {
    pub(super) attached: usize,
    pub(super) seen: Generation,
    pub(super) replicas: BTreeSet<RevisionId>,
}

impl HeldReplicas {
    fn after(mut self, order: FromController, info: &WorkerInfo) -> (Self, InventoryChange) {
        let everything = |held: &Self| -> Vec<(RevisionId, Option<Residency>)> {
            held.replicas.iter().map(|id| (id.clone(), Some(ready(Time(1))))).collect()
        };
        let (whole, said) = match order {
            FromController::Attached => {
                self.attached += 1;
                (true, everything(&self))
            }
            FromController::Credentials(_) => (false, Vec::new()),
            FromController::Assigned(change) => {
                assert!(change.base.is_none_or(|base| base == self.seen), "{:?} on {:?}", change.base, self.seen);
                assert!(change.generation >= self.seen, "numbers go on from one leader to the next");
                if change.base.is_none() {
                    self.replicas.clear();
                }
                self.seen = change.generation;
                self.replicas.extend(change.set.iter().map(|placed| placed.revision.id.clone()));
                self.replicas.retain(|id| !change.unset.contains(id));
                let gone = change.unset.iter().map(|id| (id.clone(), None));
                (change.base.is_none(), everything(&self).into_iter().chain(gone).collect())
            }
        };
        let report = InventoryChange { seen: self.seen, ..inventory(info, whole, said) };
        (self, report)
    }
}

/// Routes of a gateway.
#[derive(Clone, Default)]
pub(super) struct Routed {
    pub(super) wholes: usize,
    pub(super) seq: u64,
    pub(super) routes: BTreeMap<DeploymentName, Route>,
}

impl Routed {
    pub(super) fn apply(&mut self, change: berth_spec::RouteChange) {
        assert!(change.base.is_none_or(|base| base == self.seq), "{:?} on {}", change.base, self.seq);
        assert!(change.seq > self.seq, "numbers grow, whoever sends");
        if change.base.is_none() {
            self.wholes += 1;
            self.routes.clear();
        }
        self.seq = change.seq;
        self.routes.extend(change.set.into_iter().map(|route| (route.deployment.clone(), route)));
        self.routes.retain(|name, _| !change.unset.contains(name));
    }
}

/// A gateway that was asked for `iris`, and for a model that has the node's name.
fn counters(name: &WorkerId) -> TopSource {
    let of = |deployment: &str, requests| ModelCounters {
        deployment: deployment.to_owned(),
        requests,
        latency: vec![(1.0, requests), (f64::INFINITY, requests)],
        ..ModelCounters::default()
    };
    let both = [of(name.as_str(), 10), of("iris", 20)];
    Arc::new(move |each| both.iter().cloned().for_each(each))
}

pub(super) fn member(name: &WorkerId, at: SocketAddr) -> (Arc<Member>, Health) {
    let member = Member {
        name: name.clone(),
        incarnation: 1,
        gossip: at,
        peer: at,
        roles: Roles::ALL,
        labels: BTreeMap::new(),
        version: "1.2.3".to_owned(),
        protocol: (1, 1),
    };
    (Arc::new(member), Health::Alive)
}

fn dependencies(
    name: &WorkerId,
    members: Vec<(Arc<Member>, Health)>,
    leadership: watch::Receiver<LeadershipView>,
) -> ApiDependencies {
    let (version, me) = (name.to_string(), name.clone());
    ApiDependencies {
        audit: berth_audit::AuditLog::default(),
        metrics: Arc::new(|| "# EOF\n".to_owned()),
        top: counters(name),
        trial: None,
        logs: None,
        beside: None,
        rules: Some(if name.as_str() == "c" { "onnx:required:pool=c".to_owned() } else { String::new() }),
        access: Arc::default(),
        admin_token: None,
        issuing: None,
        version,
        members: Arc::new(move || members.clone()),
        leader: Arc::new(move || {
            let (name, epoch) = leadership.borrow().leader(&me)?;
            Some(Leader { name, epoch: Some(epoch) })
        }),
    }
}
