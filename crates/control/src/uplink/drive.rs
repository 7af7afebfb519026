//! Keeps a connection: runs the brain, and passes words both ways while there is one.
//!
//! ```text
//! words ──end.up──▶ one at a time ──room──▶ line.speak
//! heard ◀──room── one at a time ◀──end.down── line.hear
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
    Road,
    line::{Broken, Dialling, Line},
    search::{Effect, Event, Search, Whom},
};
use crate::seat::{self, SeatView};

/// What may wait on its way to or from a worker or gateway, which joins what comes after. Halved or doubled, nothing is
/// seen.
const CHANNEL: usize = 4;

/// How long the last words may take to arrive once they have been said. Halved, a worker's goodbye over a slow line is cut;
/// doubled, a leader that hangs holds up the end of the process.
const FAREWELL: Duration = Duration::from_secs(1);

/// How long there may be no controller before that is said: an election takes less. Halved, each crash of a leader is told as
/// well; doubled, people look at a node that does nothing for longer.
const WITHOUT: Duration = Duration::from_secs(6);

/// What is particular to workers and to gateways.
pub(super) trait End: Send + 'static {
    /// Whose way it is, in the log.
    const OF: &'static str;
    /// What is said.
    type Word: Send + 'static;
    /// What is heard.
    type Heard: Send + 'static;

    /// Connects.
    fn dial(&self, whom: &Whom) -> Dialling<Self::Word, Self::Heard>;

    /// A connection is there: what is to be said first?
    fn attached(&mut self) -> Option<Self::Word>;

    /// What a word becomes on this connection; `None`: it means nothing there.
    fn up(&mut self, word: Self::Word) -> Option<Self::Word>;

    /// What something that was heard becomes.
    fn down(&mut self, heard: Self::Heard) -> Self::Heard;
}

/// Both channels towards a worker or gateway, and what leads to a controller.
pub(super) struct Drive<E: End> {
    road: Road,
    end: E,
    words: mpsc::Receiver<E::Word>,
    heard: mpsc::Sender<E::Heard>,
    leader: watch::Sender<Option<(WorkerId, Epoch)>>,
}

/// The other ends of the channels.
pub(super) type Ends<E> = (mpsc::Sender<<E as End>::Word>, mpsc::Receiver<<E as End>::Heard>);

impl<E: End> Drive<E> {
    pub(super) fn new(road: Road, end: E) -> (Self, Ends<E>) {
        let (speak, words) = mpsc::channel(CHANNEL);
        let (heard, hear) = mpsc::channel(CHANNEL);
        (Self { road, end, words, heard, leader: watch::channel(None).0 }, (speak, hear))
    }

    /// Who was found to lead; it stays the last one while there is no connection.
    pub(super) fn leader(&self) -> watch::Receiver<Option<(WorkerId, Epoch)>> {
        self.leader.subscribe()
    }

    pub(super) async fn run(self, shutdown: CancellationToken) {
        let start = Instant::now();
        let search = Search::new(self.road.me.clone(), rand::random(), Time::ZERO);
        let seat = self.road.seat.clone();
        let mut running = Running {
            drive: self,
            search,
            seat,
            start,
            dialling: None,
            line: None,
            without: Without::Since(start),
            trouble: None,
            refused: None,
            first: None,
            up: None,
            down: None,
        };
        running.look_at_seat();
        shutdown.run_until_cancelled(running.run()).await;
    }
}

struct Running<E: End> {
    drive: Drive<E>,
    search: Search,
    seat: watch::Receiver<SeatView>,
    start: Instant,
    dialling: Option<Dialling<E::Word, E::Heard>>,
    line: Option<Line<E::Word, E::Heard>>,
    without: Without,
    /// Why the last one who was asked is not the one.
    trouble: Option<String>,
    /// Why the leader would not have it, when it was asked last.
    refused: Option<String>,
    /// What is to be said before anything else.
    first: Option<E::Word>,
    /// On its way up.
    up: Option<E::Word>,
    /// On its way down.
    down: Option<E::Heard>,
}

/// Whether there is a controller, and whether it was told that there is none.
enum Without {
    Attached,
    Since(Instant),
    Told,
}

/// What the loop woke up for.
enum Wake<E: End> {
    Seat,
    Tick,
    Dialled(Result<Line<E::Word, E::Heard>, Broken>),
    /// The next word; `None`: nobody will speak any more.
    Word(Option<E::Word>),
    Spoke,
    Heard(Option<Result<E::Heard, Broken>>),
    Delivered,
    Gone,
}

impl<E: End> Running<E> {
    async fn run(&mut self) {
        loop {
            match self.next().await {
                Wake::Seat => self.look_at_seat(),
                Wake::Tick => self.feed(Event::Tick),
                Wake::Dialled(dialled) => self.dialled(dialled),
                Wake::Word(Some(word)) => self.up = self.drive.end.up(word),
                Wake::Word(None) => return self.farewell().await,
                Wake::Spoke | Wake::Delivered => {}
                Wake::Heard(Some(Ok(heard))) => self.down = Some(self.drive.end.down(heard)),
                Wake::Heard(Some(Err(broken))) => self.lost(broken),
                Wake::Heard(None) => self.lost(Broken::Failed("the controller ended".to_owned())),
                Wake::Gone => return,
            }
        }
    }

