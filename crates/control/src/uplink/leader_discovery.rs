//! Search for the leader: the brain of an uplink. Reads no clock, draws no random number and does no I/O.
//!
//! ```text
//!                 ┌──────────── a pause: 50 ms, doubling to 1 s, jittered ◀──────────┐
//!                 ▼                                                                  │ all were asked
//! Searching ──the next one──▶ Dialling ──Welcomed, not of an earlier term──▶ Attached│
//!     ▲                          │ │ └── Elsewhere: that one next, if the term is no earlier one
//!     │                          │ └──── Failed, or too slow: the next one ──────────┘
//!     └──── Lost, or a later leader is known ◀────────────────────────────── Attached
//! ```
//! The order: who is known to lead (this node's own leadership, a redirect), whom it was connected to last, this node where it
//! believes to lead, then each controller in turn. A leader of a term that is earlier than one that was met is none any more,
//! whatever it believes: for [`DOUBT`]. If the later term is still nowhere to be found then, it was made up, or is of a store that
//! was restored from a backup since: nobody believes for that long in a term that is over.

use std::{collections::BTreeSet, time::Duration};

use berth_spec::{Epoch, Time, WorkerId};

/// First pause after all nodes were asked in vain; doubles with each round. Short, so that the result of an election
/// is found early.
pub const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// Longest pause. Limits the load of a thousand nodes without a controller.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Limit for an answer. Longer than a leader needs to restore 100,000 deployments.
pub const DIAL_WITHIN: Duration = Duration::from_secs(5);

/// Time for which leaders of earlier terms are refused while none of the latest one is met. Many times a lease: a leader stops
/// believing in itself when that ends, by its own clock.
pub const DOUBT: Duration = Duration::from_secs(60);

/// Duration after which a connection counts as good and pauses start anew.
const GOOD: Duration = Duration::from_secs(5);

/// Place of a controller, to be connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// This process.
    Here,
    /// Another node, over the peer port.
    Node(WorkerId),
}

/// Input of [`LeaderDiscovery::on`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The leader by this node's own election, if it knows one: perhaps this node itself.
    Leadership(Option<(WorkerId, Epoch)>),
    /// The dialled node leads.
    Welcomed(Epoch),
    /// The dialled node does not lead, but may know who does.
    Elsewhere(Option<(WorkerId, Epoch)>),
    /// The dialled node did not answer or refused.
    Failed,
    /// The connection has ended, and perhaps its end said who leads now.
    Lost(Option<(WorkerId, Epoch)>),
    /// The time of [`LeaderDiscovery::wake_at`] has come.
    Tick,
}

/// Action that [`LeaderDiscovery::on`] asks of its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Connects. Drops an existing or pending connection.
    Dial(Target),
    /// Uses the new connection.
    Attach,
    /// Drops the existing or pending connection.
    HangUp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Searching { at: Time },
    Dialling { whom: Target, until: Time },
    Attached { whom: Target, epoch: Epoch, since: Time },
}

/// Decides which node to connect to, and when. Brain without I/O; connections are made by its driver.
#[derive(Debug)]
pub struct LeaderDiscovery {
    me: WorkerId,
    state: State,
    /// The latest term that was met.
    latest: Epoch,
    /// Since when only leaders of earlier terms were met; `None`: none was refused.
    doubted: Option<Time>,
    /// True if this node leads by its own election.
    leads: bool,
    /// Reported leader, in a term no earlier than `latest`.
    said: Option<(WorkerId, Epoch)>,
    /// Last node connected to.
    last: Option<Target>,
    /// Nodes asked in this round.
    asked: BTreeSet<WorkerId>,
    /// Rounds without success.
    rounds: u32,
    /// Position at which a round starts among the controllers, so that nodes do not all ask the same one first.
    turn: usize,
    chance: u64,
}

impl LeaderDiscovery {
    /// Not connected. `chance` is a random number.
    #[must_use]
    pub fn new(me: WorkerId, chance: u64, now: Time) -> Self {
        Self {
            me,
            state: State::Searching { at: now },
            latest: Epoch(0),
            doubted: None,
            leads: false,
            said: None,
            last: None,
            asked: BTreeSet::new(),
            rounds: 0,
            turn: usize::try_from(chance % 1_024).unwrap_or(0),
            chance,
        }
    }

    /// Time of the next [`Event::Tick`].
    #[must_use]
    pub fn wake_at(&self) -> Option<Time> {
        match &self.state {
            State::Searching { at } => Some(*at),
            State::Dialling { until, .. } => Some(*until),
            State::Attached { .. } => None,
        }
    }

    /// The term that it is attached to; `None` while it searches or dials.
    #[must_use]
    pub fn attached(&self) -> Option<Epoch> {
        match self.state {
            State::Attached { epoch, .. } => Some(epoch),
            State::Searching { .. } | State::Dialling { .. } => None,
        }
    }

    /// Node that it is attached to; `None` while it searches or dials.
    #[must_use]
    pub fn whom(&self) -> Option<&Target> {
        match &self.state {
            State::Attached { whom, .. } => Some(whom),
            State::Searching { .. } | State::Dialling { .. } => None,
        }
    }

