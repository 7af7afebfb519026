//! Keeps a connection: runs the brain, and passes messages both ways while there is one.
//!
//! ```text
//! outgoing ──client.up──▶ one at a time ──room──▶ stream.outgoing
//! incoming ◀──room── one at a time ◀──client.down── stream.incoming
//! ```
//! Without a connection nothing is read from whoever speaks: he joins what he has to say, and nothing piles up here.

use std::{net::SocketAddr, time::Duration};

use berth_spec::{Epoch, Time, WorkerId};
use futures::StreamExt;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    ConnectContext,
    leader_discovery::{Effect, Event, LeaderDiscovery, Target},
    stream::{Broken, ControllerStream, Dialling},
};
use crate::leadership::{self, LeadershipView};

/// Messages buffered to or from a worker or gateway. A few suffice, because both merge later changes.
const CHANNEL: usize = 4;

/// Limit for sending the last messages. Long enough for slow links, short enough for a shutdown.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Time without a controller before it is reported. Longer than an election.
const REPORT_MISSING_AFTER: Duration = Duration::from_secs(6);

/// Parts that differ between workers and gateways.
pub(super) trait Client: Send + 'static {
    /// Name of the client in logs.
    const OF: &'static str;
    /// Message to the controller.
    type Outgoing: Send + 'static;
    /// Message from the controller.
    type Incoming: Send + 'static;

    /// Opens a connection to the controller on a node. Fails if the node does not lead.
    fn dial(&self, whom: &Target) -> Dialling<Self::Outgoing, Self::Incoming>;

    /// Returns the first message for a new connection.
    fn attached(&mut self) -> Option<Self::Outgoing>;

    /// Adapts a message for this connection; `None` if it has no meaning there.
    fn up(&mut self, message: Self::Outgoing) -> Option<Self::Outgoing>;

    /// Adapts a message from this connection for the worker or gateway, to which all connections are one.
    fn down(&mut self, message: Self::Incoming) -> Self::Incoming;
}

/// Both channels towards a worker or gateway, and what leads to a controller.
pub(super) struct Connection<E: Client> {
    context: ConnectContext,
    client: E,
    outgoing: mpsc::Receiver<E::Outgoing>,
    incoming: mpsc::Sender<E::Incoming>,
    leader: watch::Sender<Option<(WorkerId, Epoch)>>,
}

/// The worker's or gateway's ends: messages to the controller, messages from it.
pub(super) type Channels<E> = (mpsc::Sender<<E as Client>::Outgoing>, mpsc::Receiver<<E as Client>::Incoming>);

impl<E: Client> Connection<E> {
    pub(super) fn new(context: ConnectContext, client: E) -> (Self, Channels<E>) {
        let (sender, outgoing) = mpsc::channel(CHANNEL);
        let (incoming, receiver) = mpsc::channel(CHANNEL);
        (Self { context, client, outgoing, incoming, leader: watch::channel(None).0 }, (sender, receiver))
    }

    /// Last leader found. Kept while there is no connection.
    pub(super) fn leader(&self) -> watch::Receiver<Option<(WorkerId, Epoch)>> {
        self.leader.subscribe()
    }

    pub(super) async fn run(self, shutdown: CancellationToken) {
        let start = Instant::now();
        let leader_discovery = LeaderDiscovery::new(self.context.me.clone(), rand::random(), Time::ZERO);
        let leadership = self.context.leadership.clone();
        let mut running = Running {
            connection: self,
            leader_discovery,
            leadership,
            start,
            dialling: None,
            stream: None,
            detachment: Detachment::Since(start),
            trouble: None,
            refused: None,
            first: None,
            up: None,
            down: None,
        };
        running.follow_leadership();
        shutdown.run_until_cancelled(running.run()).await;
    }
}

struct Running<E: Client> {
    connection: Connection<E>,
    leader_discovery: LeaderDiscovery,
    leadership: watch::Receiver<LeadershipView>,
    start: Instant,
    dialling: Option<Dialling<E::Outgoing, E::Incoming>>,
    stream: Option<ControllerStream<E::Outgoing, E::Incoming>>,
    detachment: Detachment,
    /// Error of the last node that was asked.
    trouble: Option<String>,
    /// Reason of the last refusal by the leader.
    refused: Option<String>,
    /// Message to send before all others.
    first: Option<E::Outgoing>,
    /// On its way up.
    up: Option<E::Outgoing>,
    /// On its way down.
    down: Option<E::Incoming>,
}

