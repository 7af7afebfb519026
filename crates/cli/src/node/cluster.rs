//! Everything that a cluster adds to a node: membership, the port for other nodes, election, uplinks.

use std::sync::Arc;

use berth_audit::AuditLog;
use berth_control::{
    Config, Metrics,
    api::{ApiRouter, Relay},
    fleet::FleetService,
    functions::FunctionHost,
    leadership::{CandidateInfo, LeadershipView},
    uplink::{ConnectContext, GatewayUplink, WorkerUplink},
};
use berth_functions::source::Host;
use berth_mesh::{Fleet, GatewayLink, PeerService};
use berth_peer::{
    EventLoops, Identity, LinePolicy, Members, PeerListener, Peers,
    membership::{Gossip, GossipConfig, Policy},
};
use berth_spec::{Member, Roles, WorkerInfo, member::REGION};
use berth_worker::WorkerLink;
use futures::FutureExt as _;
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, watch};

use super::{
    control_plane::{ControllerParts, Deciding},
    election::ElectionHandle,
    function_artifacts::{ArtifactCopies, ArtifactPort},
    peer_port::PeerPort,
    renewal::{self, Renewal},
    running::Links,
    settings::{ClusterSettings, NodeSettings},
    store,
};
use crate::failure::Failure;

/// Membership of this node: its description, and the sockets of gossip and the peer port.
pub(super) struct Membership {
    pub(super) me: Member,
    pub(super) members: Members,
    pub(super) peers: Peers,
    listener: PeerListener,
    gossip: Gossip,
    certificate: renewal::Metrics,
}

/// The tasks by which other nodes reach this one.
pub(super) struct PeerTasks {
    pub(super) listener: PeerListener,
    pub(super) port: Arc<PeerPort>,
    pub(super) gossip: Gossip,
    pub(super) renewal: Renewal,
    /// `None`: this node runs no functions.
    pub(super) copies: Option<ArtifactCopies>,
}

/// Election of this node, or following for ever.
pub(super) struct ControllerRole {
    pub(super) view: watch::Receiver<LeadershipView>,
    pub(super) deciding: Option<Deciding>,
    pub(super) election: Option<ElectionHandle>,
}

impl Membership {
    /// Takes the ports towards other nodes, asks whether the name is free, and begins to be a member.
    pub(super) async fn join(
        settings: &NodeSettings,
        cluster: &ClusterSettings,
        worker: Option<&WorkerInfo>,
        loops: &EventLoops,
        registry: &mut Registry,
    ) -> Result<Self, Failure> {
        let identity = Identity::load(&cluster.pki).map_err(|error| Failure::Usage(error.to_string()))?;
        let listener = PeerListener::bind(cluster.peer, identity.clone())
            .map_err(|error| Failure::Failed(format!("{error}; --peer takes another address")))?;
        let listener = listener.on(loops.clone());
        let me = Member {
            name: settings.server.name.clone(),
            incarnation: worker.map_or_else(now, |worker| worker.incarnation),
            gossip: settings.reached_at(cluster.gossip)?,
            peer: settings.reached_at(listener.local_addr()?)?,
            roles: settings.roles,
            labels: settings.server.labels.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: berth_peer::PROTOCOL,
        };
        let config = GossipConfig {
            bind: cluster.gossip,
            join: cluster.join.iter().map(ToString::to_string).collect(),
            policy: Policy::default(),
        };
        let (members, gossip) = Gossip::bind(config, me.clone(), identity.clone(), registry)
            .map_err(|error| Failure::Failed(format!("{error}; --gossip takes another address")))?;
        gossip.ask_for_name().await.map_err(|error| Failure::Failed(error.to_string()))?;
        let peers = Peers::start(identity, members.clone(), LinePolicy::default());
        let certificate = renewal::Metrics::register(registry);
        Ok(Self { me, members, peers, listener, gossip, certificate })
    }

    /// The other nodes, as the gateway sees them.
    pub(super) fn fleet(&self) -> Fleet {
        Fleet::new(self.peers.clone(), self.members.clone(), self.me.labels.get(REGION).cloned())
    }

