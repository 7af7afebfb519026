//! Drives the brain: one UDP socket, sealed datagrams, and a thread of its own, so that probes are answered in time
//! while all other threads compute.
//!
//! Datagrams that wait come before timers: after a pause, answers are read before anybody is blamed for their absence.

use std::{io, net::SocketAddr, thread, time::Duration};

use berth_spec::{Class, Member, WorkerId};
use prometheus_client::registry::Registry;
use socket2::SockRef;
use tokio::{
    net::UdpSocket,
    sync::oneshot,
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    brain::{Effect, Event, Membership},
    isolation_warning::IsolationWarning,
    metrics::Metrics,
    name_check,
    packet::ROOM,
    policy::Policy,
    replay_guard::ReplayGuard,
};
use crate::{
    members::{Members, MembersWriter, MembershipCommand},
    pki::{Identity, OpenError, certifies},
};

/// Interval between look-ups of seed names, so that a cluster whose addresses changed is found within ten seconds.
const LOOK_UP: Duration = Duration::from_secs(10);

/// Limit for one look-up, so that a hung resolver does not stop the others.
const LOOK_UP_WITHIN: Duration = Duration::from_secs(2);

/// Datagrams read in a row before timers run, so that a flood cannot stop the probes.
const IN_A_ROW: usize = 256;

/// Receive buffer of the socket in bytes; holds a burst of about a thousand full packets.
const RECEIVE: usize = 1 << 20;

/// Settings of [`Gossip::bind`].
#[derive(Debug, Clone)]
pub struct GossipConfig {
    /// Address to listen on (UDP). The address for others is [`Member::gossip`].
    pub bind: SocketAddr,
    /// Seeds as `HOST:PORT`. Names are looked up repeatedly; unreachable ones do no harm.
    pub join: Vec<String>,
    /// Timings of the protocol.
    pub policy: Policy,
}

/// Reason why membership cannot start.
#[derive(Debug, thiserror::Error)]
pub enum GossipError {
    /// The address cannot be had.
    #[error("cannot gossip on {address}: {source}")]
    Bind {
        /// Address that could not be bound.
        address: SocketAddr,
        /// Cause reported by the system.
        source: io::Error,
    },
    /// Self-description that no member can have: too many labels, or a name that the certificate is not good for.
    #[error("{0}")]
    Member(String),
    /// Another process uses this node's name.
    #[error(
        "another process goes by the name {name} (its port for other nodes is {at}): stop it, or give this node another \
         name, with --name and a certificate for that (`berth modelmesh`: with -i)"
    )]
    Taken {
        /// Name that both processes have.
        name: WorkerId,
        /// Address of the process that uses it.
        at: SocketAddr,
    },
    /// No thread could be started, or its runtime.
    #[error("cannot start the gossip thread: {0}")]
    Thread(io::Error),
}

impl GossipError {
    /// Class of the error, which decides what to do next.
    #[must_use]
    pub const fn class(&self) -> Class {
        match self {
            Self::Bind { .. } => Class::Stalled,
            Self::Taken { .. } => Class::Conflict,
            Self::Member(_) => Class::Invalid,
            Self::Thread(_) => Class::Internal,
        }
    }
}

/// Membership with its socket, before it runs.
pub struct Gossip {
    name: WorkerId,
    socket: std::net::UdpSocket,
    identity: Identity,
    join: Vec<String>,
    brain: Membership,
    roster: MembersWriter,
    metrics: Metrics,
}

impl std::fmt::Debug for Gossip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gossip").field("brain", &self.brain).finish_non_exhaustive()
    }
}

impl Gossip {
    /// Takes the address. Where `me.gossip` has port 0, it becomes the port that was taken.
    ///
    /// # Errors
    /// The address cannot be had, or `me` has more labels than fit in a datagram, or a name that its certificate
    /// is not good for ([`certifies`]).
    pub fn bind(
        config: GossipConfig,
        mut me: Member,
        identity: Identity,
        registry: &mut Registry,
    ) -> Result<(Members, Self), GossipError> {
        let (name, certified) = (me.name.clone(), identity.name());
        if !certifies(certified, &name) {
            let reason = format!("this node is called {name}, and its certificate is for {certified}");
            return Err(GossipError::Member(reason));
        }
        let bind = || {
            let socket = std::net::UdpSocket::bind(config.bind)?;
            socket.set_nonblocking(true)?;
            // Many speak at once when a cluster starts. What the kernel does not give is a lost datagram.
            let _ = SockRef::from(&socket).set_recv_buffer_size(RECEIVE);
            Ok((socket.local_addr()?.port(), socket))
        };
        let (port, socket) = bind().map_err(|source| GossipError::Bind { address: config.bind, source })?;
        if me.gossip.port() == 0 {
            me.gossip.set_port(port);
        }
        let metrics = Metrics::default();
        metrics.register(registry);
        let (members, roster) = Members::by_hand(me.clone());
        let now = Instant::now().into_std();
        let brain =
            Membership::new(me, config.policy, rand::random(), metrics.clone(), now).map_err(GossipError::Member)?;
        Ok((members, Self { name, socket, identity, join: config.join, brain, roster, metrics }))
    }

