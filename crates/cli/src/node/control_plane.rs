//! The control plane of a node: the control API always, a controller and the sources while this node leads.
//!
//! ```text
//! Running ──stop──▶ api and sources end ──▶ the controller ends, its last plan stored
//!    └── one of them fails ──▶ the same, with the failure
//! ```

use std::{net::TcpListener, sync::Arc, time::Duration};

use berth_access::Follower;
use berth_control::{
    Config, Control, Handle, Metrics,
    api::{self, ApiRouter},
    leadership::{LeaderLoop, Leadership, LeadershipView},
    source::{self, Setup},
    store::etcd::EtcdConfig,
};
use berth_functions::source::Host;
use berth_peer::port::PortTls;
use berth_spec::Epoch;
use tokio::{sync::watch, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use super::election;
use crate::{
    control_thread::{ControlThread, give_back},
    failure::Failure,
};

/// The pause after the sources ended in the midst of a term: the store did not answer before any of them began.
const SOURCES_AGAIN: Duration = Duration::from_secs(5);

/// Limit for the API and the sources at shutdown, so that a large apply is not cut. The API cuts its own clients
/// earlier.
const SERVED: Duration = Duration::from_secs(10);

/// The controller of a node.
pub(super) enum Deciding {
    /// A node that is alone decides as long as it lives.
    Always { control: Box<Control>, handle: Handle, sources: Setup },
    /// A node of a cluster decides while it leads.
    Terms(Box<ControllerParts>),
}

/// Parts of a controller that is built for each term.
pub(super) struct ControllerParts {
    pub(super) config: Config,
    pub(super) metrics: Metrics,
    pub(super) store: EtcdConfig,
    pub(super) leadership: watch::Receiver<Leadership>,
    /// Tells the others on this node who decides.
    pub(super) view: watch::Sender<LeadershipView>,
    /// The sources of deployments that the leader follows.
    pub(super) sources: Setup,
    /// Functions that run here while this node leads.
    pub(super) functions: Option<Arc<Host>>,
}

/// Files of both ports for clients, which are followed here.
pub(super) struct Followed {
    pub(super) tls: Option<PortTls>,
    /// `None`: there is no access file.
    pub(super) rules: Option<Follower>,
}

/// Parts of the control plane.
pub(super) struct Parts {
    pub(super) listener: TcpListener,
    pub(super) followed: Followed,
    pub(super) front: ApiRouter,
    /// `None` where the node is no controller.
    pub(super) deciding: Option<Deciding>,
}

/// Starts the thread.
pub(super) fn start(parts: Parts) -> Result<ControlThread, Failure> {
    ControlThread::start(|stop| run(parts, stop))
}

async fn run(parts: Parts, stop: CancellationToken) -> Result<(), Failure> {
    let Parts { listener, followed: Followed { tls, rules }, front, deciding } = parts;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let (mut served, mut controllers, decided) = (JoinSet::new(), JoinSet::new(), CancellationToken::new());
    if let Some(tls) = tls.clone() {
        let stop = stop.clone();
        served.spawn(async move {
            stop.run_until_cancelled(tls.follow()).await;
            Ok(())
        });
    }
    if let Some(rules) = rules {
        let stop = stop.clone();
        served.spawn(async move {
            stop.run_until_cancelled(rules.run()).await;
            Ok(())
        });
    }
    served.spawn({
        let stop = stop.clone();
        async move {
            let served = api::serve(listener, tls, front, stop).await;
            served.map_err(|error| Failure::doing("the control API failed", error))
        }
    });
    match deciding {
        Some(Deciding::Always { control, handle, sources }) => {
            let stop = stop.clone();
            served.spawn(async move {
                let ran = source::run(sources, handle, Epoch(0), stop).await;
                ran.map_err(|error| Failure::doing("the sources of deployments failed", error))
            });
            let over = decided.clone();
            controllers.spawn(async move {
                let ended = control.run(over).await;
                ended.map(drop).map_err(|error| Failure::doing("the control plane failed", error))
            });
        }
        Some(Deciding::Terms(parts)) => {
            // The term of a node that leaves ends with its API: another node goes on.
            let stop = stop.clone();
            controllers.spawn(async move {
                // Boxed: the future of a leader is large.
                Box::pin(decide(*parts, stop)).await;
                Ok(())
            });
        }
        None => {}
    }
    let failed = tokio::select! {
        () = give_back() => Ok(()),
        Some(ended) = controllers.join_next(), if !stop.is_cancelled() => ended_early(ended),
        failed = first_failure(&mut served), if !stop.is_cancelled() => failed,
        () = stop.cancelled() => Ok(()),
    };
    stop.cancel();
    let closed = timeout(SERVED, async { while served.join_next().await.is_some() {} }).await;
    if closed.is_err() {
        tracing::warn!(
            event = "control_parts_cut",
            left = served.len(),
            "parts of the control plane did not stop in time and were cut"
        );
        served.shutdown().await;
    }
    decided.cancel();
    while controllers.join_next().await.is_some() {}
    failed
}

/// The failure of a controller that was not told to end.
fn ended_early(ended: Result<Result<(), Failure>, tokio::task::JoinError>) -> Result<(), Failure> {
    match ended {
        Ok(Err(failure)) => Err(failure),
        _ => Err(Failure::Failed("the control plane ended by itself, please report it".to_owned())),
    }
}

/// Waits until all have ended or one failed.
async fn first_failure(tasks: &mut JoinSet<Result<(), Failure>>) -> Result<(), Failure> {
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|e| Failure::doing("a part of the control plane failed, please report it", e))??;
    }
    Ok(())
}

/// Runs a controller whenever this node leads. Until etcd has answered once, nobody here does.
async fn decide(deciding: ControllerParts, stop: CancellationToken) {
    let ControllerParts { config, metrics, store, leadership, view, sources, functions } = deciding;
    // Who stands for election on this node asks the same etcd, and tells.
    let connected = election::connect(store, |error| tracing::debug!(event = "store_awaited", error));
    let Some(store) = stop.run_until_cancelled(connected).await else { return };
    let (terms, mut views) = LeaderLoop::new(config, Arc::new(store), metrics, leadership);
    let following = follow(sources, views.clone(), stop.clone());
    let tell = async {
        loop {
            let current = views.borrow_and_update().clone();
            if let (Some(functions), LeadershipView::Following { leader: Some(_) }) = (&functions, &current) {
                functions.stand_aside();
            }
            view.send_replace(current);
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
