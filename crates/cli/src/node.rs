//! `berth node`: one node of a cluster. `berth up` is the same without a cluster.
//!
//! ```text
//!   thread "gossip"*           thread "berth-election"*     thread "berth-control"          runtime of the data path
//!   members: who is there ──▶  who leads ───leadership───▶  a controller while this node    worker ◀─replicas─▶ gateway ── clients
//!                                                           leads; control API; sources       │ links or uplinks*   │
//!                                                                ▲         ▲                  └──────┐              │ hops*
//!                                           port for other nodes*┴─────────┴── fleet, relay ◀───────┴──── peers ◀──┘
//!   * only in a cluster (`cluster`)
//! ```
//! The control plane has a thread of its own, so that no plan, however large, delays a request. So have gossip and election:
//! no plan and no request makes them late, which would look like death.
//!
//! ```text
//! Serving ──signal──▶ Leaving: says so, hands over, its models move, clients look elsewhere (`leave`)
//!    │                    └──▶ gateway drains ──▶ worker unloads ──▶ says goodbye ──▶ exit 0
//!    │                                            └── a second signal at any time: exit at once
//!    └── a part ended by itself ──▶ the same way out without waiting for others, exit 1
//! ```

mod api_dependencies;
mod banner;
mod cluster;
mod compose;
mod control_plane;
mod election;
mod function_artifacts;
mod functions;
mod issuing;
mod joining;
mod leave;
mod peer_port;
mod renewal;
pub(crate) mod running;
pub(crate) mod settings;
mod signals;
mod store;
mod trial;

use std::{net::SocketAddr, time::Duration};

use berth_control::api::ApiRouter;
use tokio::{runtime::Runtime, sync::mpsc};

use self::{
    compose::System,
    leave::ShutdownMode,
    settings::{NodeArgs, NodeSettings},
    signals::Signals,
};
use crate::{data::DataFolder, failure::Failure, telemetry::Telemetry};

/// Limit for the last records of the audit log at the end: a disk that takes nothing must not keep the process.
const WRITTEN_WITHIN: Duration = Duration::from_secs(5);

/// Starts a node and serves until it is told to stop.
pub(crate) fn run(mut args: NodeArgs) -> Result<(), Failure> {
    joining::certify(&mut args)?;
    start(NodeSettings::new(args, settings::certified)?, Hooks::default())
}

/// A node whose parts have started.
#[derive(Clone)]
pub(crate) struct Started {
    pub(crate) gateway: berth_mesh::Handle,
    /// Address for inference; `None`: it answers no clients.
    pub(crate) http: Option<SocketAddr>,
    /// Address of the control API.
    pub(crate) api: SocketAddr,
    /// Scheme of both addresses.
    pub(crate) scheme: &'static str,
    /// The control API, without a connection.
    pub(crate) control: ApiRouter,
    /// Ends the node with this failure; one is enough.
    pub(crate) abort: mpsc::Sender<Failure>,
}

/// Called when the parts of a node have started, on the runtime of the data path.
pub(crate) type ServingHook = Box<dyn FnOnce(Started)>;

/// Callbacks at moments of a node's life.
#[derive(Default)]
pub(crate) struct Hooks {
    /// Logs are written from now on.
    pub(crate) logging: Option<Box<dyn FnOnce()>>,
    /// The data folder is this process's, and nothing has been read from it.
    pub(crate) prepare: Option<Box<dyn FnOnce() -> Result<ServingHook, Failure>>>,
    /// Nothing is printed at the start.
    pub(crate) quiet: bool,
}

/// Starts a node with these settings and serves until it is told to stop.
pub(crate) fn start(settings: NodeSettings, hooks: Hooks) -> Result<(), Failure> {
    let runtime = data_runtime(settings.server.threads)?;
    let telemetry = {
        // The exporter of traces lives on the runtime of the data path.
        let _entered = runtime.enter();
        Telemetry::start(&settings.server.telemetry)?
    };
    if let Some(logging) = hooks.logging {
        logging();
    }
    let _data = DataFolder::take(&settings.server.data)?;
    let serving = hooks.prepare.map(|prepare| prepare()).transpose()?;
    let done = runtime.block_on(async {
        let mut signals = Signals::listen()?;
        let system = tokio::select! {
            system = compose::compose(&settings, &telemetry) => system?,
            // Nobody was told of this node yet.
            _ = signals.next() => return Ok(()),
        };
        system.banner.show(&settings, hooks.quiet);
        if let Some(serving) = serving {
            serving(system.started.clone());
        }
        let audit = system.audit.clone();
        let done = serve(system, &mut signals, settings.server.drain_timeout).await;
        audit.flush(WRITTEN_WITHIN);
        done
    });
    telemetry.stop();
    // What a second signal left behind ends with the process.
    runtime.shutdown_background();
    done
}

/// The runtime of the data path.
fn data_runtime(threads: Option<usize>) -> Result<Runtime, Failure> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = threads {
        runtime.worker_threads(threads);
    }
    let runtime = runtime.thread_name("berth-data").enable_all().build();
    runtime.map_err(|e| Failure::doing("cannot start the runtime", e))
}

async fn serve(mut system: System, signals: &mut Signals, patience: Duration) -> Result<(), Failure> {
    let why = tokio::select! {
        signal = signals.next() => {
            tracing::info!(event = "stopping", signal, "{}", system.farewell());
            Ok(())
        }
        failure = system.ended() => Err(failure),
    };
    let mode = match &why {
        Ok(()) => ShutdownMode::Orderly { patience },
        Err(failure) => {
            tracing::error!(event = "part_ended", error = %failure, "finishing the requests in flight");
            ShutdownMode::AtOnce
        }
    };
    tokio::select! {
        () = leave::leave(system, mode) => why,
        signal = signals.next() => {
            tracing::warn!(event = "stopped", signal, "a second signal: leaving at once");
            Err(Failure::Failed("stopped before requests in flight were finished".to_owned()))
        }
    }
}
