//! Puts the parts of a node together. What can fail because of what a user said fails here, before anything serves.

use std::{
    fmt, io,
    net::{SocketAddr, TcpListener},
    sync::{Arc, OnceLock},
};

use berth_access::Follower;
use berth_audit::AuditLog;
use berth_control::{
    Config, Handle, api::ApiRouter, functions::FunctionHost, leadership::LeadershipView, store::embedded::EmbeddedStore,
};
use berth_functions::source::Host;
use berth_mesh::{
    GatewayLink, Limits,
    config::{Features, FunctionHook, MetricsHook},
    local::LocalReplicas,
};
use berth_peer::{EventLoops, Members, port::PortTls};
use berth_spec::{WorkerId, WorkerInfo};
use berth_worker::{Worker, WorkerLink, config::IsolationSettings, replica::Retries, time_slice};
use futures::FutureExt as _;
use prometheus_client::registry::Registry;
use tokio::sync::mpsc;

use super::{
    Started,
    api_dependencies::ApiParts,
    banner::Banner,
    cluster::{ControllerRole, Membership},
    control_plane::{self, Deciding, Followed, Parts},
    election::ElectionHandle,
    functions::FunctionRoute,
    issuing,
    running::{Links, Running},
    settings::NodeSettings,
};
use crate::{
    control_thread::ControlThread,
    descriptors,
    failure::Failure,
    management::Management,
    settings::{
        functions::{self, FunctionSettings},
        tls::{LoadedTls, scheme},
    },
    telemetry::Telemetry,
};

/// Everything of one node, running.
pub(super) struct System {
    pub(super) started: Started,
    pub(super) banner: Banner,
    pub(super) local: Arc<LocalReplicas>,
    pub(super) running: Running,
    pub(super) control: ControlThread,
    /// `None`: the node is alone.
    pub(super) cluster: Option<Cluster>,
    /// Audit log.
    pub(super) audit: AuditLog,
    /// Failures of what started with the node.
    pub(super) aborted: mpsc::Receiver<Failure>,
}

/// The other nodes, for one that leaves them.
pub(super) struct Cluster {
    pub(super) members: Members,
    pub(super) election: Option<ElectionHandle>,
}

impl System {
    /// Resolves when a part ends without being told to, with the reason.
    pub(super) async fn ended(&mut self) -> Failure {
        tokio::select! {
            failure = self.control.ended() => failure,
            failure = self.running.ended() => failure,
            Some(failure) = self.aborted.recv() => failure,
        }
    }

    /// The last words about itself, for the log.
    pub(super) fn farewell(&self) -> &'static str {
        match self.cluster {
            Some(_) => "shutting down: moving models, finishing requests in flight",
            None => "shutting down: refusing new requests, finishing those in flight",
        }
    }
}

/// Connections of the gateway to parts that are made after it.
#[derive(Default)]
struct Later {
    functions: Arc<OnceLock<FunctionHook>>,
    metrics: Arc<OnceLock<MetricsHook>>,
    management: Management,
}

