//! The tasks of a node's data path, each under its own name.

use berth_control::uplink::{GatewayUplink, WorkerUplink};
use berth_mesh::{DrainReport, Gateway, GatewayLink};
use berth_peer::pki::{OwnRevocation, Revocation};
use berth_worker::{Stopped, Worker, WorkerLink};
use futures::future::BoxFuture;
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::cluster::PeerTasks;
use crate::failure::Failure;

/// Links of the data path to the controller: there at once over uplinks, as soon as it has restored in the same process.
pub(super) struct Links {
    pub(super) gateway: BoxFuture<'static, GatewayLink>,
    /// `None`: the node is no worker.
    pub(super) worker: Option<BoxFuture<'static, WorkerLink>>,
    /// The stream that feeds the gateway's link; `None` in the same process.
    pub(super) gateway_uplink: Option<GatewayUplink>,
    /// The stream that feeds the worker's link; `None` in the same process.
    pub(super) worker_uplink: Option<WorkerUplink>,
}

/// Running tasks of the node.
pub(super) struct Running {
    /// `None` once it has ended.
    gateway: Option<JoinHandle<std::io::Result<DrainReport>>>,
    gateway_stop: CancellationToken,
    /// `None` once it has ended, or where there is none.
    worker: Option<JoinHandle<Stopped>>,
    worker_stop: CancellationToken,
    leaving: Option<CancellationToken>,
    /// The port for other nodes, gossip, uplinks: what ends last.
    ties: JoinSet<Result<(), Failure>>,
    ties_stop: CancellationToken,
}

impl Running {
    /// Starts all of it. `peers` are the tasks that tie this node to others.
    pub(super) fn start(gateway: Gateway, worker: Option<Worker>, links: Links, peers: Option<PeerTasks>) -> Self {
        let (gateway_stop, worker_stop, ties_stop) =
            (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
        let mut ties = JoinSet::new();
        if let Some(PeerTasks { listener, port, gossip, renewal, copies }) = peers {
            let (stop, identity) = (ties_stop.clone(), renewal.peers.identity().clone());
            ties.spawn(async move {
                match stop.run_until_cancelled(identity.revoked()).await {
                    Some(revocation) => Err(revoked(&revocation)),
                    None => Ok(()),
                }
            });
            let stop = ties_stop.clone();
            ties.spawn(async move {
                stop.run_until_cancelled(renewal.run()).await;
                Ok(())
            });
            if let Some(copies) = copies {
                let stop = ties_stop.clone();
                ties.spawn(async move {
                    stop.run_until_cancelled(copies.run()).await;
                    Ok(())
                });
            }
            let stop = ties_stop.clone();
            ties.spawn(async move {
                let served = listener.run(port, stop).await;
                served.map_err(|error| Failure::doing("the port for other nodes failed", error))
            });
            let stop = ties_stop.clone();
            ties.spawn(async move { gossip.run(stop).await.map_err(|error| Failure::doing("gossip failed", error)) });
        }
        let Links { gateway: gateway_link, worker: worker_link, gateway_uplink, worker_uplink } = links;
        if let Some(uplink) = gateway_uplink {
            let stop = ties_stop.clone();
            ties.spawn(async move {
                uplink.run(stop).await;
                Ok(())
            });
        }
        if let Some(uplink) = worker_uplink {
            let stop = ties_stop.clone();
            ties.spawn(async move {
                uplink.run(stop).await;
                Ok(())
            });
        }
        let stop = gateway_stop.clone();
        let gateway = spawn(async move {
            match stop.run_until_cancelled(gateway_link).await {
                Some(link) => gateway.run(link, stop).await,
                None => Ok(DrainReport::default()),
            }
        });
        let leaving = worker.as_ref().map(Worker::leaving);
        let stop = worker_stop.clone();
        let worker = worker.zip(worker_link).map(|(worker, link)| {
            spawn(async move {
                match stop.run_until_cancelled(link).await {
                    Some(link) => worker.run(link, stop).await,
                    None => Stopped::default(),
                }
            })
        });
        Self { gateway: Some(gateway), gateway_stop, worker, worker_stop, leaving, ties, ties_stop }
    }

    /// Resolves when a part ends without being told to, with the reason.
    pub(super) async fn ended(&mut self) -> Failure {
        tokio::select! {
            ended = end(&mut self.gateway) => gateway_ended(ended),
            ended = end(&mut self.worker) => worker_ended(ended),
            Some(ended) = self.ties.join_next() => match ended {
                Ok(Err(failure)) => failure,
                Ok(Ok(())) => Failure::Failed("a connection task ended unexpectedly".to_owned()),
                Err(error) => Failure::doing("a connection task failed, please report it", error),
            },
        }
    }

    /// The gateway says that it is not ready, and drains after its lame-duck time.
    pub(super) fn stop_gateway(&self) {
        self.gateway_stop.cancel();
    }

    /// The worker says that it will leave.
    pub(super) fn announce(&self) {
        if let Some(leaving) = &self.leaving {
            leaving.cancel();
        }
    }

    /// Waits until the gateway has drained.
    pub(super) async fn gateway_drained(&mut self) -> Option<DrainReport> {
        self.gateway.take()?.await.ok().and_then(Result::ok)
    }

    /// Unloads what is left.
    pub(super) async fn stop_worker(&mut self) -> Stopped {
        self.worker_stop.cancel();
        match self.worker.take() {
            Some(worker) => worker.await.unwrap_or_default(),
            None => Stopped::default(),
        }
    }

    /// Stops the tasks.
    pub(super) async fn stop(mut self) {
        self.ties_stop.cancel();
        while self.ties.join_next().await.is_some() {}
    }
}

/// The reason why a node ends whose certificate is revoked: no other node talks to it, and one that leads would keep the others from
/// choosing another.
fn revoked(revocation: &OwnRevocation) -> Failure {
    let by = match revocation {
        OwnRevocation::Known(Revocation { id, by, reason, .. }) if reason.is_empty() => {
            format!("{by} (revocation {id})")
        }
        OwnRevocation::Known(Revocation { id, by, reason, .. }) => format!("{by} (revocation {id}): {reason}"),
        OwnRevocation::Told(controller) => {
            format!("somebody: {controller} refuses it, and `berth pki revocations` there says by whom and why")
        }
    };
    Failure::Failed(format!("the certificate of this node was revoked by {by}. Give it a new one to start it again"))
}

/// Starts a task of the process itself, which is awaited under its own name.
pub(crate) fn spawn<T: Send + 'static>(part: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    #[expect(clippy::disallowed_methods, reason = "the parts are awaited under their own names")]
    tokio::spawn(part)
}

/// Waits for the end of a part and forgets it: it is awaited once. One that has ended already does not end again.
async fn end<T>(part: &mut Option<JoinHandle<T>>) -> Result<T, JoinError> {
    let Some(running) = part else { return std::future::pending().await };
    let ended = running.await;
    *part = None;
    ended
}

fn gateway_ended(ended: Result<std::io::Result<DrainReport>, JoinError>) -> Failure {
    match ended {
        Ok(Ok(_)) => Failure::Failed("the gateway ended unexpectedly".to_owned()),
        Ok(Err(error)) => Failure::doing("the gateway failed", error),
        Err(error) => Failure::doing("the gateway failed, please report it", error),
    }
}

fn worker_ended(ended: Result<Stopped, JoinError>) -> Failure {
    match ended {
        Ok(_) => Failure::Failed("the worker ended unexpectedly".to_owned()),
        Err(error) => Failure::doing("the worker failed, please report it", error),
    }
}
