//! `berth node`: one node of a cluster.
//!
//! ```text
//!   thread "gossip"            thread "berth-election"      thread "berth-control"          runtime of the data path
//!   members: who is there ──▶  who leads ──────seat──────▶  terms: a controller while       worker ◀─replicas─▶ gateway ── clients
//!                                                           this node leads; control API      │ uplinks             │
//!                                                                ▲         ▲                  └──────┐              │ hops
//!                                            port for other nodes ┴─────────┴── fleet, relay ◀───────┴──── peers ◀──┘
//! ```
//! Gossip and election have threads of their own: no plan and no request makes them late, which would look like death.
//!
//! ```text
//! Serving ──signal──▶ Leaving: says so, hands over, its models move, clients look elsewhere (`leave`)
//!    │                    └──▶ gateway drains ──▶ worker unloads ──▶ says goodbye ──▶ exit 0
//!    └── a part ended by itself ──▶ the same way out without waiting for others, exit 1
//! ```

mod banner;
mod compose;
mod control_plane;
mod election;
mod leave;
mod peer_port;
pub(crate) mod settings;
mod store;

use std::time::Duration;

use self::{
    compose::System,
    leave::ShutdownMode,
    settings::{NodeArgs, NodeSettings},
};
use crate::{
    data::DataFolder,
    failure::Failure,
    telemetry::Telemetry,
    up::{data_runtime, signals::Signals},
};

/// Starts a node and serves until it is told to stop.
pub(crate) fn run(args: NodeArgs) -> Result<(), Failure> {
    start(NodeSettings::new(args, settings::certified)?, Hooks::default())
}

/// Callbacks at moments of a node's life.
#[derive(Default)]
pub(crate) struct Hooks {
    /// Logs are written from now on.
    pub(crate) logging: Option<Box<dyn FnOnce()>>,
    /// The node's parts are running.
    pub(crate) serving: Option<Box<dyn FnOnce(berth_mesh::Handle)>>,
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
    let done = runtime.block_on(async {
        let mut signals = Signals::listen()?;
        let system = tokio::select! {
            system = compose::compose(&settings, &telemetry) => system?,
            // Nobody was told of this node yet.
            _ = signals.next() => return Ok(()),
        };
        system.banner.show(&settings);
        if let Some(serving) = hooks.serving {
            serving(system.gateway.clone());
        }
        serve(system, &mut signals, settings.server.drain_timeout).await
    });
    telemetry.stop();
    // What a second signal left behind ends with the process.
    runtime.shutdown_background();
    done
}

async fn serve(mut system: System, signals: &mut Signals, patience: Duration) -> Result<(), Failure> {
    let why = tokio::select! {
        signal = signals.next() => {
            tracing::info!(event = "stopping", signal, "shutting down: moving models, finishing requests in flight");
            Ok(())
        }
        failure = system.ended() => Err(failure),
    };
    let haste = match &why {
        Ok(()) => ShutdownMode::Orderly { patience },
        Err(failure) => {
            tracing::error!(event = "part_ended", error = %failure, "finishing the requests in flight");
            ShutdownMode::AtOnce
        }
    };
    tokio::select! {
        () = leave::leave(system, haste) => why,
        signal = signals.next() => {
            tracing::warn!(event = "stopped", signal, "a second signal: leaving at once");
            Err(Failure::Failed("stopped before requests in flight were finished".to_owned()))
        }
    }
}