    /// Asks whether another process goes by this node's name; before [`Gossip::run`], while nobody takes this one for the
    /// member. Takes a moment where somebody answers, and a second where nobody does.
    ///
    /// # Errors
    /// [`GossipError::Taken`]: another process has said that it does. [`GossipError::Thread`]: the socket cannot be used.
    pub async fn ask_for_name(&self) -> Result<(), GossipError> {
        // What cannot be looked up now will be while it runs.
        let seeds = timeout(LOOK_UP_WITHIN, resolve(&self.join)).await.unwrap_or_default();
        let socket = self.socket.try_clone().and_then(UdpSocket::from_std).map_err(GossipError::Thread)?;
        let taken = name_check::taken(&socket, &self.identity, &self.brain.me, &seeds).await;
        match taken.map_err(GossipError::Thread)? {
            Some(at) => Err(GossipError::Taken { name: self.name.clone(), at }),
            None => Ok(()),
        }
    }

    /// The address that it has.
    ///
    /// # Errors
    /// The system does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Takes part until [`Members::leave`], or until `shutdown`, which is how a crash looks to the others: leave first.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), GossipError> {
        let (ended, end) = oneshot::channel();
        let body = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let took_part = runtime.and_then(|runtime| {
                let took_part = runtime.block_on(self.take_part(shutdown));
                // A name that is being looked up must not hold up the end.
                runtime.shutdown_background();
                took_part
            });
            // Whoever asked may have stopped waiting.
            let _ = ended.send(took_part);
        };
        thread::Builder::new().name("gossip".to_owned()).spawn(body).map_err(GossipError::Thread)?;
        let died = || Err(io::Error::other("it panicked"));
        end.await.unwrap_or_else(|_| died()).map_err(GossipError::Thread)
    }

    async fn take_part(self, shutdown: CancellationToken) -> io::Result<()> {
        let Self { name, socket, identity, join, brain, mut roster, metrics } = self;
        let socket = UdpSocket::from_std(socket)?;
        let isolation = IsolationWarning::new(!join.is_empty(), Instant::now().into_std());
        let mut running = Running {
            name,
            socket,
            identity,
            brain,
            metrics,
            isolation,
            replays: ReplayGuard::default(),
            sealed: Vec::new(),
            told: false,
            leaving: Vec::new(),
        };
        let mut buffer = vec![0; ROOM];
        let mut look_up = interval(LOOK_UP);
        look_up.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (seeds_in, mut seeds) = tokio::sync::mpsc::channel(1);
        let mut looking = tokio::task::JoinSet::new();
        while !running.is_done() {
            let wake = running.brain.wake_at().map(Instant::from_std);
            let silent = running.isolation.wake_at().map(Instant::from_std);
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                readable = running.socket.readable() => {
                    readable?;
                    running.receive(&mut buffer, &roster);
                    // A flood must not keep timers waiting.
                    if running.brain.wake_at().is_some_and(|due| due <= Instant::now().into_std()) {
                        running.give(Event::Wake, &roster);
                    }
                }
                () = async { sleep_until(wake.unwrap_or_else(Instant::now)).await }, if wake.is_some() => {
                    running.give(Event::Wake, &roster);
                }
                () = async { sleep_until(silent.unwrap_or_else(Instant::now)).await }, if silent.is_some() => {
                    if let Some(why) = running.isolation.complaint(Instant::now().into_std()) {
                        tracing::warn!(event = "join_unanswered", join = join.join(","), why, "no other node answers");
                    }
                }
                Some(order) = roster.orders.recv() => running.order(order, &roster),
                Some(found) = seeds.recv() => running.give(Event::Seeds(found), &roster),
                _ = look_up.tick() => {
                    looking.abort_all();
                    let (join, to) = (join.clone(), seeds_in.clone());
                    looking.spawn(async move { let _ = to.send(resolve(&join).await).await; });
                }
                Some(_) = looking.join_next() => {}
            }
        }
        Ok(())
    }
}

