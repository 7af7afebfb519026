//! Puts the parts of one machine together. What can fail because of what a user said fails here, before anything runs.

use std::{
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex},
};

use berth_control::{Handle, api::ApiRouter, store::embedded::EmbeddedStore};
use berth_mesh::{Gateway, GatewayLink, Limits, local::LocalReplicas};
use berth_peer::EventLoops;
use berth_worker::{Worker, WorkerLink};
use prometheus_client::registry::Registry;
use tokio::runtime::Runtime;

use super::{
    control_plane::{ControlPlane, Parts},
    seams,
    settings::Settings,
};
use crate::{descriptors, failure::Failure, management::Management, settings::functions, telemetry::Telemetry};

/// Everything of one machine: the control plane runs already, the data path does not yet.
pub(super) struct System {
    pub(super) worker: Worker,
    pub(super) gateway: Gateway,
    pub(super) control: ControlPlane,
    pub(super) http: SocketAddr,
    pub(super) api: SocketAddr,
}

/// The runtime of the data path.
pub(crate) fn data_runtime(threads: Option<usize>) -> Result<Runtime, Failure> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = threads {
        runtime.worker_threads(threads);
    }
    let runtime = runtime.thread_name("berth-data").enable_all().build();
    runtime.map_err(|e| Failure::doing("cannot start the runtime", e))
}

/// Opens, binds and builds everything, and starts the control plane.
pub(super) fn compose(settings: &Settings, telemetry: &Telemetry) -> Result<System, Failure> {
    let store = EmbeddedStore::open(&settings.server.data).map_err(|e| Failure::Failed(e.to_string()))?;
    let mut registry = Registry::default();
    let config = berth_control::Config { policy: settings.server.policy(), ..berth_control::Config::default() };
    let (control, handle) = berth_control::build(config, Arc::new(store), &mut registry);
    let local = Arc::new(LocalReplicas::default());
    let worker = berth_worker::build(worker_config(settings), Arc::clone(&local), &mut registry)
        .map_err(|e| Failure::doing("the worker cannot start", e))?;
    let loops = EventLoops::start(settings.server.threads)
        .map_err(|e| Failure::doing("cannot start the threads that serve requests", e))?;
    let management = Management::default();
    let beside = Some(management.hook());
    let config = berth_mesh::Config { loops: Some(loops), beside, ..gateway_config(settings, telemetry) };
    let hook = Arc::clone(&config.functions);
    let (gateway, look) = berth_mesh::build(config, settings.server.name.clone(), local, None, &mut registry)
        .map_err(|e| Failure::Failed(format!("{e}: is another server running? --http takes another address")))?;
    let listener = TcpListener::bind(settings.server.api)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .map_err(|e| {
            Failure::Failed(format!("cannot listen on {}: {e}; --api takes another address", settings.server.api))
        })?;
    let api = listener.local_addr()?;
    let http = look.local_addr().unwrap_or(settings.server.http);
    let functions = settings
        .sources
        .has_functions()
        .then(|| functions::host(&settings.server, Some(http), settings.sources.functions_are_local(), &mut registry));
    let functions = functions.transpose()?;
    if let Some(host) = &functions {
        // Nobody else sets it.
        let _ = hook.set(functions::hook(host));
    }
    let sources = settings.sources.build(&settings.server.data, functions.as_ref(), &mut registry)?;
    let seams = seams::alone(Arc::new(Mutex::new(registry)), look, settings.server.name.clone(), functions.as_ref())?;
    let api_router = ApiRouter::alone(handle.clone(), seams);
    management.connect(&api_router);
    let control = ControlPlane::start(Parts { control, handle, listener, api: api_router, sources })?;
    Ok(System { worker, gateway, control, http, api })
}

fn worker_config(settings: &Settings) -> berth_worker::Config {
    berth_worker::Config {
        labels: settings.server.labels.clone(),
        memory: settings.server.memory,
        cache: settings.server.cache,
        parallel_loads: settings.server.parallel_loads,
        runtimes: settings.server.runtimes.clone(),
        onnx_library: settings.server.onnx_library.clone(),
        nvml_library: settings.server.nvml_library.clone(),
        cards: settings.server.cards.clone(),
        credentials: settings.server.credentials.clone(),
        ..berth_worker::Config::new(settings.server.name.clone(), &settings.server.data)
    }
}

fn gateway_config(settings: &Settings, telemetry: &Telemetry) -> berth_mesh::Config {
    let connections = descriptors::raise();
    let limits = Limits {
        connections,
        connections_per_address: connections / 2,
        body: settings.server.max_body,
        memory: settings.server.request_memory,
        drain: settings.server.drain_timeout,
        ..Limits::default()
    };
    berth_mesh::Config { limits, spans: telemetry.request_spans(), ..berth_mesh::Config::new(settings.server.http) }
}

/// Connects the data path to the control plane, which first restores what it knew.
pub(super) async fn attach(handle: Handle, worker: &Worker) -> Result<(WorkerLink, GatewayLink), Failure> {
    let (events, routes) = patiently(|| handle.attach_gateway(worker.info().id.clone(), None)).await?;
    let (reports, assignments) = patiently(|| handle.attach_worker(worker.info().clone())).await?;
    Ok((WorkerLink { assignments, reports }, GatewayLink { routes, events }))
}

/// A control plane with much to restore answers late; that it fails is heard from elsewhere.
async fn patiently<T, F>(ask: impl Fn() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, berth_control::handle::Error>>,
{
    loop {
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(berth_control::handle::Error::Busy { .. }) => tracing::info!(event = "restoring"),
            // The control plane has ended: its own failure says why.
            Err(_) => std::future::pending().await,
        }
    }
}
