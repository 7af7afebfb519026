//! The connected workers and gateways: a mailbox for each, and word when one has room again or is gone.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use berth_spec::{
    AssignmentChange, CredentialSet, FromController, GatewayEvent, GatewayId, InventoryChange, RouteChange, WorkerId,
    WorkerInfo,
};
use futures::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream, FuturesUnordered, SelectAll},
};
use tokio::{
    sync::{
        mpsc::{self, OwnedPermit},
        oneshot,
    },
    time::Instant,
};

use crate::{
    controller::RouteRecipients,
    handle::{Error, GatewayEnds, WorkerEnds},
    mailbox::{Join, Mailbox, Posted},
    store::Rev,
};

/// Changes that may be on the way to a worker or gateway before they are joined. One would do; a few keep a quick
/// reader from waiting for a turn of the loop.
const CHANNEL: usize = 4;

/// Reports of one worker that may queue. The worker merges later ones.
const REPORTS: usize = 4;

/// Messages of one gateway that may wait, as many as a burst of misses sends; it waits beyond that.
const EVENTS: usize = 256;

/// Revs that may be on their way to gateways. Beyond that the latest stands for those before it: who waits for one of
/// them waits a little longer.
const UNAPPLIED: usize = 64;

/// Time that a gateway may confirm nothing while writes wait for it: as long as a write waits.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(2);

/// Number of a worker's connection: a worker may connect again before the loss of the old one is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ConnectionId(u64);

/// Event of a worker's or gateway's connection: there is room for a change, a message came, or it is gone.
pub(super) enum ConnectionEvent {
    WorkerRoom(WorkerId, ConnectionId, OwnedPermit<FromController>),
    WorkerReport(ConnectionId, InventoryChange),
    CredentialsRoom(WorkerId, ConnectionId, OwnedPermit<FromController>),
    WorkerGone(WorkerId, ConnectionId),
    GatewayRoom(GatewayId, OwnedPermit<RouteChange>),
    GatewayEvent(GatewayId, GatewayEvent),
    GatewayGone(GatewayId),
}

pub(super) struct Connections {
    workers: BTreeMap<WorkerId, Worker>,
    /// The last connection that each worker had: what comes late on an earlier one is old, and must not stand beside what
    /// was said on a later one.
    latest: BTreeMap<WorkerId, ConnectionId>,
    gateways: BTreeMap<GatewayId, Gateway>,
    /// Messages of workers and gateways.
    incoming: SelectAll<BoxStream<'static, ConnectionEvent>>,
    waits: FuturesUnordered<BoxFuture<'static, Option<ConnectionEvent>>>,
    /// Revs whose routes are on their way, the oldest first, each with what the gateways have to have applied for it.
    unapplied: VecDeque<(Rev, BTreeMap<GatewayId, u64>)>,
    /// Credentials of each worker, attached or not.
    credentials: BTreeMap<WorkerId, Arc<CredentialSet>>,
    last: u64,
}

/// Credentials on their way to a worker: the latest are the whole.
#[derive(Debug)]
struct PendingCredentials(Arc<CredentialSet>);

impl Join for PendingCredentials {
    fn join(&mut self, later: Self) {
        *self = later;
    }
}

impl From<PendingCredentials> for FromController {
    fn from(given: PendingCredentials) -> Self {
        Self::Credentials(given.0)
    }
}

struct Worker {
    connection: ConnectionId,
    /// Start of the process, as a number.
    incarnation: u64,
    mailbox: Mailbox<AssignmentChange, FromController>,
    /// Beside the other, into the same channel.
    credentials: Mailbox<PendingCredentials, FromController>,
    /// The start of another process that goes by its name and was refused last.
    refused: Option<u64>,
    /// Dropped with the rest: then what waits for the other end to go lets go of it, and the other end is told.
    _let_go: oneshot::Sender<()>,
}

struct Gateway {
    mailbox: Mailbox<RouteChange>,
    /// Numbers what this gateway is sent, without gaps.
    seq: u64,
    /// True once it has been sent all routes: before that, changes mean nothing to it.
    welcomed: bool,
    /// Last change that it has confirmed; 0 before the first.
    applied: u64,
    /// Time since which it has confirmed nothing more; `None` if it has confirmed all that it was sent.
    behind: Option<Instant>,
}

impl Gateway {
    /// True if writes wait for it. One that was just sent all routes counts, too: after a change of leaders that is every
    /// gateway, and each of them serves meanwhile, by the routes of the last leader. One that hangs does not delay every
    /// write.
    fn is_awaited(&self, now: Instant) -> bool {
        self.welcomed && self.behind.is_none_or(|since| now - since < CONFIRMED_WITHIN)
    }
}

impl Connections {
    pub(super) fn new() -> Self {
        Self {
            workers: BTreeMap::new(),
            latest: BTreeMap::new(),
            gateways: BTreeMap::new(),
            incoming: SelectAll::new(),
            waits: FuturesUnordered::new(),
            unapplied: VecDeque::new(),
            credentials: BTreeMap::new(),
            last: 0,
        }
    }

