//! The connected workers and gateways: a mailbox for each, and word when one has room again or is gone.

use std::collections::BTreeMap;

use berth_spec::{AssignmentChange, GatewayEvent, InventoryChange, RouteChange, WorkerId};
use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::sync::mpsc::{self, OwnedPermit};

use crate::{
    controller::{GatewayId, To},
    handle::{GatewayEnds, WorkerEnds},
    mailbox::{Join, Mailbox, Posted},
};

/// Changes that may be on the way to a worker or gateway before they are joined. One would do; a few keep a quick
/// reader from waiting for a turn of the loop.
const CHANNEL: usize = 4;

/// Which connection of a worker: it may connect again before the old one is noticed to be gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ConnectionId(u64);

/// What happened to a connection.
pub(super) enum Woke {
    WorkerRoom(WorkerId, ConnectionId, OwnedPermit<AssignmentChange>),
    WorkerGone(WorkerId, ConnectionId),
    GatewayRoom(GatewayId, OwnedPermit<RouteChange>),
    GatewayGone(GatewayId),
}

pub(super) struct Connections {
    reports: mpsc::Sender<InventoryChange>,
    demand: mpsc::Sender<GatewayEvent>,
    workers: BTreeMap<WorkerId, (ConnectionId, Mailbox<AssignmentChange>)>,
    gateways: BTreeMap<GatewayId, Gateway>,
    waits: FuturesUnordered<BoxFuture<'static, Option<Woke>>>,
    last: u64,
}

struct Gateway {
    mailbox: Mailbox<RouteChange>,
    /// Numbers what this gateway is sent, without gaps.
    seq: u64,
}

impl Connections {
    pub(super) fn new(reports: mpsc::Sender<InventoryChange>, demand: mpsc::Sender<GatewayEvent>) -> Self {
        Self {
            reports,
            demand,
            workers: BTreeMap::new(),
            gateways: BTreeMap::new(),
            waits: FuturesUnordered::new(),
            last: 0,
        }
    }

    pub(super) fn attach_worker(&mut self, id: WorkerId) -> WorkerEnds {
        self.last += 1;
        let connection = ConnectionId(self.last);
        let (sender, receiver) = mpsc::channel(CHANNEL);
        let mailbox = Mailbox::new(sender);
        let (closing, worker) = (mailbox.sender(), id.clone());
        self.waits.push(
            async move {
                closing.closed().await;
                Some(Woke::WorkerGone(worker, connection))
            }
            .boxed(),
        );
        self.workers.insert(id, (connection, mailbox));
        (self.reports.clone(), receiver)
    }

    pub(super) fn attach_gateway(&mut self) -> (GatewayId, GatewayEnds) {
        self.last += 1;
        let id = GatewayId(self.last);
        let (sender, receiver) = mpsc::channel(CHANNEL);
        let mailbox = Mailbox::new(sender);
        let closing = mailbox.sender();
        self.waits.push(
            async move {
                closing.closed().await;
                Some(Woke::GatewayGone(id))
            }
            .boxed(),
        );
        self.gateways.insert(id, Gateway { mailbox, seq: 0 });
        (id, (self.demand.clone(), receiver))
    }

    pub(super) fn send_assignment(&mut self, worker: &WorkerId, change: AssignmentChange) {
        let Some((connection, mailbox)) = self.workers.get_mut(worker) else { return };
        if mailbox.post(change) == Posted::AwaitRoom {
            let (worker, connection) = (worker.clone(), *connection);
            self.waits.push(room(mailbox, move |permit| Woke::WorkerRoom(worker, connection, permit)));
        }
    }

    pub(super) fn send_routes(&mut self, to: To, change: &RouteChange) {
        for (id, gateway) in &mut self.gateways {
            if to != To::All && to != To::One(*id) {
                continue;
            }
            let id = *id;
            gateway.seq += 1;
            if gateway.mailbox.post(RouteChange { seq: gateway.seq, ..change.clone() }) == Posted::AwaitRoom {
                self.waits.push(room(&gateway.mailbox, move |permit| Woke::GatewayRoom(id, permit)));
            }
        }
    }

    /// The next thing that happens to a connection; never ready while there is none.
    pub(super) async fn next(&mut self) -> Option<Woke> {
        loop {
            match self.waits.next().await {
                Some(Some(woke)) => return Some(woke),
                Some(None) => {}
                None => std::future::pending().await,
            }
        }
    }

    pub(super) fn worker_room(
        &mut self,
        id: &WorkerId,
        connection: ConnectionId,
        permit: OwnedPermit<AssignmentChange>,
    ) {
        if let Some((current, mailbox)) = self.workers.get_mut(id)
            && *current == connection
        {
            mailbox.deliver(permit);
        }
    }

    pub(super) fn gateway_room(&mut self, id: GatewayId, permit: OwnedPermit<RouteChange>) {
        if let Some(gateway) = self.gateways.get_mut(&id) {
            gateway.mailbox.deliver(permit);
        }
    }

    /// Forgets a worker, if this was its latest connection.
    pub(super) fn worker_gone(&mut self, id: &WorkerId, connection: ConnectionId) -> bool {
        let current = self.workers.get(id).is_some_and(|(current, _)| *current == connection);
        if current {
            self.workers.remove(id);
        }
        current
    }

    pub(super) fn gateway_gone(&mut self, id: GatewayId) {
        self.gateways.remove(&id);
    }
}

fn room<C: Join + Send + 'static>(
    mailbox: &Mailbox<C>,
    woke: impl FnOnce(OwnedPermit<C>) -> Woke + Send + 'static,
) -> BoxFuture<'static, Option<Woke>> {
    let sender = mailbox.sender();
    // A reader that goes away meanwhile is told of by its own wait.
    async move { sender.reserve_owned().await.ok().map(woke) }.boxed()
}
