//! Puts the parts of a node together. What can fail because of what a user said fails here, before anything serves.

mod running;

use std::{
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex, OnceLock},
};

use berth_control::{
    Config, Metrics,
    api::{ApiRouter, Leader, Relay, Seams},
    fleet::FleetService,
    leadership::CandidateInfo,
    leadership::LeadershipView,
    uplink::{ConnectContext, GatewayUplink, WorkerUplink},
};
use berth_functions::source::Host;
use berth_mesh::{Fleet, Gateway, GatewayLink, Limits, config::FunctionHook, local::LocalReplicas};
use berth_peer::{
    EventLoops, Identity, LinePolicy, Members, PeerListener, Peers,
    membership::{Gossip, GossipConfig, Policy},
};
use berth_spec::{Member, WorkerInfo, member::REGION};
use berth_worker::{Worker, WorkerLink};
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, watch};

pub(super) use self::running::Running;
use super::{
    banner::Banner,
    control_plane::{self, ControllerParts, Parts},
    election::ElectionHandle,
    peer_port::PeerPort,
    settings::NodeSettings,
    store,
};
use crate::{
    control_thread::ControlThread, descriptors, failure::Failure, management::Management, settings::functions,
    telemetry::Telemetry, up::seams,
};

/// Everything of one node, running.
pub(super) struct System {
    pub(super) members: Members,
    pub(super) local: Arc<LocalReplicas>,
    pub(super) running: Running,
    pub(super) control: ControlThread,
    pub(super) election: Option<ElectionHandle>,
    pub(super) banner: Banner,
    pub(super) gateway: berth_mesh::Handle,
}

impl System {
    /// Resolves when a part ends without being told to, with the reason.
    pub(super) async fn ended(&mut self) -> Failure {
        tokio::select! {
            failure = self.control.ended() => failure,
            failure = self.running.ended() => failure,
        }
    }
}

/// Membership of this node: its description, and the sockets of gossip and the peer port.
struct ClusterMembership {
    listener: PeerListener,
    members: Members,
    gossip: Gossip,
    peers: Peers,
    me: Member,
    loops: EventLoops,
}

/// Opens, binds and builds everything, and starts it.
pub(super) async fn compose(settings: &NodeSettings, telemetry: &Telemetry) -> Result<System, Failure> {
    let mut registry = Registry::default();
    let local = Arc::new(LocalReplicas::default());
    let worker = settings.roles.worker.then(|| worker(settings, &local, &mut registry)).transpose()?;
    let presence = presence(settings, worker.as_ref().map(Worker::info), &mut registry).await?;
    let (hook, management) = (Arc::default(), Management::default());
    let (gateway, look) = gateway((settings, telemetry), &presence, (&local, &hook, &management), &mut registry)?;
    let api = TcpListener::bind(settings.server.api)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .map_err(|e| {
            Failure::Failed(format!("cannot listen on {}: {e}; --api takes another address", settings.server.api))
        })?;
    let addresses = (look.local_addr(), api.local_addr()?);
    let ClusterMembership { listener, members, gossip, peers, me, .. } = presence;
    let functions = functions(settings, look.local_addr(), &hook, &mut registry)?;
    let (election, deciding, leadership) =
        deciding(settings, &me, (&members, &peers), functions.as_ref(), &mut registry)?;
    let rules = settings.roles.controller.then(|| settings.server.rules());
    let seams = node_seams(&members, &leadership, look.clone(), registry, (rules, functions.as_ref()))?;
    let context = ConnectContext {
        me: me.name.clone(),
        incarnation: me.incarnation,
        peers: peers.clone(),
        leadership: leadership.clone(),
    };
    let (routed, link) = routed(settings, &context, &me);
    let worker = worker.map(|worker| {
        let (uplink, (reports, assignments)) = WorkerUplink::new(context, worker.info().clone());
        (worker, WorkerLink { assignments, reports }, uplink)
    });
    let found = routed.as_ref().map(GatewayUplink::leader);
    let found = found.or_else(|| worker.as_ref().map(|(.., uplink)| uplink.leader()));
    let relay = Relay { peers: peers.clone(), found };
    let front = ApiRouter::new(leadership.clone(), Some(relay), seams);
    management.connect(&front);
    let port = PeerPort {
        fleet: FleetService::new(leadership, Some(peers)),
        front: front.clone(),
        inference: look.peer_service(),
    };
    let control = control_plane::start(Parts { listener: api, front, deciding })?;
    let banner = Banner::of(addresses, &me, worker.as_ref().map(|(worker, ..)| worker));
    let mut running = Running::start(listener, Arc::new(port), gossip);
    running.gateway(gateway, link, routed);
    if let Some((worker, link, uplink)) = worker {
        running.worker(worker, link, uplink);
    }
    Ok(System { members, local, running, control, election, banner, gateway: look })
}

