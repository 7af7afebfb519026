//! The tasks of a node's data path, each under its own name.

use std::sync::Arc;

use berth_control::uplink::{GatewayUplink, WorkerUplink};
use berth_mesh::{Drained, Gateway, GatewayLink};
use berth_peer::{PeerHandler, PeerListener, membership::Gossip};
use berth_worker::{Stopped, Worker, WorkerLink};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{
    failure::Failure,
    up::{end, gateway_ended, spawn, worker_ended},
};

/// Running tasks of the node.
pub(in crate::node) struct Running {
    /// `None` once it has ended.
    gateway: Option<JoinHandle<std::io::Result<Drained>>>,
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
    /// Starts what ties this node to the others.
    pub(super) fn start(port: PeerListener, handler: Arc<dyn PeerHandler>, gossip: Gossip) -> Self {
        let ties_stop = CancellationToken::new();
        let mut ties = JoinSet::new();
        let stop = ties_stop.clone();
        ties.spawn(async move {
            let served = port.run(handler, stop).await;
            served.map_err(|error| Failure::doing("the port for other nodes failed", error))
        });
        let stop = ties_stop.clone();
        ties.spawn(async move { gossip.run(stop).await.map_err(|error| Failure::doing("gossip failed", error)) });
        Self {
            gateway: None,
            gateway_stop: CancellationToken::new(),
            worker: None,
            worker_stop: CancellationToken::new(),
            leaving: None,
            ties,
            ties_stop,
        }
    }

    pub(super) fn worker(&mut self, worker: Worker, link: WorkerLink, uplink: WorkerUplink) {
        self.leaving = Some(worker.leaving());
        self.worker = Some(spawn(worker.run(link, self.worker_stop.clone())));
        let stop = self.ties_stop.clone();
        self.ties.spawn(async move {
            uplink.run(stop).await;
            Ok(())
        });
    }

    pub(super) fn gateway(&mut self, gateway: Gateway, link: GatewayLink, uplink: Option<GatewayUplink>) {
        self.gateway = Some(spawn(gateway.run(link, self.gateway_stop.clone())));
        let Some(uplink) = uplink else { return };
        let stop = self.ties_stop.clone();
        self.ties.spawn(async move {
            uplink.run(stop).await;
            Ok(())
        });
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
    pub(in crate::node) fn stop_gateway(&self) {
        self.gateway_stop.cancel();
    }

    /// The worker says that it will leave.
    pub(in crate::node) fn announce(&self) {
        if let Some(leaving) = &self.leaving {
            leaving.cancel();
        }
    }

    /// Waits until the gateway has drained.
    pub(in crate::node) async fn gateway_drained(&mut self) -> Option<Drained> {
        self.gateway.take()?.await.ok().and_then(Result::ok)
    }

    /// Unloads what is left.
    pub(in crate::node) async fn stop_worker(&mut self) -> Stopped {
        self.worker_stop.cancel();
        match self.worker.take() {
            Some(worker) => worker.await.unwrap_or_default(),
            None => Stopped::default(),
        }
    }

    /// Stops the tasks.
    pub(in crate::node) async fn stop(mut self) {
        self.ties_stop.cancel();
        while self.ties.join_next().await.is_some() {}
    }
}
