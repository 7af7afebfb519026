//! The gateway's life: built with its port taken, run until it is told to stop, drained.
//!
//! ```text
//! build ──→ run: Serving ──shutdown──→ Leaving ── Limits::lame_duck over ──→ Draining ── nobody inside, or
//!                                      ready is false,                       │          Limits::drain over ──→ DrainReport
//!                                      all is served as before               └ new inferences are refused,
//!                                                                              parked and running ones go on
//! ```

use std::{
    collections::BTreeSet,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_peer::{
    Members,
    port::{Bounds, Room},
};
use berth_spec::{DeploymentName, GatewayEvent, RouteChange, WorkerId, routes::Readiness};
use berth_wire::guard::Guard;
use prometheus_client::registry::Registry;
use tokio::{net::TcpListener, sync::mpsc, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    accounts::Accounts,
    admission::Admission,
    body::memory::RequestMemory,
    calls::{Calls, IsKnown},
    config::Config,
    controls::TraceControl,
    demand::DemandTracker,
    endpoint::{fleet::Fleet, forwarding::Forwarding},
    exporter::Exporter,
    fair::{Pool, Shape},
    follow::{PeerMessages, RouteFollower},
    hints,
    ingress::{
        Ingress,
        peer::{PeerService, PeerStack},
    },
    listener::{self, Listener, ShutdownSignals},
    local::LocalReplicas,
    metrics::{Totals, forward::ServedHops},
    parking::{Parking, Waits},
    payload::{Delivery, Payloads},
    resolved::Resolver,
    route_cache::RouteCache,
    routes::{Applier, Routes},
    stack::Stack,
    top,
};

/// Places beyond each bound, for callers and models that hold few: one for four.
const RESERVE_DIVISOR: u32 = 4;

/// The longest that the end of connections takes once they are cut: they end at once unless a thread of theirs hangs.
const CUT_TIMEOUT: Duration = Duration::from_secs(5);

/// The channels between a gateway and the controller.
pub struct GatewayLink {
    /// Changes from the controller. The first one is the whole.
    pub routes: mpsc::Receiver<RouteChange>,
    /// Demand, misses and results, for the controller.
    pub events: mpsc::Sender<GatewayEvent>,
}

/// The requests that a gateway had when it was told to stop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DrainReport {
    /// Inferences that were inside when it was told to stop, and were answered.
    pub finished: u32,
    /// Requests that were still inside when their time was over, and were cut.
    pub cut: u32,
}

/// A gateway that has its port and does not serve yet.
pub struct Gateway {
    /// Empty: it answers no clients.
    listeners: Vec<std::net::TcpListener>,
    config: Config,
    stack: Arc<Stack>,
    applier: Applier,
    members: Option<Members>,
    /// The admission of requests that other nodes sent.
    hops: Arc<Admission>,
    /// Deliveries to payload processors.
    deliveries: Vec<Delivery>,
}

/// A look into a gateway from outside; cheap to clone.
#[derive(Clone)]
pub struct Handle {
    me: WorkerId,
    stack: Arc<Stack>,
    address: Option<SocketAddr>,
    peer_service: PeerService,
}