fn worker(settings: &NodeSettings, local: &Arc<LocalReplicas>, registry: &mut Registry) -> Result<Worker, Failure> {
    let server = &settings.server;
    let config = berth_worker::Config {
        labels: server.labels.clone(),
        memory: server.memory,
        gpus: settings.gpus.clone(),
        max_models: settings.max_models,
        cache: server.cache,
        parallel_loads: server.parallel_loads,
        runtimes: server.runtimes.clone(),
        onnx_library: server.onnx_library.clone(),
        nvml_library: server.nvml_library.clone(),
        cards: server.cards.clone(),
        credentials: server.credentials.clone(),
        ..berth_worker::Config::new(server.name.clone(), &server.data)
    };
    let build = if settings.built_in { berth_worker::build } else { berth_worker::build_with_servers };
    build(config, Arc::clone(local), registry).map_err(|e| Failure::doing("the worker cannot start", e))
}

/// Takes the ports towards other nodes, asks whether the name is free, and begins to be a member.
async fn presence(
    settings: &NodeSettings,
    worker: Option<&WorkerInfo>,
    registry: &mut Registry,
) -> Result<ClusterMembership, Failure> {
    let identity = Identity::load(&settings.pki).map_err(|error| Failure::Usage(error.to_string()))?;
    let listener = PeerListener::bind(settings.peer, identity.clone())
        .map_err(|error| Failure::Failed(format!("{error}; --peer takes another address")))?;
    let loops = EventLoops::start(settings.server.threads)
        .map_err(|e| Failure::doing("cannot start the threads that serve requests", e))?;
    let listener = listener.on(loops.clone());
    let me = Member {
        name: settings.server.name.clone(),
        incarnation: worker.map_or_else(now, |worker| worker.incarnation),
        gossip: settings.reached_at(settings.gossip)?,
        peer: settings.reached_at(listener.local_addr()?)?,
        roles: settings.roles,
        labels: settings.server.labels.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: berth_peer::PROTOCOL,
    };
    let config = GossipConfig {
        bind: settings.gossip,
        join: settings.join.iter().map(ToString::to_string).collect(),
        policy: Policy::default(),
    };
    let (members, gossip) = Gossip::bind(config, me.clone(), identity.clone(), registry)
        .map_err(|error| Failure::Failed(format!("{error}; --gossip takes another address")))?;
    gossip.ask_for_name().await.map_err(|error| Failure::Failed(error.to_string()))?;
    let peers = Peers::start(identity, members.clone(), LinePolicy::default());
    Ok(ClusterMembership { listener, members, gossip, peers, me, loops })
}

/// A number that grows with each start.
fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Route channel of a gateway. A node without that role needs none: it only answers forwarded requests.
fn routed(settings: &NodeSettings, context: &ConnectContext, me: &Member) -> (Option<GatewayUplink>, GatewayLink) {
    if settings.roles.gateway {
        let (uplink, (events, routes)) = GatewayUplink::new(context.clone(), me.region().map(str::to_owned));
        return (Some(uplink), GatewayLink { routes, events });
    }
    let ((events, _), (_, routes)) = (mpsc::channel(1), mpsc::channel(1));
    (None, GatewayLink { routes, events })
}

