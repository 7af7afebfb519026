//! The brain: foca, and what it leaves to others. `on(event, now)` gives effects; it reads no clock and sends nothing.
//!
//! ```text
//! alone ──somebody answers an announcement──→ in ──told to leave──→ leaving ──a few rounds of gossip──→ gone
//!   ↑ │ announces to seeds                    │ ↑
//!   │ └ and whom it once knew                 │ │ buried alive: a new number, no opinion on who is dead
//!   └────────────── nobody is left ───────────┘ └─┘
//! ```

mod leave;
mod outreach;
mod standing;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use berth_spec::{Member, WorkerId};
use foca::{Foca, PostcardCodec, State, Timer};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use super::{
    cards::Cards,
    clock::Timers,
    hints::{Hints, WireHint},
    metrics::Metrics,
    node::Node,
    packet::{self, Card, Kind, Leaving, NewerStart, PACKET, SuspicionNotice},
    policy::Policy,
    rtt::Rtts,
    suspect_probe::SuspectProbe,
    swim::{SwimEvent, SwimOutput},
    view::View,
};
use crate::members::{Hint, MemberTable};

/// Interval at which the view is compared with foca and missing cards are requested. 50 ms keeps suspicion visible
/// well within `suspect_for`.
const COMPARE_INTERVAL: Duration = Duration::from_millis(50);

/// Hints queued for gossip. 512 covers a burst of loads; more are dropped.
const HINTS: usize = 512;

/// The largest card: it must fit into one datagram together with questions.
const CARD: usize = 640;

/// Input of the membership brain.
#[derive(Debug)]
pub enum Event<'a> {
    /// A datagram came and could be opened: its packet.
    Datagram(&'a [u8]),
    /// Replaces the addresses at which others may be found.
    Seeds(Vec<SocketAddr>),
    /// Spreads a hint to all members.
    Say(Hint),
    /// Say that this node will go: it answers still.
    Announce,
    /// Leaves the cluster: says so to others until [`Effect::Left`].
    Leave,
    /// [`Membership::wake_at`] has come. Give datagrams that wait before it.
    Wake,
}

/// Action for the driver.
#[derive(Debug)]
pub enum Effect {
    /// Seals a packet and sends it.
    Send {
        /// Gossip address of the receiver.
        to: SocketAddr,
        /// Packet, not sealed yet.
        packet: Vec<u8>,
    },
    /// The members as they are now.
    Table(Arc<MemberTable>),
    /// Hands out a hint that another node sent.
    Hint(Hint),
    /// Times to members and back.
    Rtts(BTreeMap<WorkerId, Duration>),
    /// Another node has this node's name, and both claim it.
    Namesake,
    /// The others have been told; nothing more comes.
    Left,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    In,
    Leaving { rounds: u32, next: Instant },
    Gone,
}

/// Membership of one node: the SWIM protocol by foca, self-descriptions and hints.
pub struct Membership {
    pub(super) me: Arc<Member>,
    policy: Policy,
    pub(super) foca: Foca<Node, PostcardCodec, StdRng, Hints>,
    rng: StdRng,
    timers: Timers,
    cards: Cards,
    hints: Hints,
    hint_number: u64,
    suspects: SuspectProbe,
    rtts: Rtts,
    view: View,
    table: Arc<MemberTable>,
    /// Set when the table changed for a reason other than the view.
    changed: bool,
    seeds: Vec<SocketAddr>,
    phase: Phase,
    claims: u32,
    look_at: Instant,
    announce_at: Instant,
    reach_at: Instant,
    /// Time of the next leave notice; `None` while the node stays.
    leave_notice_at: Option<Instant>,
    /// Time at which the node joined, or rejoined.
    fresh_since: Instant,
    metrics: Metrics,
    effects: Vec<Effect>,
}

impl std::fmt::Debug for Membership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Membership")
            .field("node", self.foca.identity())
            .field("phase", &self.phase)
            .finish_non_exhaustive()
    }
}

impl Membership {
    /// Membership of `me`; `seed` decides all its chances.
    ///
    /// # Errors
    /// `me` says more of itself than fits in a datagram.
    pub fn new(me: Member, policy: Policy, seed: u64, metrics: Metrics, now: Instant) -> Result<Self, String> {
        let card = Card::of(&me);
        if card.size() > CARD {
            let (size, name) = (card.size(), &me.name);
            return Err(format!(
                "labels and version of {name} take {size} bytes and may take {CARD}: use fewer labels"
            ));
        }
        if policy.probe_timeout >= policy.probe_every {
            return Err("probe_timeout must be shorter than probe_every, which holds it and the indirect probes".into());
        }
        let node =
            Node { name: Some(me.name.clone()), start: me.incarnation, renewal: 0, leaving: false, gossip: me.gossip };
        let mut rng = StdRng::seed_from_u64(seed);
        let hints = Hints::new(me.name.clone());
        let foca = foca_for(node, &policy, &mut rng, &hints);
        Ok(Self {
            me: Arc::new(me),
            fresh_since: now,
            policy,
            foca,
            rng,
            timers: Timers::default(),
            cards: Cards::new(card),
            hints,
            hint_number: 0,
            suspects: SuspectProbe::default(),
            rtts: Rtts::default(),
            view: View::default(),
            table: Arc::default(),
            changed: true,
            seeds: Vec::new(),
            phase: Phase::In,
            claims: 0,
            look_at: now,
            announce_at: now,
            reach_at: now,
            leave_notice_at: None,
            metrics,
            effects: Vec::new(),
        })
    }