/// Opens, binds and builds everything, and starts it.
pub(super) async fn compose(settings: &NodeSettings, telemetry: &Telemetry) -> Result<System, Failure> {
    let tls = settings.server.tls.as_ref().map(|tls| tls.load(&settings.server.data)).transpose()?;
    let mut registry = Registry::default();
    let local = Arc::new(LocalReplicas::default());
    let worker = settings.roles.worker.then(|| worker(settings, &local, &mut registry)).transpose()?;
    let info = worker.as_ref().map(Worker::info);
    let loops = EventLoops::start_with(settings.server.threads, time_slice::loop_threads())
        .map_err(|e| Failure::doing("cannot start the threads that serve requests", e))?;
    let cluster = settings.cluster.as_ref();
    // Before it stands for election: it may not start.
    let issuing = cluster.and_then(|cluster| Some((cluster.authority.as_ref()?, &cluster.pki)));
    let issuing = issuing.map(|(authority, pki)| issuing::open(authority, pki)).transpose()?;
    let membership = match cluster {
        Some(cluster) => Some(Membership::join(settings, cluster, info, &loops, &mut registry).await?),
        None => None,
    };
    let (later, fleet) = (Later::default(), membership.as_ref().map(Membership::fleet));
    let access = Arc::new(settings.server.access());
    let rules = settings.server.access_file.clone();
    let rules = rules.map(|file| Follower::new(file, settings.server.insecure, Arc::clone(&access), &mut registry));
    let audit = settings.server.audit.open(&mut registry)?;
    let config = berth_mesh::Config {
        tls: port_tls(tls.as_ref()),
        access: Arc::clone(&access),
        audit: audit.clone(),
        ..gateway_config(settings, telemetry, &later, loops)
    };
    let (gateway, look) =
        berth_mesh::build(config, settings.server.name.clone(), Arc::clone(&local), fleet, &mut registry)
            .map_err(|error| port_refused(&error, &error, "--http and --also-http take other addresses"))?;
    let api = listen(settings.server.api)?;
    let functions = functions(settings, telemetry, look.local_addr(), &mut registry)?;
    let (role, links, relay) = match (&membership, cluster) {
        (Some(membership), Some(cluster)) => {
            let role = membership.stand(settings, cluster, functions.as_ref(), audit.clone(), &mut registry)?;
            let (links, relay) = membership.links(settings.roles, info, role.view.clone());
            (role, links, Some(relay))
        }
        _ => {
            let (role, handle) = alone(settings, functions.as_ref(), audit.clone(), &mut registry)?;
            (role, direct(handle, &settings.server.name, info), None)
        }
    };
    let ControllerRole { view, deciding, election } = role;
    let parts = ApiParts { settings, telemetry, leadership: &view, registry, access: &access, audit: &audit, issuing };
    let api_dependencies = parts.dependencies(membership.as_ref(), look.clone())?;
    if let Some(metrics) = &settings.server.modelmesh_metrics {
        metrics.serve(&settings.server, Arc::clone(&api_dependencies.metrics), Arc::clone(&access))?;
    }
    // Nobody else sets it.
    let _ = later.metrics.set(Arc::clone(&api_dependencies.metrics));
    if functions.is_some() || relay.is_some() {
        let (me, leadership) = (settings.server.name.clone(), view.clone());
        let (host, relay, propagate) = (functions.clone(), relay.clone(), telemetry.propagation());
        let _ = later.functions.set(FunctionRoute { me, host, leadership, relay, propagate }.hook());
    }
    let front = ApiRouter::new(view.clone(), relay.clone(), api_dependencies);
    later.management.connect(&front, &look);
    let (abort, aborted) = mpsc::channel(1);
    let started = Started {
        gateway: look.clone(),
        http: look.local_addr(),
        api: api.local_addr()?,
        scheme: scheme(tls.is_some()),
        control: front.clone(),
        abort,
    };
    let followed = Followed { tls: port_tls(tls.as_ref()), rules };
    let control = control_plane::start(Parts { listener: api, followed, front: front.clone(), deciding })?;
    let ca = tls.and_then(|tls| tls.ca);
    let banner = Banner::of(&started, ca, membership.as_ref().map(|membership| &membership.me), worker.as_ref());
    let cluster = membership.as_ref().map(|membership| Cluster { members: membership.members.clone(), election });
    let (inference, functions) = (look.peer_service(), functions.zip(relay));
    let tasks = membership.map(|membership| membership.tasks(view, front, inference, functions));
    let running = Running::start(gateway, worker, links, tasks);
    Ok(System { started, banner, local, running, control, cluster, audit, aborted })
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
        retries: server.planning.failure_expiry.map_or_else(Retries::default, Retries::every),
        runtimes: server.runtimes.clone(),
        onnx_library: server.onnx_library.clone(),
        nvml_library: server.nvml_library.clone(),
        cards: server.cards.clone(),
        isolation: isolation(settings),
        credentials: server.credentials.clone(),
        storages: server.storages.clone(),
        ..berth_worker::Config::new(server.name.clone(), &server.data)
    };
    let build = if settings.built_in { berth_worker::build } else { berth_worker::build_with_servers };
    build(config, Arc::clone(local), registry).map_err(|e| Failure::doing("the worker cannot start", e))
}

/// The isolation of models, who do not get to the ports of this node.
fn isolation(settings: &NodeSettings) -> IsolationSettings {
    let mut isolation = settings.server.isolation.clone();
    isolation.own_ports.extend(ports_of_nodes(settings));
    isolation
}

/// The isolation of functions, who may ask models through the gateway and do not get to the other ports of this node.
fn isolation_of_functions(settings: &NodeSettings) -> IsolationSettings {
    IsolationSettings {
        network: settings.sources.function_network(),
        own_ports: ports_of_nodes(settings).chain([settings.server.api.port()]).collect(),
        ..settings.server.isolation.clone()
    }
}

/// Ports at which other nodes ask this one.
fn ports_of_nodes(settings: &NodeSettings) -> impl Iterator<Item = u16> {
    settings.cluster.iter().flat_map(|cluster| [cluster.peer.port(), cluster.gossip.port()])
}

