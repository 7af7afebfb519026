//! The control plane of a node on a thread of its own: the control API always, a controller while this node leads.
//!
//! ```text
//! Running ──stop──▶ api ends ──▶ the term ends, its last plan stored ──▶ thread ends
//!    └── the api fails ──▶ ended() tells the failure
//! ```

use std::{net::TcpListener, thread};

use berth_control::{
    Config, Metrics,
    api::{self, Front},
    leadership::Seat,
    seat::{SeatView, Terms},
    store::etcd::EtcdConfig,
};
use tokio::{
    sync::{oneshot, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::election;
use crate::failure::Failure;

/// What a node decides with.
pub(super) struct Deciding {
    pub(super) config: Config,
    pub(super) metrics: Metrics,
    pub(super) store: EtcdConfig,
    pub(super) seat: watch::Receiver<Seat>,
    /// Tells the others on this node who decides.
    pub(super) view: watch::Sender<SeatView>,
}

/// What it is made of.
pub(super) struct Parts {
    pub(super) listener: TcpListener,
    pub(super) front: Front,
    /// `None` where the node is no controller.
    pub(super) deciding: Option<Deciding>,
}

/// A running control plane.
pub(super) struct ControlPlane {
    stop: CancellationToken,
    /// `None` once it has been told.
    outcome: Option<oneshot::Receiver<Result<(), Failure>>>,
}

impl ControlPlane {
    /// Starts the thread.
    pub(super) fn start(parts: Parts) -> Result<Self, Failure> {
        let runtime = crate::up::control_runtime()?;
        let stop = CancellationToken::new();
        let (tell, outcome) = oneshot::channel();
        let stopping = stop.clone();
        let run = move || {
            let done = runtime.block_on(run(parts, stopping));
            runtime.shutdown_timeout(crate::up::BLOCKED);
            // Nobody listens any more when the process is leaving at once.
            let _ = tell.send(done);
        };
        thread::Builder::new().name("berth-control".to_owned()).spawn(run)?;
        Ok(Self { stop, outcome: Some(outcome) })
    }

    /// Resolves when it ends without being told to, with the reason.
    pub(super) async fn ended(&mut self) -> Failure {
        let Some(outcome) = &mut self.outcome else { return std::future::pending().await };
        let ended = outcome.await;
        self.outcome = None;
        match ended {
            Ok(Err(failure)) => failure,
            Ok(Ok(())) => Failure::Failed("the control plane ended without being told to".to_owned()),
            Err(_) => Failure::Failed("the control plane broke, please report it".to_owned()),
        }
    }

    /// Lets it finish.
    pub(super) async fn stop(self) {
        self.stop.cancel();
        let Some(outcome) = self.outcome else { return };
        match outcome.await {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => tracing::warn!(error = %failure, "the control plane stopped badly"),
            Err(_) => tracing::error!("the control plane broke while it stopped"),
        }
    }
}

async fn run(parts: Parts, stop: CancellationToken) -> Result<(), Failure> {
    let Parts { listener, front, deciding } = parts;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut terms = JoinSet::new();
    if let Some(deciding) = deciding {
        terms.spawn(decide(deciding, stop.clone()));
    }
    let served = tokio::select! {
        served = api::serve(listener, front, stop.clone()) => served,
        () = crate::up::give_back() => Ok(()),
    };
    stop.cancel();
    while terms.join_next().await.is_some() {}
    served.map_err(|error| Failure::doing("the control API failed", error))
}

/// Runs a controller whenever this node leads. Until etcd has answered once, nobody here does.
async fn decide(deciding: Deciding, stop: CancellationToken) {
    let Deciding { config, metrics, store, seat, view } = deciding;
    let Some(store) = stop.run_until_cancelled(election::connect(store)).await else { return };
    let (terms, mut views) = Terms::new(config, std::sync::Arc::new(store), metrics, seat);
    let tell = async {
        loop {
            view.send_replace(views.borrow_and_update().clone());
            if views.changed().await.is_err() {
                return;
            }
        }
    };
    tokio::join!(terms.run(stop), tell);
}