/// Takes the port and makes everything that serving needs. `me` is the worker whose replicas `replicas` holds; `fleet` the
/// other nodes, where there are some.
///
/// # Errors
/// The address cannot be listened on; the error names it.
pub fn build(
    config: Config,
    me: WorkerId,
    replicas: Arc<LocalReplicas>,
    fleet: Option<Fleet>,
    registry: &mut Registry,
) -> io::Result<(Gateway, Handle)> {
    let addresses = config.http.into_iter().chain(config.also_http.iter().copied());
    let listeners = addresses.map(listener::bind).collect::<io::Result<Vec<_>>>()?;
    let address =
        listeners.first().filter(|_| config.http.is_some()).map(std::net::TcpListener::local_addr).transpose()?;
    let limits = &config.limits;
    let (routes, demand) = (Arc::new(Routes::new()), DemandTracker::new());
    let shape = Shape::new(config.access.is_required());
    let admission = Admission::new(limits.requests, limits.requests / RESERVE_DIVISOR, shape);
    let totals = Arc::new(Totals::default());
    let (hops, served) = (Admission::new(limits.requests, 0, shape), Arc::new(ServedHops::default()));
    let memory = RequestMemory::new(limits.memory, shape);
    let members = fleet.as_ref().and_then(|fleet| fleet.members.clone());
    let forwarding = fleet.map(|fleet| Arc::new(Forwarding::new(fleet, limits, config.propagate.clone())));
    // Weak: a route holds replicas, and each of them the listener.
    replicas.listen(hints::announcer(Arc::downgrade(&routes), members.clone()));
    let calls = config.calls.map(|settings| Calls::register(settings, is_known(&routes, &replicas), registry));
    let (payloads, deliveries) = Payloads::build(&config.payloads, registry).unzip();
    let exporter = Exporter {
        routes: Arc::clone(&routes),
        totals: Arc::clone(&totals),
        admission: Arc::clone(&admission),
        memory: Arc::clone(&memory),
        forwarding: forwarding.clone(),
        served: Arc::clone(&served),
    };
    registry.register_collector(Box::new(exporter));
    let places = Pool::new(limits.parked as usize, (limits.parked / RESERVE_DIVISOR) as usize, shape);
    let parking = Parking {
        replicas: Arc::clone(&replicas),
        demand: Arc::clone(&demand),
        places,
        calls: calls.clone(),
        waits: Waits::default(),
    };
    let remotes = forwarding.as_ref().map(|forwarding| Arc::clone(&forwarding.remotes));
    let resolver = Resolver { me: me.clone(), replicas: Arc::clone(&replicas), remotes };
    let applier = Applier::new(Arc::clone(&routes), resolver).counting(calls.clone());
    let peer_service = PeerService::new(PeerStack {
        replicas,
        limits: limits.clone(),
        memory: Arc::clone(&memory),
        admission: Arc::clone(&hops),
        served,
        spans: config.spans.clone(),
        calls: calls.clone(),
        functions: Arc::clone(&config.functions),
    });
    let stack = Arc::new(Stack {
        routes,
        parking,
        demand,
        admission,
        totals,
        limits: limits.clone(),
        memory,
        forwarding,
        leaving: AtomicBool::new(false),
        data_plane: config.data_plane.clone(),
        payloads,
        calls,
        access: Arc::clone(&config.access),
        accounts: Accounts::new(config.principal_limits),
        audit: config.audit.clone(),
        regions: config.features.shared_memory.then(Arc::default),
        traces: config.spans.as_ref().map(|_| TraceControl::default()),
        features: config.features.clone(),
    });
    let handle = Handle { me, stack: Arc::clone(&stack), address, peer_service };
    let deliveries = deliveries.unwrap_or_default();
    Ok((Gateway { listeners, config, stack, applier, members, hops, deliveries }, handle))
}

/// Knows the models that are declared, or loaded on this node, which may have no routes.
fn is_known(routes: &Arc<Routes>, replicas: &Arc<LocalReplicas>) -> IsKnown {
    let (routes, replicas) = (Arc::clone(routes), Arc::clone(replicas));
    Box::new(move |model| routes.has(model) || replicas.holds(model))
}