    async fn next(&mut self) -> Wake<E> {
        let wake = self.search.wake_at().map(|at| self.start + at.since(Time::ZERO));
        let Self { drive, seat, dialling, line, first, up, down, .. } = self;
        let (connected, speaking, hearing) = (line.is_some(), first.is_some() || up.is_some(), down.is_some());
        tokio::select! {
            () = seat::changed(seat) => Wake::Seat,
            () = optional(wake.map(sleep_until)) => Wake::Tick,
            dialled = optional(dialling.as_mut()) => {
                *dialling = None;
                Wake::Dialled(dialled)
            }
            word = drive.words.recv(), if connected && !speaking => Wake::Word(word),
            heard = drive.heard.reserve(), if hearing => {
                if let (Ok(room), Some(down)) = (heard, down.take()) {
                    room.send(down);
                }
                Wake::Delivered
            }
            // While it is connected, its last words tell when it is gone.
            () = drive.heard.closed(), if !connected => Wake::Gone,
            woke = on_line(line, speaking, hearing) => match woke {
                OnLine::Room(room) => {
                    if let Some(word) = first.take().or_else(|| up.take()) {
                        room.send(word);
                    }
                    Wake::Spoke
                }
                OnLine::Heard(heard) => Wake::Heard(heard),
            },
        }
    }

    fn look_at_seat(&mut self) {
        let leader = self.seat.borrow_and_update().leader(&self.drive.road.me);
        self.feed(Event::Seat(leader));
    }

    fn dialled(&mut self, dialled: Result<Line<E::Word, E::Heard>, Broken>) {
        match dialled {
            Ok(line) => {
                let epoch = line.epoch;
                self.line = Some(line);
                self.feed(Event::Welcomed(epoch));
                // Refused: it is an earlier leader's.
                if self.search.attached().is_none() {
                    self.line = None;
                }
            }
            Err(Broken::Elsewhere { leader, at }) => {
                self.hear_where(leader.as_ref(), at);
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
                    tracing::error!(event = "controller_refused", reason, "the leader will not have this node");
                    self.refused = Some(reason);
                }
                self.feed(Event::Failed);
            }
        }
    }

    fn lost(&mut self, broken: Broken) {
        tracing::info!(event = "controller_lost", reason = %broken, "going on with what is known");
        self.without = Without::Since(Instant::now());
        let leader = match broken {
            Broken::Elsewhere { leader, at } => {
                self.hear_where(leader.as_ref(), at);
                leader
            }
            Broken::Refused(_) | Broken::Failed(_) => None,
        };
        self.feed(Event::Lost(leader));
    }

    /// A node that does not lead says who does, and where that one is: it has it from the store.
    fn hear_where(&self, leader: Option<&(WorkerId, Epoch)>, at: Option<SocketAddr>) {
        if let (Some((name, epoch)), Some(at)) = (leader, at) {
            self.drive.road.peers.led_by(name, *epoch, at);
        }
    }

    fn feed(&mut self, event: Event) {
        let now = Time::ZERO + self.start.elapsed();
        let controllers: Vec<WorkerId> = self.drive.road.controllers();
        self.complain(controllers.len());
        for effect in self.search.on(event, &controllers, now) {
            match effect {
                Effect::Dial(whom) => {
                    self.line = None;
                    self.dialling = Some(self.drive.end.dial(&whom));
                }
                Effect::HangUp => (self.line, self.dialling) = (None, None),
                Effect::Attach => self.attach(),
            }
        }
    }

    /// Tells, once, that no controller was found for long, and what came of asking.
    fn complain(&mut self, controllers: usize) {
        let Without::Since(since) = self.without else { return };
        if since.elapsed() < WITHOUT {
            return;
        }
        self.without = Without::Told;
        let why = match (self.trouble.take(), controllers) {
            (_, 0) => "the members name no other controller".to_owned(),
            (Some(trouble), _) => trouble,
            (None, some) => format!("none of {some} controllers leads: has the store a quorum?"),
        };
        tracing::warn!(event = "controller_missing", of = E::OF, why, "going on with what is known, and asking again");
    }

    fn attach(&mut self) {
        let epoch = self.line.as_ref().map_or(Epoch(0), |line| line.epoch);
        let name = match self.search.whom() {
            Some(Whom::Node(name)) => name.clone(),
            Some(Whom::Here) | None => self.drive.road.me.clone(),
        };
        tracing::info!(event = "controller_attached", leader = %name, %epoch);
        self.drive.leader.send_replace(Some((name, epoch)));
        (self.refused, self.trouble, self.without) = (None, None, Without::Attached);
        self.first = self.drive.end.attached();
        // What was about to be said to another may mean nothing to this one; what it said is still to be delivered.
        self.up = self.up.take().and_then(|word| self.drive.end.up(word));
    }

    /// Nobody will speak any more: lets what was said last arrive.
    async fn farewell(&mut self) {
        let Some(Line { speak, mut hear, far: true, .. }) = self.line.take() else { return };
        drop(speak);
        let ended = async { while let Some(Ok(_)) = hear.next().await {} };
        if timeout(FAREWELL, ended).await.is_err() {
            tracing::debug!(event = "farewell_late", "the controller did not take the last words in time");
        }
    }
}

enum OnLine<'a, W, H> {
    Room(mpsc::Permit<'a, W>),
    Heard(Option<Result<H, Broken>>),
}

/// What happens on the line; never ready where there is none.
async fn on_line<W, H>(line: &mut Option<Line<W, H>>, speaking: bool, hearing: bool) -> OnLine<'_, W, H> {
    let Some(Line { speak, hear, .. }) = line else { return std::future::pending().await };
    tokio::select! {
        room = speak.reserve(), if speaking => match room {
            Ok(room) => OnLine::Room(room),
            Err(_) => OnLine::Heard(None),
        },
        heard = hear.next(), if !hearing => OnLine::Heard(heard),
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
