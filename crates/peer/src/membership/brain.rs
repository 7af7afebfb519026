//! The brain: foca, and what it leaves to others. `on(event, now)` gives effects; it reads no clock and sends nothing.
//!
//! ```text
//! alone ──somebody answers an announcement──→ in ──told to leave──→ leaving ──a few rounds of gossip──→ gone
//!   ↑ │ announces to seeds                    │ ↑
//!   │ └ and whom it once knew                 │ │ buried alive: a new number, no opinion on who is dead
//!   └────────────── nobody is left ───────────┘ └─┘
//! ```

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use berth_spec::{Member, WorkerId};
use foca::{Foca, PostcardCodec, State, Timer};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::IteratorRandom as _};

use super::{
    accused::Accused,
    cards::Cards,
    clock::Timers,
    hints::{Hints, WireHint},
    metrics::Metrics,
    node::Node,
    packet::{self, Accusation, Ask, Card, Kind, Newer, PACKET},
    policy::Policy,
    rtt::Rtts,
    swim::{News, Out},
    view::View,
};
use crate::members::{Hint, MemberTable};

/// How often the view is compared with what foca thinks, and what is missing is asked for. Halved: more work for
/// nothing. Doubled: suspicion is shown later.
const LOOK: Duration = Duration::from_millis(50);

/// Hints that wait to be passed on. Halved: more are dropped when many models load at once. Doubled: they come later.
const HINTS: usize = 512;

/// Rounds of gossip in which a leaving node tells so, and the time between them.
const FAREWELLS: u32 = 5;
const FAREWELL_EVERY: Duration = Duration::from_millis(40);

/// How many addresses a lonely node announces to at once.
const ANNOUNCE_TO: usize = 8;

/// How often a node claims its name against another that has it too, before it gives way.
const CLAIMS: u32 = 3;

/// The largest card: it must fit into one datagram together with questions.
const CARD: usize = 640;

/// Something that happened.
#[derive(Debug)]
pub enum Event<'a> {
    /// A datagram was opened.
    Datagram(&'a [u8]),
    /// Where to find others: replaces what was given before.
    Seeds(Vec<SocketAddr>),
    /// Tell the others.
    Say(Hint),
    /// Go.
    Leave,
    /// [`Membership::wake_at`] has come. Give datagrams that wait before it.
    Wake,
}

/// Something to do.
#[derive(Debug)]
pub enum Effect {
    /// Seal and send.
    Send {
        /// To whom.
        to: SocketAddr,
        /// What, unsealed.
        packet: Vec<u8>,
    },
    /// The members as they are now.
    Table(Arc<MemberTable>),
    /// Somebody's hint.
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

/// Membership of one node.
pub struct Membership {
    pub(super) me: Arc<Member>,
    policy: Policy,
    pub(super) foca: Foca<Node, PostcardCodec, StdRng, Hints>,
    rng: StdRng,
    timers: Timers,
    cards: Cards,
    hints: Hints,
    hint_number: u64,
    accused: Accused,
    rtts: Rtts,
    view: View,
    table: Arc<MemberTable>,
    /// What is known of members changed, other than by the view.
    changed: bool,
    seeds: Vec<SocketAddr>,
    phase: Phase,
    claims: u32,
    look_at: Instant,
    announce_at: Instant,
    reach_at: Instant,
    young_until: Instant,
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
        let node =
            Node { name: Some(me.name.clone()), start: me.incarnation, renewal: 0, leaving: false, gossip: me.gossip };
        let mut rng = StdRng::seed_from_u64(seed);
        let hints = Hints::new(me.name.clone());
        let foca = foca_for(node, &policy, &mut rng, &hints);
        Ok(Self {
            me: Arc::new(me),
            young_until: now + policy.young,
            policy,
            foca,
            rng,
            timers: Timers::default(),
            cards: Cards::new(card),
            hints,
            hint_number: 0,
            accused: Accused::default(),
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
            metrics,
            effects: Vec::new(),
        })
    }