/// Presence of a controller, and if its absence was reported.
enum Detachment {
    Attached,
    Since(Instant),
    Told,
}

/// Reason why the loop woke up.
enum Wake<E: Client> {
    Leadership,
    Tick,
    Dialled(Result<ControllerStream<E::Outgoing, E::Incoming>, Broken>),
    /// Next outgoing message; `None` when all senders have gone.
    Outgoing(Option<E::Outgoing>),
    Sent,
    Incoming(Option<Result<E::Incoming, Broken>>),
    Delivered,
    Gone,
}

impl<E: Client> Running<E> {
    async fn run(&mut self) {
        loop {
            match self.next().await {
                Wake::Leadership => self.follow_leadership(),
                Wake::Tick => self.feed(Event::Tick),
                Wake::Dialled(dialled) => self.dialled(dialled),
                Wake::Outgoing(Some(message)) => self.up = self.connection.client.up(message),
                Wake::Outgoing(None) => return self.close().await,
                Wake::Sent | Wake::Delivered => {}
                Wake::Incoming(Some(Ok(message))) => self.down = Some(self.connection.client.down(message)),
                Wake::Incoming(Some(Err(broken))) => self.lost(broken),
                Wake::Incoming(None) => self.lost(Broken::Failed("the controller ended".to_owned())),
                Wake::Gone => return,
            }
        }
    }

    async fn next(&mut self) -> Wake<E> {
        let wake = self.leader_discovery.wake_at().map(|at| self.start + at.since(Time::ZERO));
        let Self { connection, leadership, dialling, stream, first, up, down, .. } = self;
        let (connected, sending, delivering) = (stream.is_some(), first.is_some() || up.is_some(), down.is_some());
        tokio::select! {
            () = leadership::changed(leadership) => Wake::Leadership,
            () = optional(wake.map(sleep_until)) => Wake::Tick,
            dialled = optional(dialling.as_mut()) => {
                *dialling = None;
                Wake::Dialled(dialled)
            }
            message = connection.outgoing.recv(), if connected && !sending => Wake::Outgoing(message),
            room = connection.incoming.reserve(), if delivering => {
                if let (Ok(room), Some(down)) = (room, down.take()) {
                    room.send(down);
                }
                Wake::Delivered
            }
            // While it is connected, its last messages tell when it is gone.
            () = connection.incoming.closed(), if !connected => Wake::Gone,
            woke = stream_event(stream, sending, delivering) => match woke {
                StreamEvent::Room(room) => {
                    if let Some(message) = first.take().or_else(|| up.take()) {
                        room.send(message);
                    }
                    Wake::Sent
                }
                StreamEvent::Incoming(message) => Wake::Incoming(message),
            },
        }
    }

    fn follow_leadership(&mut self) {
        let leader = self.leadership.borrow_and_update().leader(&self.connection.context.me);
        self.feed(Event::Leadership(leader));
    }

    fn dialled(&mut self, dialled: Result<ControllerStream<E::Outgoing, E::Incoming>, Broken>) {
        match dialled {
            Ok(stream) => {
                let epoch = stream.epoch;
                self.stream = Some(stream);
                self.feed(Event::Welcomed(epoch));
                // Refused: it is an earlier leader's.
                if self.leader_discovery.attached().is_none() {
                    self.stream = None;
                }
            }
            Err(Broken::Elsewhere { leader, at }) => {
                self.learn_leader_address(leader.as_ref(), at);
                self.feed(Event::Elsewhere(leader));
            }
            Err(Broken::Failed(reason)) => {
                tracing::debug!(event = "controller_silent", reason);
                self.trouble = Some(reason);
                self.feed(Event::Failed);
            }
            Err(Broken::Refused(reason)) => {
                // It is asked again each second: told once.
                if self.refused.as_ref() != Some(&reason) {
                    tracing::error!(event = "controller_refused", reason, "the leader refuses this node");
                    self.refused = Some(reason);
                }
                self.feed(Event::Failed);
            }
        }
    }