fn gateway(
    (settings, telemetry): (&NodeSettings, &Telemetry),
    presence: &ClusterMembership,
    (local, functions, management): (&Arc<LocalReplicas>, &Arc<OnceLock<FunctionHook>>, &Management),
    registry: &mut Registry,
) -> Result<(Gateway, berth_mesh::Handle), Failure> {
    let server = &settings.server;
    let connections = descriptors::raise();
    let limits = Limits {
        connections,
        connections_per_address: connections / 2,
        body: server.max_body,
        memory: server.request_memory,
        drain: server.drain_timeout,
        lame_duck: settings.lame_duck,
        ..Limits::default()
    };
    let config = berth_mesh::Config {
        limits,
        spans: telemetry.request_spans(),
        propagate: telemetry.propagation(),
        loops: Some(presence.loops.clone()),
        beside: Some(management.hook()),
        http: settings.roles.gateway.then_some(server.http),
        routes_file: settings.roles.gateway.then(|| server.data.join("routes")),
        functions: Arc::clone(functions),
        data_plane: settings.data_plane.clone(),
        ..berth_mesh::Config::new(server.http)
    };
    let region = server.labels.get(REGION).cloned();
    let fleet = Fleet::new(presence.peers.clone(), presence.members.clone(), region);
    berth_mesh::build(config, server.name.clone(), Arc::clone(local), Some(fleet), registry)
        .map_err(|e| Failure::Failed(format!("{e}: is another server running? --http takes another address")))
}

/// Functions of a controller. Any of them may lead.
fn functions(
    settings: &NodeSettings,
    gateway: Option<SocketAddr>,
    hook: &Arc<OnceLock<FunctionHook>>,
    registry: &mut Registry,
) -> Result<Option<Arc<Host>>, Failure> {
    if settings.store.is_none() || !settings.sources.has_functions() {
        return Ok(None);
    }
    let gateway = gateway.map(|gateway| settings.reached_at(gateway)).transpose()?;
    let host = functions::host(&settings.server, gateway, settings.sources.functions_are_local(), registry)?;
    // Nobody else sets it.
    let _ = hook.set(functions::hook(&host));
    Ok(Some(host))
}

type Decision = (Option<ElectionHandle>, Option<ControllerParts>, watch::Receiver<LeadershipView>);

/// Parts of a controller. A node without that role always follows.
fn deciding(
    settings: &NodeSettings,
    me: &Member,
    (members, peers): (&Members, &Peers),
    functions: Option<&Arc<Host>>,
    registry: &mut Registry,
) -> Result<Decision, Failure> {
    let Some(store) = &settings.store else { return Ok((None, None, LeadershipView::never())) };
    let store = settings.etcd.clone().map_or_else(|| store::config(store), Ok)?;
    let me = CandidateInfo { name: me.name.clone(), peer: me.peer.to_string(), rules: settings.server.rules() };
    let (leadership, election) = ElectionHandle::start(store.clone(), me, peers.clone())?;
    let (view, views) = watch::channel(LeadershipView::Following { leader: None });
    let config = Config { policy: settings.server.policy(), members: Some(members.clone()), ..Config::default() };
    let sources = settings.sources.build(&settings.server.data, functions, registry)?;
    let deciding = ControllerParts { config, metrics: Metrics::register(registry), store, leadership, view, sources };
    Ok((Some(election), Some(deciding), views))
}

fn node_seams(
    members: &Members,
    leadership: &watch::Receiver<LeadershipView>,
    gateway: berth_mesh::Handle,
    registry: Registry,
    rules: (Option<String>, Option<&Arc<Host>>),
) -> Result<Seams, Failure> {
    let (everybody, me, leadership) = (members.clone(), members.me().clone(), leadership.clone());
    let members = move || everybody.table().values().cloned().collect();
    let leader = move || {
        let (name, epoch) = leadership.borrow().leader(&me)?;
        Some(Leader { name, epoch: Some(epoch) })
    };
    seams::of(Arc::new(Mutex::new(registry)), gateway, Arc::new(members), Arc::new(leader), rules)
}
