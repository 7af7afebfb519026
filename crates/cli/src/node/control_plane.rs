//! The control plane of a node: the control API always, a controller while this node leads.
//!
//! ```text
//! Running ──stop──▶ api ends ──▶ the term ends, its last plan stored
//!    └── the api fails ──▶ the same, with the failure
//! ```

use std::{net::TcpListener, time::Duration};

use berth_control::{
    Config, Metrics,
    api::{self, ApiRouter},
    leadership::{LeaderLoop, Leadership, LeadershipView},
    source::{self, Setup},
    store::etcd::EtcdConfig,
};
use berth_spec::Epoch;
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::election;
use crate::{
    control_thread::{ControlThread, give_back},
    failure::Failure,
};

/// The pause after the sources ended in the midst of a term: the store did not answer before any of them began.
const SOURCES_AGAIN: Duration = Duration::from_secs(5);

/// Parts of a controller.
pub(super) struct ControllerParts {
    pub(super) config: Config,
    pub(super) metrics: Metrics,
    pub(super) store: EtcdConfig,
    pub(super) leadership: watch::Receiver<Leadership>,
    /// Tells the others on this node who decides.
    pub(super) view: watch::Sender<LeadershipView>,
    /// The sources of deployments that the leader follows.
    pub(super) sources: Setup,
}

/// Parts of the control plane.
pub(super) struct Parts {
    pub(super) listener: TcpListener,
    pub(super) front: ApiRouter,
    /// `None` where the node is no controller.
    pub(super) deciding: Option<ControllerParts>,
}

/// Starts the thread.
pub(super) fn start(parts: Parts) -> Result<ControlThread, Failure> {
    ControlThread::start(|stop| run(parts, stop))
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
        () = give_back() => Ok(()),
    };
    stop.cancel();
    while terms.join_next().await.is_some() {}
    served.map_err(|error| Failure::doing("the control API failed", error))
}

/// Runs a controller whenever this node leads. Until etcd has answered once, nobody here does.
async fn decide(deciding: ControllerParts, stop: CancellationToken) {
    let ControllerParts { config, metrics, store, leadership, view, sources } = deciding;
    // Who stands for election on this node asks the same etcd, and tells.
    let connected = election::connect(store, |error| tracing::debug!(event = "store_awaited", error));
    let Some(store) = stop.run_until_cancelled(connected).await else { return };
    let (terms, mut views) = LeaderLoop::new(config, std::sync::Arc::new(store), metrics, leadership);
    let following = follow(sources, views.clone(), stop.clone());
    let tell = async {
        loop {
            view.send_replace(views.borrow_and_update().clone());
            if views.changed().await.is_err() {
                return;
            }
        }
    };
    tokio::join!(terms.run(stop), tell, following);
}

/// Follows the sources whenever this node leads, for the term. They write nothing more once the term is over: to the store
/// because of the term's fence, to a registry because whoever leads next has written there in a later term.
async fn follow(sources: Setup, mut views: watch::Receiver<LeadershipView>, stop: CancellationToken) {
    loop {
        let view = views.borrow_and_update().clone();
        if let LeadershipView::Leading { handle, epoch } = view {
            let over = stop.child_token();
            let mut following = Box::pin(source::run(sources.clone(), handle, epoch, over.clone()));
            let ended = tokio::select! {
                ended = &mut following => Some(ended),
                () = until_not(&mut views, epoch) => None,
            };
            over.cancel();
            let ended = match ended {
                Some(ended) => ended,
                None => following.await,
            };
            if let Err(error) = ended
                && !stop.is_cancelled()
            {
                // Of a term that is over; or the store did not answer before a source began.
                tracing::info!(event = "sources_ended", %error, %epoch, "sources failed; restarting them if this node still leads");
                tokio::select! {
                    () = tokio::time::sleep(SOURCES_AGAIN) => continue,
                    changed = views.changed() => if changed.is_err() { return } else { continue },
                    () = stop.cancelled() => return,
                }
            }
            // It may lead again already: that has been seen, and would not be told once more.
            if views.borrow().leads().is_some_and(|later| later != epoch) {
                continue;
            }
        }
        tokio::select! {
            changed = views.changed() => if changed.is_err() { return },
            () = stop.cancelled() => return,
        }
    }
}

/// Waits until this node does not lead in this term.
async fn until_not(views: &mut watch::Receiver<LeadershipView>, epoch: Epoch) {
    let leads = |view: &LeadershipView| view.leads() == Some(epoch);
    // Nobody tells any more: the end.
    let _gone = views.wait_for(|view| !leads(view)).await.is_err();
}