    /// Time at which to pass [`Event::Wake`].
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        match self.phase {
            Phase::Gone => None,
            Phase::Leaving { next, .. } => Some(next),
            Phase::In => {
                let others = [self.timers.next(), self.suspects.wake_at(), self.view.wake_at(&self.policy)];
                others.into_iter().flatten().chain([self.look_at]).min()
            }
        }
    }

    /// Takes in what happened, and says what to do.
    pub fn on(&mut self, event: Event<'_>, now: Instant) -> Vec<Effect> {
        match (self.phase, event) {
            (Phase::Gone, _) => {}
            (_, Event::Datagram(packet)) => self.datagram(packet, now),
            (Phase::Leaving { rounds, next }, Event::Wake) => self.gossip_leave(rounds, next, now),
            (Phase::Leaving { .. }, _) => {}
            (Phase::In, Event::Seeds(seeds)) => self.seeds = seeds,
            (Phase::In, Event::Say(hint)) => self.say(hint, now),
            (Phase::In, Event::Announce) => self.announce_leave(now),
            (Phase::In, Event::Leave) => self.leave(now),
            (Phase::In, Event::Wake) => self.wake(now),
        }
        self.effects.extend(self.hints.take().into_iter().map(Effect::Hint));
        std::mem::take(&mut self.effects)
    }

    fn datagram(&mut self, packet: &[u8], now: Instant) {
        const MALFORMED: Option<&str> = Some("malformed");
        let fine = |read: Option<()>| if read.is_some() { None } else { MALFORMED };
        let dropped = match Kind::split(packet) {
            None => MALFORMED,
            Some((Kind::Swim, content)) => self.swim(now, |foca, out| foca.handle_data(content, out)),
            Some((Kind::DescribeRequest, content)) => fine(packet::read(content).map(|ask| self.asked(ask, now))),
            Some((Kind::Cards, content)) => fine(packet::read(content).map(|cards: Vec<Card>| self.learn(cards, now))),
            Some((Kind::SuspicionNotice, content)) => {
                fine(packet::read(content).map(|charge| self.accused(charge, now)))
            }
            Some((Kind::NewerStart, content)) => {
                fine(packet::read(content).map(|newer: NewerStart| self.claim(newer.start, now)))
            }
            Some((Kind::Leaving, content)) => {
                fine(packet::read(content).map(|said: Leaving| self.leave_noticed(&said, now)))
            }
            Some((Kind::NameQuery, content)) => fine(packet::read(content).map(|call| self.called(call))),
            // It asked before it took part; the answer is late.
            Some((Kind::NameReply, _)) => None,
        };
        if let Some(reason) = dropped {
            self.metrics.drop_for(reason);
        }
    }

    fn wake(&mut self, now: Instant) {
        if let Some(late) = self.wake_at().map(|due| now.saturating_duration_since(due))
            && late > self.policy.stall
        {
            self.timers.postpone(late);
        }
        while let Some(timer) = self.timers.pop(now) {
            self.swim(now, |foca, out| foca.handle_timer(timer, out));
        }
        for charge in self.suspects.due(now) {
            let (by, to) = (self.foca.identity().clone(), charge.node.gossip);
            let accusation = SuspicionNotice { by, accused: charge.node, suspected: charge.suspected };
            self.send(to, packet::write(Kind::SuspicionNotice, &accusation));
        }
        if now >= self.look_at {
            self.look_at = now + COMPARE_INTERVAL;
            self.announce(now);
            self.reach(now);
            self.ask(now);
            self.send_leave_notices(now);
            self.effects.extend(self.rtts.take().map(Effect::Rtts));
            self.look(now);
        } else if self.view.wake_at(&self.policy).is_some_and(|doubted| doubted <= now) {
            self.look(now);
        }
    }

    /// Brings the view, and the table, in step with what foca thinks.
    fn look(&mut self, now: Instant) {
        for member in self.foca.iter_members() {
            let (node, suspect) = (member.id(), member.state() == State::Suspect);
            let Some(name) = &node.name else { continue };
            self.view.up(node, suspect, now, &self.policy);
            self.cards.want(name, node.start, now);
            if !suspect {
                self.suspects.acquit(name);
            }
        }
        for name in self.view.settle(now, &self.policy) {
            self.cards.forget(&name);
            self.rtts.forget(&name);
        }
        if !(self.view.take_changed() | std::mem::take(&mut self.changed)) {
            return;
        }
        let table = self.view.table(&self.me, &self.cards, &self.table);
        if table != *self.table {
            self.metrics.members(&table);
            self.table = Arc::new(table);
            self.effects.push(Effect::Table(Arc::clone(&self.table)));
        }
    }

    /// Lets foca do something, and takes in what it brought about. Where foca drops a packet, says for what.
    fn swim(
        &mut self,
        now: Instant,
        does: impl FnOnce(&mut Swim, &mut SwimOutput) -> Result<(), foca::Error>,
    ) -> Option<&'static str> {
        let mut out = SwimOutput::default();
        let dropped = match does(&mut self.foca, &mut out) {
            Ok(()) => None,
            // An address of a seed was this node's own, by another name.
            Err(foca::Error::DataFromOurselves | foca::Error::IndirectForOurselves) => Some("own"),
            Err(_) => Some("malformed"),
        };
        let (mut changed, mut buried, mut alone) = (false, false, false);
        for news in out.news {
            match news {
                SwimEvent::Up(node) => {
                    changed = true;
                    node.name.iter().for_each(|name| self.suspects.acquit(name));
                }
                SwimEvent::Down(node) => {
                    changed = true;
                    self.view.down(&node, now);
                    node.name.iter().for_each(|name| self.cards.stop_wanting(name));
                    if !node.leaving {
                        self.suspects.accuse(node, None, now, self.policy.confirm);
                    }
                }
                SwimEvent::Renamed => changed = true,
                SwimEvent::Alone => alone = true,
                SwimEvent::Buried => buried = true,
                SwimEvent::Heard(node) => self.heard(&node),
                SwimEvent::Asked(node, probe) => {
                    self.metrics.probes.inc();
                    node.name.into_iter().for_each(|name| self.rtts.asked(name, probe, now));
                }
                SwimEvent::Answered(node, probe) => {
                    node.name.iter().for_each(|name| self.rtts.answered(name, probe, now));
                }
                SwimEvent::Unanswered => {
                    self.metrics.unanswered.inc();
                }
            }
        }
        if self.phase == Phase::In && (buried || alone) {
            // What it was about to say comes from one who was away: better nothing.
            self.start_over(now);
            return dropped;
        }
        for (after, timer) in out.timers {
            if let Timer::ChangeSuspectToDown { member_id, incarnation, .. } = &timer {
                self.suspects.accuse(member_id.clone(), Some(*incarnation), now, self.policy.suspect_for);
            }
            self.timers.set(now + after, timer);
        }
        for (to, packet) in out.packets {
            self.send(to.gossip, packet);
        }
        if changed && self.phase == Phase::In {
            self.look(now);
        }
        dropped
    }

    /// A new foca under a new number, which knows the living and has no opinion on who is dead: after a partition both
    /// sides hold each other for dead, and news of it must not go on.
    fn start_over(&mut self, now: Instant) {
        let living: Vec<_> = self
            .foca
            .iter_members()
            .map(|member| foca::Member::new(member.id().clone(), member.incarnation(), State::Alive))
            .collect();
        let node = self.foca.identity().renewed();
        self.foca = foca_for(node, &self.policy, &mut self.rng, &self.hints);
        self.timers.clear();
        self.swim(now, |foca, out| foca.apply_many(living.into_iter(), false, out));
        // Of two nodes with one name, one is buried as often as it says a word: it does not answer that at once, else both
        // and whoever hears them are busy with it as fast as packets go.
        if now >= self.fresh_since + self.policy.probe_every {
            self.swim(now, |foca, out| foca.gossip(out));
            self.announce_at = now;
            self.look_at = now;
        } else {
            self.announce_at = now + self.policy.announce_every;
        }
        self.fresh_since = now;
    }

    fn say(&mut self, hint: Hint, now: Instant) {
        if self.foca.custom_broadcast_backlog() >= HINTS {
            self.metrics.drop_for("hints");
            return;
        }
        self.hint_number += 1;
        let Hint { worker, revision, ready } = hint;
        let (start, number) = (self.foca.identity().start, self.hint_number);
        let Ok(bytes) = postcard::to_allocvec(&WireHint { worker, start, number, revision, ready }) else { return };
        // Too long a name, or no news: nothing to pass on.
        let _ = self.foca.add_broadcast(&bytes);
        self.swim(now, |foca, out| foca.broadcast(out));
    }

    fn send(&mut self, to: SocketAddr, packet: Vec<u8>) {
        self.effects.push(Effect::Send { to, packet });
    }
}

type Swim = Foca<Node, PostcardCodec, StdRng, Hints>;

fn foca_for(node: Node, policy: &Policy, rng: &mut StdRng, hints: &Hints) -> Swim {
    let own = StdRng::seed_from_u64(rng.random());
    Foca::with_custom_broadcast(node, policy.foca(PACKET - 1), own, PostcardCodec, hints.clone())
}