impl Gateway {
    /// Serves until `shutdown`, says for [`Limits::lame_duck`](crate::Limits::lame_duck) that it is not ready, then drains:
    /// connections end with what was sent on them (without a lame-duck time new inferences are refused at once), and those
    /// inside have [`Limits::drain`](crate::Limits::drain) to finish. Routes are followed to the end, so that parked requests can
    /// still be answered.
    ///
    /// # Errors
    /// The port cannot be given to the runtime.
    pub async fn run(self, link: GatewayLink, shutdown: CancellationToken) -> io::Result<DrainReport> {
        let Self { listeners, config, stack, mut applier, members, hops, deliveries } = self;
        let (signals, told) = (ShutdownSignals::default(), CancellationToken::new());
        let GatewayLink { routes, events } = link;
        let tasks = TaskTracker::new();
        let (lame_duck, drain) = (config.limits.lame_duck, config.limits.drain);
        let cache = match &config.routes_file {
            Some(path) => RouteCache::open(path.clone(), &mut applier).await,
            None => RouteCache::off(),
        };
        let followed = RouteFollower { applier, cache, stack: Arc::clone(&stack), told: told.clone() };
        tasks.spawn(followed.run(routes, events.clone(), PeerMessages::of(members)));
        tasks.spawn({
            let (stack, told) = (Arc::clone(&stack), told.clone());
            async move { stack.demand.run(events, told).await }
        });
        for delivery in deliveries {
            tasks.spawn(delivery.run(told.clone()));
        }
        let ports = ports(listeners, config, &stack, &signals)?.into_iter().map(|port| tasks.spawn(port.run()));
        let ports = futures::future::join_all(ports.collect::<Vec<_>>());
        tasks.close();

        shutdown.cancelled().await;
        stack.leaving.store(true, Relaxed);
        if !lame_duck.is_zero() {
            tracing::info!(?lame_duck, "gateway: leaving");
            tokio::time::sleep(lame_duck).await;
        }
        // One of several has told its clients to go elsewhere: what still comes on a connection before that is closed is
        // served. One that is alone refuses at once.
        let alone = lame_duck.is_zero();
        let inside = if alone { stack.admission.close() } else { stack.admission.inside() };
        signals.stopping.cancel();
        tracing::info!(event = "gateway_draining", inside, "gateway: draining");
        let drained = async {
            if alone {
                hops.close();
                stack.admission.emptied().await;
                hops.emptied().await;
            }
            // The last answers are being written.
            if ports.await.iter().any(Result::is_err) {
                tracing::error!("gateway: a listener panicked");
            }
            stack.admission.close();
            hops.close();
            hops.emptied().await;
        };
        let in_time = timeout(drain, drained).await.is_ok();
        let left = if in_time { 0 } else { stack.admission.close() };
        hops.close();
        signals.cut.cancel();
        told.cancel();
        if timeout(CUT_TIMEOUT, tasks.wait()).await.is_err() {
            tracing::warn!(event = "gateway_connections_left", "connections do not end and are left behind");
        }
        let drained = DrainReport { finished: inside.saturating_sub(left), cut: left };
        tracing::info!(event = "gateway_drained", finished = drained.finished, cut = drained.cut, "gateway: drained");
        Ok(drained)
    }
}

/// Ports of the gateway. They share the room for connections.
fn ports(
    listeners: Vec<std::net::TcpListener>,
    config: Config,
    stack: &Arc<Stack>,
    signals: &ShutdownSignals,
) -> io::Result<Vec<Listener>> {
    let limits = config.limits;
    let bounds = Bounds { connections: limits.connections, per_address: limits.connections_per_address };
    let (room, version) = (Room::new(bounds), Arc::<str>::from(config.version));
    let port = |listener: std::net::TcpListener| {
        let listener = TcpListener::from_std(listener)?;
        let guard = Guard::of(listener.local_addr()?);
        let (functions, beside) = (Arc::clone(&config.functions), config.beside.clone());
        Ok(Listener {
            listener,
            ingress: Ingress::new(
                Arc::clone(stack),
                Arc::clone(&version),
                config.spans.clone(),
                guard,
                functions,
                beside,
            ),
            totals: Arc::clone(&stack.totals),
            limits: limits.clone(),
            room: room.clone(),
            tls: config.tls.clone(),
            loops: config.loops.clone(),
            signals: signals.clone(),
        })
    };
    listeners.into_iter().map(port).collect()
}

impl Handle {
    /// The address that is listened on; `None`: it answers no clients.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The answer of `/v2/health/ready`.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.stack.ready()
    }

    /// The controller's last word on readiness.
    #[must_use]
    pub fn readiness(&self) -> Arc<Readiness> {
        self.stack.routes.readiness()
    }

    /// Inferences inside now, parked ones included.
    #[must_use]
    pub fn inside(&self) -> u32 {
        self.stack.admission.inside()
    }

    /// Nodes where a replica of a deployment answers now, as far as this node knows; it needs no controller for that.
    #[must_use]
    pub fn answering(&self, deployment: &DeploymentName) -> BTreeSet<WorkerId> {
        let found = self.stack.routes.peek(deployment);
        found.map(|state| state.route().answering(&self.me)).unwrap_or_default()
    }

    /// The service for requests that other nodes forward here, for the peer port. It answers from the start until the
    /// gateway has drained.
    #[must_use]
    pub fn peer_service(&self) -> PeerService {
        self.peer_service.clone()
    }

    /// Calls `each` for every deployment that had a request, in no order.
    pub fn each_used(&self, each: impl FnMut(top::Row)) {
        top::each(&self.stack.routes, each);
    }

    /// Every deployment that had a request, by name.
    #[must_use]
    pub fn top(&self) -> Vec<top::Row> {
        let mut rows = Vec::new();
        self.each_used(|row| rows.push(row));
        rows.sort_unstable_by(|a, b| a.deployment.cmp(&b.deployment));
        rows
    }
}