    fn lost(&mut self, broken: Broken) {
        tracing::info!(event = "controller_lost", reason = %broken, "controller lost; serving with the last known state");
        self.detachment = Detachment::Since(Instant::now());
        let leader = match broken {
            Broken::Elsewhere { leader, at } => {
                self.learn_leader_address(leader.as_ref(), at);
                leader
            }
            Broken::Refused(_) | Broken::Failed(_) => None,
        };
        self.feed(Event::Lost(leader));
    }

    /// A node that does not lead says who does, and where that one is: it has it from the store.
    fn learn_leader_address(&self, leader: Option<&(WorkerId, Epoch)>, at: Option<SocketAddr>) {
        if let (Some((name, epoch)), Some(at)) = (leader, at) {
            self.connection.context.peers.led_by(name, *epoch, at);
        }
    }

    fn feed(&mut self, event: Event) {
        let now = Time::ZERO + self.start.elapsed();
        let controllers: Vec<WorkerId> = self.connection.context.controllers();
        self.complain(controllers.len());
        for effect in self.leader_discovery.on(event, &controllers, now) {
            match effect {
                Effect::Dial(whom) => {
                    self.stream = None;
                    self.dialling = Some(self.connection.client.dial(&whom));
                }
                Effect::HangUp => (self.stream, self.dialling) = (None, None),
                Effect::Attach => self.attach(),
            }
        }
    }

    /// Tells, once, that no controller was found for long, and what came of asking.
    fn complain(&mut self, controllers: usize) {
        let Detachment::Since(since) = self.detachment else { return };
        if since.elapsed() < REPORT_MISSING_AFTER {
            return;
        }
        self.detachment = Detachment::Told;
        let why = match (self.trouble.take(), controllers) {
            (_, 0) => "the members name no other controller".to_owned(),
            (Some(trouble), _) => trouble,
            (None, some) => format!("none of {some} controllers leads: has the store a quorum?"),
        };
        tracing::warn!(
            event = "controller_missing",
            of = E::OF,
            why,
            "no controller; serving with the last known state, retrying"
        );
    }

    fn attach(&mut self) {
        let epoch = self.stream.as_ref().map_or(Epoch(0), |stream| stream.epoch);
        let name = match self.leader_discovery.whom() {
            Some(Target::Node(name)) => name.clone(),
            Some(Target::Here) | None => self.connection.context.me.clone(),
        };
        tracing::info!(event = "controller_attached", leader = %name, %epoch);
        self.connection.context.peers.term_met(epoch);
        let before = self.connection.leader.send_replace(Some((name, epoch)));
        if let Some((leader, later)) = before.filter(|(_, before)| *before > epoch) {
            tracing::warn!(
                event = "term_went_back",
                %epoch,
                %leader,
                %later,
                "the later term is nowhere to be found: was the store restored? If not, it was made up"
            );
        }
        (self.refused, self.trouble, self.detachment) = (None, None, Detachment::Attached);
        self.first = self.connection.client.attached();
        // What was about to be said to another may mean nothing to this one; what it said is still to be delivered.
        self.up = self.up.take().and_then(|message| self.connection.client.up(message));
    }

    /// Waits, after the last sender has gone, until the last message has arrived.
    async fn close(&mut self) {
        let Some(ControllerStream { outgoing, mut incoming, far: true, .. }) = self.stream.take() else { return };
        drop(outgoing);
        let ended = async { while let Some(Ok(_)) = incoming.next().await {} };
        if timeout(CLOSE_TIMEOUT, ended).await.is_err() {
            tracing::debug!(event = "farewell_late", "the controller did not take the last words in time");
        }
    }
}

enum StreamEvent<'a, W, H> {
    Room(mpsc::Permit<'a, W>),
    Incoming(Option<Result<H, Broken>>),
}

/// Next event on the stream. Never ready without a stream.
async fn stream_event<W, H>(
    stream: &mut Option<ControllerStream<W, H>>,
    sending: bool,
    delivering: bool,
) -> StreamEvent<'_, W, H> {
    let Some(ControllerStream { outgoing, incoming, .. }) = stream else { return std::future::pending().await };
    tokio::select! {
        room = outgoing.reserve(), if sending => match room {
            Ok(room) => StreamEvent::Room(room),
            Err(_) => StreamEvent::Incoming(None),
        },
        message = incoming.next(), if !delivering => StreamEvent::Incoming(message),
        else => std::future::pending().await,
    }
}

/// Waits for it; for ever if there is none.
async fn optional<F: Future>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