struct Running {
    name: WorkerId,
    socket: UdpSocket,
    identity: Identity,
    brain: Membership,
    metrics: Metrics,
    isolation: IsolationWarning,
    replays: ReplayGuard,
    sealed: Vec<u8>,
    /// Set once the name conflict has been reported.
    told: bool,
    leaving: Vec<oneshot::Sender<()>>,
}

impl Running {
    fn is_done(&self) -> bool {
        self.brain.wake_at().is_none()
    }

    fn receive(&mut self, buffer: &mut [u8], roster: &MembersWriter) {
        for _ in 0..IN_A_ROW {
            match self.socket.try_recv_from(buffer) {
                Ok((length, from)) => self.datagram(&mut buffer[..length], from, roster),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // A former datagram met a closed port; the next one is fine.
                Err(_) => {}
            }
        }
    }

    fn datagram(&mut self, sealed: &mut [u8], from: SocketAddr, roster: &MembersWriter) {
        self.metrics.received.inc();
        let keyring = self.identity.keyring();
        match keyring.open(sealed) {
            Ok((packet, seal)) => {
                if !self.replays.admit(&seal) {
                    return self.metrics.drop_for("again");
                }
                // Borrowed from the buffer, which the brain does not see.
                let effects = self.brain.on(Event::Datagram(packet), Instant::now().into_std());
                self.perform(effects, roster);
            }
            Err(OpenError::Form) => self.metrics.drop_for("form"),
            Err(OpenError::Key) => {
                self.metrics.drop_for("key");
                if self.isolation.unopened(from, Instant::now().into_std()) {
                    tracing::warn!(
                        event = "gossip_foreign",
                        %from,
                        "sealed with a key that this node does not have: one of both has certificates of another \
                         `berth pki init`"
                    );
                }
            }
            Err(OpenError::Forged) => self.metrics.drop_for("forged"),
        }
    }

    fn order(&mut self, order: MembershipCommand, roster: &MembersWriter) {
        match order {
            MembershipCommand::Say(hint) => self.give(Event::Say(hint), roster),
            MembershipCommand::Announce => self.give(Event::Announce, roster),
            MembershipCommand::Leave(told) => {
                self.leaving.push(told);
                self.give(Event::Leave, roster);
            }
        }
    }

    fn give(&mut self, event: Event<'_>, roster: &MembersWriter) {
        let effects = self.brain.on(event, Instant::now().into_std());
        self.perform(effects, roster);
    }

    fn perform(&mut self, effects: Vec<Effect>, roster: &MembersWriter) {
        for effect in effects {
            match effect {
                Effect::Send { to, packet } => {
                    self.identity.seal(&packet, &mut self.sealed);
                    // A full buffer is a lost datagram, which the protocol expects.
                    match self.socket.try_send_to(&self.sealed, to) {
                        Ok(_) => {
                            self.metrics.sent.inc();
                        }
                        Err(_) => self.metrics.drop_for("unsent"),
                    }
                }
                Effect::Table(table) => {
                    log(&roster.table(), &table);
                    let others = table.there().filter(|member| member.name != self.name).count();
                    self.isolation.others(others, Instant::now().into_std());
                    roster.publish(table);
                }
                Effect::Hint(hint) => roster.hint(hint),
                Effect::Rtts(rtts) => roster.publish_rtts(rtts),
                Effect::Namesake if !self.told => {
                    self.told = true;
                    tracing::error!(event = "name_contested", name = %self.name, "another node has this node's name: stop one of them, or give it another name");
                }
                Effect::Namesake => {}
                Effect::Left => self.leaving.drain(..).for_each(|told| {
                    // Who does not wait any more need not be told.
                    let _ = told.send(());
                }),
            }
        }
    }
}

/// Logs each member whose health changed.
fn log(before: &crate::MemberTable, after: &crate::MemberTable) {
    for (name, (member, health)) in after.iter() {
        let was = before.get(name).map(|(_, was)| *was);
        if was != Some(*health) {
            let from = was.map_or("unknown", berth_spec::Health::as_str);
            tracing::info!(event = "member_changed", member = %name, from, to = health.as_str(), peer = %member.peer);
        }
    }
}

/// The addresses behind all names that can be looked up now.
async fn resolve(join: &[String]) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for seed in join {
        match timeout(LOOK_UP_WITHIN, tokio::net::lookup_host(seed.as_str())).await {
            Ok(Ok(addresses)) => found.extend(addresses),
            Ok(Err(error)) => tracing::warn!(event = "join_unresolved", %seed, %error),
            Err(_) => tracing::warn!(event = "join_unresolved", %seed, error = "no answer"),
        }
    }
    found
}