    /// Connects a worker instead of an earlier connection of it, unless that is of a later start and lives: then these are
    /// two processes, and the earlier one does not get the name back.
    pub(super) fn attach_worker(&mut self, info: &WorkerInfo) -> Result<WorkerEnds, Error> {
        let id = info.id.clone();
        if let Some(other) = self.workers.get_mut(&id)
            && other.incarnation > info.incarnation
            && !other.mailbox.sender().is_closed()
        {
            let error = Error::NameTaken(id);
            // It tries again each second: told once.
            if other.refused.replace(info.incarnation) != Some(info.incarnation) {
                let (refused, connected) = (info.incarnation, other.incarnation);
                tracing::warn!(event = "worker_refused", worker_id = %info.id, refused, connected, "{error}");
            }
            return Err(error);
        }
        self.last += 1;
        let connection = ConnectionId(self.last);
        let (sender, receiver) = mpsc::channel(CHANNEL);
        // There is room for it: it is the first.
        let _ = sender.try_send(FromController::Attached);
        let mailbox: Mailbox<AssignmentChange, FromController> = Mailbox::new(sender);
        let (closing, worker) = (mailbox.sender(), id.clone());
        let (let_go, replaced) = oneshot::channel::<()>();
        self.waits.push(
            async move {
                tokio::select! {
                    () = closing.closed() => Some(ConnectionEvent::WorkerGone(worker, connection)),
                    _ = replaced => None,
                }
            }
            .boxed(),
        );
        let credentials = Mailbox::new(mailbox.sender());
        let incarnation = info.incarnation;
        let worker = Worker { connection, incarnation, mailbox, credentials, refused: None, _let_go: let_go };
        self.workers.insert(id.clone(), worker);
        self.latest.insert(id.clone(), connection);
        let (sender, reports) = mpsc::channel(REPORTS);
        let incoming = stream::unfold(reports, move |mut reports| async move {
            let report = reports.recv().await?;
            Some((ConnectionEvent::WorkerReport(connection, report), reports))
        });
        self.incoming.push(incoming.boxed());
        if let Some(set) = self.credentials.get(&id).cloned() {
            self.give(&id, set);
        }
        Ok((sender, receiver))
    }

    /// True if the worker has not connected again since. Its last message before it leaves is also accepted.
    pub(super) fn is_latest(&self, id: &WorkerId, connection: ConnectionId) -> bool {
        self.latest.get(id) == Some(&connection)
    }

    pub(super) fn attach_gateway(&mut self) -> (GatewayId, GatewayEnds) {
        self.last += 1;
        let id = GatewayId(self.last);
        let (sender, receiver) = mpsc::channel(CHANNEL);
        let mailbox: Mailbox<RouteChange> = Mailbox::new(sender);
        let closing = mailbox.sender();
        self.waits.push(
            async move {
                closing.closed().await;
                Some(ConnectionEvent::GatewayGone(id))
            }
            .boxed(),
        );
        let (events_sender, events) = mpsc::channel(EVENTS);
        let incoming = stream::unfold(events, move |mut events| async move {
            let event = events.recv().await?;
            Some((ConnectionEvent::GatewayEvent(id, event), events))
        });
        self.incoming.push(incoming.boxed());
        self.gateways.insert(id, Gateway { mailbox, seq: 0, welcomed: false, applied: 0, behind: None });
        (id, (events_sender, receiver))
    }

    pub(super) fn send_assignment(&mut self, worker: &WorkerId, change: AssignmentChange) {
        let Some(to) = self.workers.get_mut(worker) else { return };
        if to.mailbox.post(change) == Posted::AwaitRoom {
            let (worker, connection) = (worker.clone(), to.connection);
            self.waits.push(room(&to.mailbox, move |permit| ConnectionEvent::WorkerRoom(worker, connection, permit)));
        }
    }

    /// Gives workers what opens stores and repositories to them, where that differs from what they were given last.
    pub(super) fn set_credentials(&mut self, sets: BTreeMap<WorkerId, Arc<CredentialSet>>) {
        let before = std::mem::replace(&mut self.credentials, sets);
        let revoked = before.iter().filter(|(worker, _)| !self.credentials.contains_key(*worker));
        let none = |set: &CredentialSet| CredentialSet { generation: set.generation.next(), secrets: BTreeMap::new() };
        let revoked: Vec<_> = revoked.map(|(worker, set)| (worker.clone(), Arc::new(none(set)))).collect();
        let news = self.credentials.iter().filter(|(worker, set)| before.get(*worker) != Some(*set));
        let news: Vec<_> = news.map(|(worker, set)| (worker.clone(), Arc::clone(set))).collect();
        news.into_iter().chain(revoked).for_each(|(worker, set)| self.give(&worker, set));
    }

    fn give(&mut self, worker: &WorkerId, set: Arc<CredentialSet>) {
        let Some(to) = self.workers.get_mut(worker) else { return };
        if to.credentials.post(PendingCredentials(set)) == Posted::AwaitRoom {
            let (worker, connection) = (worker.clone(), to.connection);
            self.waits.push(room(&to.credentials, move |permit| {
                ConnectionEvent::CredentialsRoom(worker, connection, permit)
            }));
        }
    }

