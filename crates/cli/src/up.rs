//! `berth up`: everything of one machine in one process.
//!
//! ```text
//!   thread "berth-control"                         runtime of the data path, a thread per core
//!   store ◀─▶ control ◀── api, directory           worker ◀──local replicas──▶ gateway
//!                │ assignments, reports ───────────▶│                             │
//!                └ routes, demand ────────────────────────────────────────────────┘
//! ```
//! The control plane has a thread of its own, so that no plan, however large, delays a request.
//!
//! ```text
//! Starting ──▶ Serving ──signal──▶ gateway drains ──▶ control stops ──▶ worker unloads ──▶ exit 0
//!                 │                    └────────── a second signal: exit at once ─────────┘
//!                 └── a part ended by itself ──▶ the same way out, exit 1
//! ```

mod banner;
mod compose;
mod control_plane;
pub(crate) mod seams;
pub(crate) mod settings;
pub(crate) mod signals;
mod trial;

use std::net::SocketAddr;

use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

use self::{compose::System, control_plane::ControlPlane, settings::Settings, signals::Signals};
pub(crate) use self::{compose::data_runtime, settings::UpArgs};
use crate::{data::DataFolder, failure::Failure, telemetry::Telemetry};

/// Starts a server and serves until it is told to stop.
pub(crate) fn run(args: UpArgs) -> Result<(), Failure> {
    let settings = Settings::new(args)?;
    start(&settings, |system| {
        banner::show(&settings, system);
        Ok(())
    })
}

/// Checks what one setting alone cannot know.
pub(crate) fn settings(args: UpArgs) -> Result<Settings, Failure> {
    Settings::new(args)
}

/// Addresses of a server that has started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addresses {
    pub(crate) http: SocketAddr,
    pub(crate) api: SocketAddr,
}

/// Starts a server that tells people of itself in its own way. `prepare` runs once the data folder is this process's.
pub(crate) fn run_with<T, F>(
    settings: &Settings,
    prepare: impl FnOnce() -> Result<T, Failure>,
    announce: impl FnOnce(Addresses, T) -> F,
) -> Result<(), Failure>
where
    F: Future<Output = ()> + Send + 'static,
{
    let _data = DataFolder::take(&settings.server.data)?;
    let prepared = prepare()?;
    serve_with(settings, |system| {
        // Ends with the runtime.
        let _announcing = spawn(announce(Addresses { http: system.http, api: system.api }, prepared));
        Ok(())
    })
}

fn start(settings: &Settings, show: impl FnOnce(&System) -> Result<(), Failure>) -> Result<(), Failure> {
    let _data = DataFolder::take(&settings.server.data)?;
    serve_with(settings, show)
}

fn serve_with(settings: &Settings, show: impl FnOnce(&System) -> Result<(), Failure>) -> Result<(), Failure> {
    let runtime = compose::data_runtime(settings.server.threads)?;
    let telemetry = {
        // The exporter of traces lives on the runtime of the data path.
        let _entered = runtime.enter();
        Telemetry::start(&settings.server.telemetry)?
    };
    let done = runtime.block_on(async {
        let mut signals = Signals::listen()?;
        let system = compose::compose(settings, &telemetry)?;
        show(&system)?;
        serve(system, &mut signals).await
    });
    telemetry.stop();
    // What a second signal left behind ends with the process.
    runtime.shutdown_background();
    done
}

/// The parts of the data path, running.
struct Running {
    /// `None` once it has ended.
    gateway: Option<JoinHandle<std::io::Result<berth_mesh::Drained>>>,
    gateway_stop: CancellationToken,
    /// `None` once it has ended.
    worker: Option<JoinHandle<berth_worker::Stopped>>,
    worker_stop: CancellationToken,
}

async fn serve(system: System, signals: &mut Signals) -> Result<(), Failure> {
    let System { worker, gateway, mut control, .. } = system;
    let (worker_link, gateway_link) = tokio::select! {
        links = compose::attach(control.handle.clone(), &worker) => links?,
        failure = control.ended() => return Err(failure),
        _ = signals.next() => return Ok(()),
    };
    let (gateway_stop, worker_stop) = (CancellationToken::new(), CancellationToken::new());
    let mut running = Running {
        gateway: Some(spawn(gateway.run(gateway_link, gateway_stop.clone()))),
        gateway_stop,
        worker: Some(spawn(worker.run(worker_link, worker_stop.clone()))),
        worker_stop,
    };
    let why = tokio::select! {
        signal = signals.next() => {
            tracing::info!(event = "stopping", signal, "shutting down: refusing new requests, finishing those in flight");
            Ok(())
        }
        failure = control.ended() => Err(failure),
        ended = end(&mut running.gateway) => Err(gateway_ended(ended)),
        ended = end(&mut running.worker) => Err(worker_ended(ended)),
    };
    if let Err(failure) = &why {
        tracing::error!(event = "part_ended", error = %failure, "finishing the requests in flight");
    }
    tokio::select! {
        () = stop(running, control) => why,
        signal = signals.next() => {
            tracing::warn!(event = "stopped", signal, "a second signal: leaving at once");
            Err(Failure::Failed("stopped before requests in flight were finished".to_owned()))
        }
    }
}

/// Tasks of the process itself: `serve` awaits each of them.
pub(crate) fn spawn<T: Send + 'static>(part: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    #[expect(clippy::disallowed_methods, reason = "the two parts are awaited by `serve` under their own names")]
    tokio::spawn(part)
}

/// Waits for the end of a part and forgets it: it is awaited once. One that has ended already does not end again.
pub(crate) async fn end<T>(part: &mut Option<JoinHandle<T>>) -> Result<T, JoinError> {
    let Some(running) = part else { return std::future::pending().await };
    let ended = running.await;
    *part = None;
    ended
}

/// The way out: requests first, then what decides, then what answered them.
async fn stop(running: Running, control: ControlPlane) {
    running.gateway_stop.cancel();
    let drained = match running.gateway {
        Some(gateway) => gateway.await.ok().and_then(Result::ok),
        None => None,
    };
    // Before the worker: one that leaves an awake controller would be taken for lost.
    control.stop().await;
    running.worker_stop.cancel();
    let stopped = match running.worker {
        Some(worker) => worker.await.unwrap_or_default(),
        None => berth_worker::Stopped::default(),
    };
    tracing::info!(
        event = "stopped",
        finished = drained.map(|drained| drained.finished),
        cut = drained.map(|drained| drained.cut),
        unloaded = stopped.drained,
        left = stopped.left,
        "drained and stopped"
    );
}

pub(crate) fn gateway_ended(ended: Result<std::io::Result<berth_mesh::Drained>, JoinError>) -> Failure {
    match ended {
        Ok(Ok(_)) => Failure::Failed("the gateway ended unexpectedly".to_owned()),
        Ok(Err(error)) => Failure::doing("the gateway failed", error),
        Err(error) => Failure::doing("the gateway failed, please report it", error),
    }
}

pub(crate) fn worker_ended(ended: Result<berth_worker::Stopped, JoinError>) -> Failure {
    match ended {
        Ok(_) => Failure::Failed("the worker ended unexpectedly".to_owned()),
        Err(error) => Failure::doing("the worker failed, please report it", error),
    }
}