fn gateway_config(
    settings: &NodeSettings,
    telemetry: &Telemetry,
    later: &Later,
    loops: EventLoops,
) -> berth_mesh::Config {
    let server = &settings.server;
    let connections = descriptors::raise(server.max_connections);
    let limits = Limits {
        connections,
        connections_per_address: connections / 2,
        body: server.max_body,
        requests: server.max_requests,
        parked: server.max_parked,
        memory: server.request_memory,
        drain: server.drain_timeout,
        lame_duck: settings.lame_duck,
        ..Limits::default()
    };
    // A gateway that is alone learns its routes from a controller in this process, which needs no file.
    let kept = settings.roles.gateway && settings.cluster.is_some();
    berth_mesh::Config {
        limits,
        spans: telemetry.request_spans(),
        propagate: telemetry.propagation(),
        loops: Some(loops),
        beside: Some(later.management.hook()),
        http: settings.roles.gateway.then_some(server.http),
        also_http: if settings.roles.gateway { server.also_http.clone() } else { Vec::new() },
        routes_file: kept.then(|| server.data.join("routes")),
        functions: Arc::clone(&later.functions),
        data_plane: settings.data_plane.clone(),
        payloads: server.payloads.clone(),
        calls: server.modelmesh_metrics.as_ref().map(|metrics| metrics.calls),
        principal_limits: server.principal_limits,
        features: Features {
            metrics: server.protocol.http_metrics.then(|| Arc::clone(&later.metrics)),
            on_demand_ready: server.protocol.on_demand_ready,
            shared_memory: server.protocol.shared_memory,
            log: Some(telemetry.log()),
        },
        ..berth_mesh::Config::new(server.http)
    }
}

fn port_tls(tls: Option<&LoadedTls>) -> Option<PortTls> {
    tls.map(|tls| tls.port.clone())
}

fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .map_err(|e| port_refused(&e, format_args!("cannot listen on {address}: {e}"), "--api takes another address"))
}

/// The failure to listen, with its usual reason and the way out.
fn port_refused(error: &io::Error, text: impl fmt::Display, remedy: &str) -> Failure {
    let reason = match error.kind() {
        io::ErrorKind::AddrInUse => ": is another server running?",
        io::ErrorKind::PermissionDenied => ": ports below 1024 need root, or the capability CAP_NET_BIND_SERVICE;",
        _ => ";",
    };
    Failure::Failed(format!("{text}{reason} {remedy}"))
}

/// Functions of a controller. Any of them may lead.
fn functions(
    settings: &NodeSettings,
    telemetry: &Telemetry,
    gateway: Option<SocketAddr>,
    registry: &mut Registry,
) -> Result<Option<Arc<Host>>, Failure> {
    // A controller that is no gateway has nothing that functions could be asked through.
    if !settings.roles.controller || (gateway.is_none() && !settings.sources.has_functions()) {
        return Ok(None);
    }
    let choices = FunctionSettings {
        gateway,
        advertised: settings.advertised(),
        in_cluster: settings.cluster.is_some(),
        sources: &settings.sources,
        traces: telemetry.continuation(),
        isolation: isolation_of_functions(settings),
    };
    functions::host(&settings.server, choices, registry).map(Some)
}

/// A node that is alone decides as long as it lives, over the store in its data folder.
fn alone(
    settings: &NodeSettings,
    functions: Option<&Arc<Host>>,
    audit: AuditLog,
    registry: &mut Registry,
) -> Result<(ControllerRole, Handle), Failure> {
    let store = EmbeddedStore::open(&settings.server.data).map_err(|e| Failure::Failed(e.to_string()))?;
    let host = functions.map(|host| Arc::clone(host) as Arc<dyn FunctionHost>);
    let config = Config { policy: settings.server.policy(), audit, functions: host, ..Config::default() };
    let (control, handle) = berth_control::build(config, Arc::new(store), registry);
    let sources = settings.sources.build(&settings.server.data, functions, registry)?;
    let view = LeadershipView::alone(handle.clone());
    let deciding = Some(Deciding::Always { control: Box::new(control), handle: handle.clone(), sources });
    Ok((ControllerRole { view, deciding, election: None }, handle))
}

/// Links to the controller in this process, which first restores what it knew.
fn direct(handle: Handle, me: &WorkerId, worker: Option<&WorkerInfo>) -> Links {
    let worker = worker.cloned().map(|info| {
        let handle = handle.clone();
        let link = async move {
            let (reports, assignments) = patiently(|| handle.attach_worker(info.clone())).await;
            WorkerLink { assignments, reports }
        };
        link.boxed()
    });
    let me = me.clone();
    let gateway = async move {
        let (events, routes) = patiently(|| handle.attach_gateway(me.clone(), None)).await;
        GatewayLink { routes, events }
    };
    Links { gateway: gateway.boxed(), worker, gateway_uplink: None, worker_uplink: None }
}

/// A control plane with much to restore answers late; that it fails is heard from elsewhere.
async fn patiently<T, F>(ask: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, berth_control::handle::Error>>,
{
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(berth_control::handle::Error::Busy { .. }) => tracing::info!(event = "restoring"),
            // The control plane has ended: its own failure says why.
            Err(_) => return std::future::pending().await,
        }
    }
}