    pub(super) fn send_routes(&mut self, to: RouteRecipients, change: RouteChange) {
        match to {
            // Not copied: it may be every route.
            RouteRecipients::One(id) => self.send_routes_to(id, change),
            RouteRecipients::All => {
                let ids: Vec<GatewayId> = self.gateways.keys().copied().collect();
                ids.into_iter().for_each(|id| self.send_routes_to(id, change.clone()));
            }
        }
    }

    fn send_routes_to(&mut self, id: GatewayId, change: RouteChange) {
        let Some(gateway) = self.gateways.get_mut(&id) else { return };
        gateway.welcomed |= change.base.is_none();
        if !gateway.welcomed {
            return;
        }
        gateway.behind.get_or_insert_with(Instant::now);
        let base = change.base.map(|_| gateway.seq);
        gateway.seq += 1;
        if gateway.mailbox.post(RouteChange { seq: gateway.seq, base, ..change }) == Posted::AwaitRoom {
            self.waits.push(room(&gateway.mailbox, move |permit| ConnectionEvent::GatewayRoom(id, permit)));
        }
    }

    /// Ends a worker's connection from this side.
    pub(super) fn hang_up(&mut self, worker: &WorkerId) {
        self.workers.remove(worker);
    }

    /// The next thing that happens to a connection; never ready while there is none.
    pub(super) async fn next(&mut self) -> Option<ConnectionEvent> {
        loop {
            tokio::select! {
                Some(woke) = self.incoming.next() => return Some(woke),
                Some(waited) = self.waits.next() => {
                    if waited.is_some() {
                        return waited;
                    }
                }
                else => std::future::pending().await,
            }
        }
    }

    pub(super) fn worker_room(&mut self, id: &WorkerId, connection: ConnectionId, permit: OwnedPermit<FromController>) {
        if let Some(worker) = self.workers.get_mut(id)
            && worker.connection == connection
        {
            worker.mailbox.deliver(permit);
        }
    }

    pub(super) fn credentials_room(
        &mut self,
        id: &WorkerId,
        connection: ConnectionId,
        permit: OwnedPermit<FromController>,
    ) {
        if let Some(worker) = self.workers.get_mut(id)
            && worker.connection == connection
        {
            worker.credentials.deliver(permit);
        }
    }

    pub(super) fn gateway_room(&mut self, id: GatewayId, permit: OwnedPermit<RouteChange>) {
        if let Some(gateway) = self.gateways.get_mut(&id) {
            gateway.mailbox.deliver(permit);
        }
    }

    /// Forgets a worker, if this was its latest connection.
    pub(super) fn worker_gone(&mut self, id: &WorkerId, connection: ConnectionId) -> bool {
        let current = self.workers.get(id).is_some_and(|worker| worker.connection == connection);
        if current {
            self.workers.remove(id);
        }
        current
    }

    /// A gateway is gone: nothing waits for it. Gives the rev that is in force now, if that moved.
    pub(super) fn gateway_gone(&mut self, id: GatewayId) -> Option<Rev> {
        self.gateways.remove(&id);
        self.settled()
    }

    /// Everything up to `rev` is in the routes that were sent. Gives the rev that is in force now, if that moved.
    pub(super) fn routed(&mut self, rev: Rev) -> Option<Rev> {
        let now = Instant::now();
        let awaited = self.gateways.iter().filter(|(_, gateway)| gateway.is_awaited(now));
        let wanted = awaited.map(|(id, gateway)| (*id, gateway.seq)).collect();
        if self.unapplied.len() == UNAPPLIED {
            self.unapplied.pop_back();
        }
        self.unapplied.push_back((rev, wanted));
        self.settled()
    }

    /// A gateway has put its changes in force up to `seq`. Gives the rev that is in force now, if that moved.
    pub(super) fn applied(&mut self, id: GatewayId, seq: u64) -> Option<Rev> {
        let gateway = self.gateways.get_mut(&id)?;
        gateway.applied = seq.min(gateway.seq);
        gateway.behind = (gateway.applied < gateway.seq).then(Instant::now);
        self.settled()
    }

    fn settled(&mut self) -> Option<Rev> {
        let (mut settled, now) = (None, Instant::now());
        while let Some((rev, wanted)) = self.unapplied.front() {
            let waits = |(id, seq): (&GatewayId, &u64)| {
                self.gateways.get(id).is_some_and(|gateway| gateway.applied < *seq && gateway.is_awaited(now))
            };
            if wanted.iter().any(waits) {
                break;
            }
            settled = Some(*rev);
            self.unapplied.pop_front();
        }
        settled
    }
}

fn room<C: Join, M: From<C> + Send + 'static>(
    mailbox: &Mailbox<C, M>,
    woke: impl FnOnce(OwnedPermit<M>) -> ConnectionEvent + Send + 'static,
) -> BoxFuture<'static, Option<ConnectionEvent>> {
    let sender = mailbox.sender();
    // A reader that goes away meanwhile is told of by its own wait.
    async move { sender.reserve_owned().await.ok().map(woke) }.boxed()
}