    /// Stands for election. A node without the role controller always follows.
    pub(super) fn stand(
        &self,
        settings: &NodeSettings,
        cluster: &ClusterSettings,
        functions: Option<&Arc<Host>>,
        audit: AuditLog,
        registry: &mut Registry,
    ) -> Result<ControllerRole, Failure> {
        let Some(store) = &cluster.store else {
            return Ok(ControllerRole { view: LeadershipView::never(), deciding: None, election: None });
        };
        let store = cluster.etcd.clone().map_or_else(|| store::config(store), Ok)?;
        let rules = settings.server.rules();
        let me = CandidateInfo { name: self.me.name.clone(), peer: self.me.peer.to_string(), rules };
        let (leadership, election) = ElectionHandle::start(store.clone(), me, self.peers.clone())?;
        let (view, views) = watch::channel(LeadershipView::Following { leader: None });
        let config = Config {
            policy: settings.server.policy(),
            type_rules: settings.server.planning.type_rules.clone(),
            members: Some(self.members.clone()),
            audit,
            functions: functions.map(|host| Arc::clone(host) as Arc<dyn FunctionHost>),
            ..Config::default()
        };
        let sources = settings.sources.build(&settings.server.data, functions, registry)?;
        let metrics = Metrics::register(registry);
        let functions = functions.cloned();
        let parts = ControllerParts { config, metrics, store, leadership, view, sources, functions };
        Ok(ControllerRole { view: views, deciding: Some(Deciding::Terms(Box::new(parts))), election: Some(election) })
    }

    /// Links of the data path to whoever leads, and the way of the control API to it.
    pub(super) fn links(
        &self,
        roles: Roles,
        worker: Option<&WorkerInfo>,
        leadership: watch::Receiver<LeadershipView>,
    ) -> (Links, Relay) {
        let context = ConnectContext {
            me: self.me.name.clone(),
            incarnation: self.me.incarnation,
            peers: self.peers.clone(),
            leadership,
        };
        let (gateway_uplink, gateway) = self.routed(roles, &context);
        let (worker_uplink, worker) = worker
            .map(|info| {
                let (uplink, (reports, assignments)) = WorkerUplink::new(context, info.clone());
                (uplink, WorkerLink { assignments, reports })
            })
            .unzip();
        let found = gateway_uplink.as_ref().map(GatewayUplink::leader);
        let found = found.or_else(|| worker_uplink.as_ref().map(WorkerUplink::leader));
        let links = Links {
            gateway: std::future::ready(gateway).boxed(),
            worker: worker.map(|worker| std::future::ready(worker).boxed()),
            gateway_uplink,
            worker_uplink,
        };
        (links, Relay { peers: self.peers.clone(), found })
    }

    /// Route channel of a gateway. A node without that role needs none: it only answers forwarded requests.
    fn routed(&self, roles: Roles, context: &ConnectContext) -> (Option<GatewayUplink>, GatewayLink) {
        if roles.gateway {
            let region = self.me.region().map(str::to_owned);
            let (uplink, (events, routes)) = GatewayUplink::new(context.clone(), region);
            return (Some(uplink), GatewayLink { routes, events });
        }
        let ((events, _), (_, routes)) = (mpsc::channel(1), mpsc::channel(1));
        (None, GatewayLink { routes, events })
    }

    /// The port for other nodes and gossip, ready to run.
    pub(super) fn tasks(
        self,
        leadership: watch::Receiver<LeadershipView>,
        front: ApiRouter,
        inference: PeerService,
        functions: Option<(Arc<Host>, Relay)>,
    ) -> PeerTasks {
        let renewal = Renewal { peers: self.peers.clone(), front: front.clone(), metrics: self.certificate };
        let artifacts = functions.as_ref().map(|(host, _)| ArtifactPort::new(Arc::clone(host), leadership.clone()));
        let copies = functions.map(|(host, relay)| ArtifactCopies { host, leadership: leadership.clone(), relay });
        let port = PeerPort { fleet: FleetService::new(leadership, Some(self.peers)), front, inference, artifacts };
        PeerTasks { listener: self.listener, port: Arc::new(port), gossip: self.gossip, renewal, copies }
    }
}

/// A number that grows with each start.
fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