    /// When to give [`Event::Wake`].
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        match self.phase {
            Phase::Gone => None,
            Phase::Leaving { next, .. } => Some(next),
            Phase::In => {
                let others = [self.timers.next(), self.accused.wake_at(), self.view.wake_at(&self.policy)];
                others.into_iter().flatten().chain([self.look_at]).min()
            }
        }
    }

    /// Takes in what happened, and says what to do.
    pub fn on(&mut self, event: Event<'_>, now: Instant) -> Vec<Effect> {
        match (self.phase, event) {
            (Phase::Gone, _) => {}
            (_, Event::Datagram(packet)) => self.datagram(packet, now),
            (Phase::Leaving { rounds, next }, Event::Wake) => self.farewell(rounds, next, now),
            (Phase::Leaving { .. }, _) => {}
            (Phase::In, Event::Seeds(seeds)) => self.seeds = seeds,
            (Phase::In, Event::Say(hint)) => self.say(hint, now),
            (Phase::In, Event::Leave) => self.leave(now),
            (Phase::In, Event::Wake) => self.wake(now),
        }
        self.effects.extend(self.hints.take().into_iter().map(Effect::Hint));
        std::mem::take(&mut self.effects)
    }

    fn datagram(&mut self, packet: &[u8], now: Instant) {
        let known = Kind::split(packet).and_then(|(kind, content)| match kind {
            Kind::Swim => {
                let taken = self.swim(now, |foca, out| foca.handle_data(content, out));
                taken.then_some(())
            }
            Kind::Ask => packet::read(content).map(|ask| self.asked(ask, now)),
            Kind::Cards => packet::read(content).map(|cards: Vec<Card>| self.learn(cards, now)),
            Kind::Accusation => packet::read(content).map(|accusation| self.accused(accusation, now)),
            Kind::Newer => packet::read(content).map(|newer: Newer| self.claim(newer.start, now)),
        });
        if known.is_none() {
            self.metrics.drop_for("malformed");
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
        for charge in self.accused.due(now) {
            let (by, to) = (self.foca.identity().clone(), charge.node.gossip);
            let accusation = Accusation { by, accused: charge.node, suspected: charge.suspected };
            self.send(to, packet::write(Kind::Accusation, &accusation));
        }
        if now >= self.look_at {
            self.look_at = now + LOOK;
            self.announce(now);
            self.reach(now);
            self.ask(now);
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
                self.accused.acquit(name);
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

    /// Lets foca do something, and takes in what it brought about. Says whether foca found it in order.
    fn swim<E>(&mut self, now: Instant, does: impl FnOnce(&mut Swim, &mut Out) -> Result<(), E>) -> bool {
        let mut out = Out::default();
        let in_order = does(&mut self.foca, &mut out).is_ok();
        let (mut changed, mut buried, mut alone) = (false, false, false);
        for news in out.news {
            match news {
                News::Up(node) => {
                    changed = true;
                    node.name.iter().for_each(|name| self.accused.acquit(name));
                }
                News::Down(node) => {
                    changed = true;
                    self.view.down(&node, now);
                    node.name.iter().for_each(|name| self.cards.stop_wanting(name));
                    if !node.leaving {
                        self.accused.accuse(node, None, now, self.policy.confirm);
                    }
                }
                News::Renamed => changed = true,
                News::Alone => alone = true,
                News::Buried => buried = true,
                News::Heard(node) => self.heard(&node),
                News::Asked(node, probe) => {
                    self.metrics.probes.inc();
                    node.name.into_iter().for_each(|name| self.rtts.asked(name, probe, now));
                }
                News::Answered(node, probe) => {
                    node.name.iter().for_each(|name| self.rtts.answered(name, probe, now));
                }
                News::Unanswered => {
                    self.metrics.unanswered.inc();
                }
            }
        }
        if self.phase == Phase::In && (buried || alone) {
            // What it was about to say comes from one who was away: better nothing.
            self.start_over(now);
            return in_order;
        }
        for (after, timer) in out.timers {
            if let Timer::ChangeSuspectToDown { member_id, incarnation, .. } = &timer {
                self.accused.accuse(member_id.clone(), Some(*incarnation), now, self.policy.suspect_for);
            }
            self.timers.set(now + after, timer);
        }
        for (to, packet) in out.packets {
            self.send(to.gossip, packet);
        }
        if changed && self.phase == Phase::In {
            self.look(now);
        }
        in_order
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
        self.swim(now, |foca, out| foca.gossip(out));
        self.young_until = now + self.policy.young;
        self.announce_at = now;
        self.look_at = now;
    }

    /// Who is alone announces itself to whomever it knows, who is newly in to one member after the other: foca does so
    /// once, and the packet or its answer may be lost.
    fn announce(&mut self, now: Instant) {
        if now < self.announce_at {
            return;
        }
        let (alone, young) = (self.foca.num_members() == 0, now < self.young_until);
        let after = match (alone, young) {
            (_, true) => self.policy.announce_every,
            (true, false) => self.policy.reach_every,
            (false, false) => self.policy.compare_every,
        };
        self.announce_at = now + after.mul_f64(self.rng.random_range(0.75..1.0));
        if alone {
            let known = self.seeds.iter().copied().chain(self.view.reachable()).filter(|at| *at != self.me.gossip);
            let some = known.sample(&mut self.rng, ANNOUNCE_TO);
            for seed in some {
                self.swim(now, |foca, out| foca.announce(Node::seed(seed), out));
            }
        } else if let Some(member) = self.foca.iter_members().choose(&mut self.rng) {
            let node = member.id().clone();
            self.swim(now, |foca, out| foca.announce(node, out));
        }
    }

    /// Tries one that failed and one seed that is not there: so partitions end that outlast foca's memory.
    fn reach(&mut self, now: Instant) {
        if now < self.reach_at {
            return;
        }
        self.reach_at = now + self.policy.reach_every.mul_f64(self.rng.random_range(0.75..1.0));
        let missing = |seed: &SocketAddr| *seed != self.me.gossip && !self.view.is_there(*seed);
        let seed = self.seeds.iter().copied().filter(missing).choose(&mut self.rng);
        let failed = self.view.failed().choose(&mut self.rng);
        for at in [seed, failed].into_iter().flatten() {
            self.swim(now, |foca, out| foca.announce(Node::seed(at), out));
        }
    }

    /// Asks for the cards that are missing: their owners, and somebody who may have them.
    fn ask(&mut self, now: Instant) {
        let names = self.cards.due(now);
        if names.is_empty() {
            return;
        }
        let me = self.cards.own().clone();
        for name in &names {
            if let Some(to) = self.view.node(name).map(|node| node.gossip) {
                self.send(to, packet::write(Kind::Ask, &Ask { me: me.clone(), names: vec![name.clone()] }));
            }
        }
        if let Some(other) = self.foca.iter_members().choose(&mut self.rng).map(|member| member.id().gossip) {
            let mut room = PACKET - CARD - 16;
            let fits = |name: &WorkerId| {
                let size = name.as_str().len() + 1;
                room.checked_sub(size).inspect(|left| room = *left).is_some()
            };
            let names = names.into_iter().filter(fits).collect();
            self.send(other, packet::write(Kind::Ask, &Ask { me, names }));
        }
    }

    fn asked(&mut self, ask: Ask, now: Instant) {
        if let Some(answer) = packet::pack_cards(self.cards.of(&ask.names)) {
            self.send(ask.me.gossip, answer);
        }
        self.learn(vec![ask.me], now);
    }

    fn learn(&mut self, cards: Vec<Card>, now: Instant) {
        let mut news = false;
        for card in cards {
            news |= self.cards.learn(card);
        }
        if news && self.phase == Phase::In {
            self.changed = true;
            self.look(now);
        }
    }

    /// Somebody is about to take this node for dead, or has done so: it answers at once.
    fn accused(&mut self, Accusation { by, accused, suspected }: Accusation, now: Instant) {
        if accused.name.as_ref() != Some(&self.me.name) || self.phase != Phase::In {
            return;
        }
        if accused == *self.foca.identity() {
            let charge = match suspected {
                Some(incarnation) => foca::Member::new(accused, incarnation, State::Suspect),
                None => foca::Member::down(accused),
            };
            self.swim(now, |foca, out| foca.apply_many(std::iter::once(charge), true, out));
        }
        self.swim(now, |foca, out| foca.announce(by, out));
    }

    /// Tells a node that speaks under an older start than is known: its clock went back, or there are two.
    fn heard(&mut self, node: &Node) {
        let known = node.name.as_ref().and_then(|name| self.view.node(name));
        if let Some(start) = known.map(|known| known.start).filter(|start| *start > node.start) {
            self.send(node.gossip, packet::write(Kind::Newer, &Newer { start }));
        }
    }

    /// Takes a later start than the one that others know under this name.
    fn claim(&mut self, known: u64, now: Instant) {
        let mine = self.foca.identity();
        if self.phase != Phase::In || known <= mine.start {
            return;
        }
        if self.claims >= CLAIMS {
            self.effects.push(Effect::Namesake);
            return;
        }
        self.claims += 1;
        let node = Node { start: known + 1, renewal: 0, ..mine.clone() };
        self.me = Arc::new(Member { incarnation: node.start, ..(*self.me).clone() });
        self.cards.set_own_start(node.start);
        self.changed = true;
        self.swim(now, |foca, out| foca.change_identity(node, out));
        self.start_over(now);
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

    fn leave(&mut self, now: Instant) {
        self.phase = Phase::Leaving { rounds: FAREWELLS, next: now + FAREWELL_EVERY };
        let node = Node { leaving: true, ..self.foca.identity().renewed() };
        self.swim(now, |foca, out| foca.change_identity(node, out));
        self.swim(now, |foca, out| foca.leave_cluster(out));
    }

    fn farewell(&mut self, rounds: u32, next: Instant, now: Instant) {
        if now < next {
            return;
        }
        if rounds == 0 {
            self.phase = Phase::Gone;
            self.effects.push(Effect::Left);
            return;
        }
        self.phase = Phase::Leaving { rounds: rounds - 1, next: now + FAREWELL_EVERY };
        self.swim(now, |foca, out| foca.gossip(out));
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