    /// Takes in what happened. `controllers` are the nodes that may lead, those first that answer, without this one.
    pub fn on(&mut self, event: Event, controllers: &[WorkerId], now: Time) -> Vec<Effect> {
        match (event, self.state.clone()) {
            (Event::Leadership(leader), state) => self.leadership(leader, &state, controllers, now),
            (Event::Welcomed(epoch), State::Dialling { whom, .. }) => self.welcomed(epoch, whom, controllers, now),
            (Event::Elsewhere(leader), State::Dialling { .. }) => {
                self.hear_of_another(leader);
                self.next(controllers, now)
            }
            (Event::Failed, State::Dialling { .. }) => self.next(controllers, now),
            (Event::Lost(leader), State::Attached { since, .. }) => {
                self.hear_of_another(leader);
                let good = now.since(since) >= GOOD;
                if good {
                    self.rounds = 0;
                }
                // Others have lost it as well: not all of them at the same moment.
                let at = now + self.jittered(self.pause());
                if !good {
                    // Whoever takes everybody in and drops them at once is asked ever less.
                    self.rounds = self.rounds.saturating_add(1);
                }
                self.state = State::Searching { at };
                vec![Effect::HangUp]
            }
            (Event::Tick, State::Searching { at }) if at <= now => self.next(controllers, now),
            (Event::Tick, State::Dialling { until, .. }) if until <= now => self.hang_up_and_search(controllers, now),
            // Of a connection that was given up.
            _ => Vec::new(),
        }
    }

    fn welcomed(&mut self, epoch: Epoch, whom: Target, controllers: &[WorkerId], now: Time) -> Vec<Effect> {
        if epoch < self.latest {
            let since = *self.doubted.get_or_insert(now);
            if now.since(since) < DOUBT {
                // It leads no more and does not know it.
                return self.hang_up_and_search(controllers, now);
            }
            self.said = self.said.take().filter(|(_, said)| *said <= epoch);
        }
        (self.latest, self.doubted) = (epoch, None);
        self.last = Some(whom.clone());
        self.asked.clear();
        self.state = State::Attached { whom, epoch, since: now };
        vec![Effect::Attach]
    }

    fn leadership(
        &mut self,
        leader: Option<(WorkerId, Epoch)>,
        state: &State,
        controllers: &[WorkerId],
        now: Time,
    ) -> Vec<Effect> {
        let leads = leader.as_ref().is_some_and(|(name, _)| *name == self.me);
        self.leads = leads;
        if !leads {
            self.said = self.said.take().filter(|(name, _)| *name != self.me);
        }
        let news = self.hear(leader);
        match state {
            State::Attached { whom: Target::Here, .. } if !leads => self.hang_up_and_search(controllers, now),
            State::Dialling { whom: Target::Here, .. } if !leads => self.hang_up_and_search(controllers, now),
            State::Attached { epoch, .. } => {
                let later = self.said.as_ref().is_some_and(|(_, said)| said > epoch);
                if later { self.hang_up_and_search(controllers, now) } else { Vec::new() }
            }
            State::Searching { .. } if news => self.next(controllers, now),
            State::Searching { .. } | State::Dialling { .. } => Vec::new(),
        }
    }

    /// Another node says who leads. That this one does, it would know itself.
    fn hear_of_another(&mut self, leader: Option<(WorkerId, Epoch)>) {
        self.hear(leader.filter(|(name, _)| *name != self.me));
    }

    /// Records a reported leader. True if it is new.
    fn hear(&mut self, leader: Option<(WorkerId, Epoch)>) -> bool {
        let Some((name, epoch)) = leader.filter(|(_, epoch)| *epoch >= self.latest) else { return false };
        let news = self.said.as_ref().is_none_or(|(_, said)| epoch > *said);
        if news {
            self.asked.remove(&name);
            self.rounds = 0;
            self.said = Some((name, epoch));
        }
        news
    }

    fn hang_up_and_search(&mut self, controllers: &[WorkerId], now: Time) -> Vec<Effect> {
        let mut effects = vec![Effect::HangUp];
        effects.extend(self.next(controllers, now));
        effects
    }

    /// Asks the next one, or pauses when all were asked.
    fn next(&mut self, controllers: &[WorkerId], now: Time) -> Vec<Effect> {
        if let Some(name) = self.candidate(controllers) {
            self.asked.insert(name.clone());
            let whom = if name == self.me { Target::Here } else { Target::Node(name) };
            self.state = State::Dialling { whom: whom.clone(), until: now + DIAL_WITHIN };
            return vec![Effect::Dial(whom)];
        }
        let pause = self.jittered(self.pause());
        self.asked.clear();
        self.rounds = self.rounds.saturating_add(1);
        self.turn = self.turn.wrapping_add(1);
        // What was said may have been wrong; who says it again is believed again.
        self.said = self.said.take().filter(|(name, _)| *name == self.me);
        self.state = State::Searching { at: now + pause };
        Vec::new()
    }

    fn candidate(&self, controllers: &[WorkerId]) -> Option<WorkerId> {
        let said = self.said.iter().map(|(name, _)| name);
        let last = self.last.iter().filter_map(|last| match last {
            Target::Node(name) => Some(name),
            // This node's own election says if it leads.
            Target::Here => None,
        });
        let here = self.leads.then_some(&self.me);
        let start = self.turn % controllers.len().max(1);
        let turns = controllers[start..].iter().chain(&controllers[..start]);
        said.chain(last).chain(here).chain(turns).find(|name| !self.asked.contains(*name)).cloned()
    }

    fn pause(&self) -> Duration {
        (FIRST_PAUSE * 2_u32.saturating_pow(self.rounds.min(10))).min(LONGEST_PAUSE)
    }

    /// Something between nothing and the pause, by a sequence that looks random.
    fn jittered(&mut self, pause: Duration) -> Duration {
        // splitmix64, Steele, Lea, Flood 2014.
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.chance;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        pause.mul_f64(0.5 + 0.5 * (mixed >> 11) as f64 / (1_u64 << 53) as f64)
    }
}
