//! The brain of an election: one candidate. It reads no clock and does no I/O.
//!
//! ```text
//!                 nobody leads            a moment later          granted
//! ┌─▶ Following ───────────────▶ Waiting ───────────────▶ Granting ───────▶ Claiming ─────────────▶ Leading
//! │    ▲  ▲  (looks now and        │ another leads           │ failed          │ the key is ours      │ keeps the lease
//! │    │  └───then)────────────────┴─────────────────────────┘                 │                      │ at TTL/3
//! │    │                                            another's, or too late     ▼                      │
//! │    └──────────────────────────────── released, or given up ──────────── Yielding ◀────────────────┤ 2/3 TTL without
//! │                                                                            │                      │ an answer; lease or
//! └── never again: Resigned ◀───────────────── released, after `Resign` ───────┘                      │ key gone; `Resign`
//! ```
//! Times are those of the machine's own steady clock. A lease counts from when its grant or its last successful renewal
//! was *sent*: etcd cannot have heard of it earlier, so it cannot end it before a whole TTL from then. The candidate
//! stops leading after two thirds of that, and says nothing in between about who leads. The margin is for clocks that run
//! at different speeds.
//!
//! An answer that is lost leaves open whether the key is ours: the candidate looks, and the key says so, since it holds
//! the lease. Answers that come late are told apart by their lease; what was seen of the key by its revision.

use std::time::Duration;

use berth_spec::{Epoch, Time, WorkerId};

use super::{CandidateRole, Effect, Event, LeaderRecord, Policy, RenewalResult};
use crate::store::{
    Rev,
    etcd::{Lease, LeaseId},
};

#[derive(Debug, Clone)]
enum State {
    Following { look_at: Time },
    Waiting { until: Time },
    Granting,
    Claiming { term: HeldLease, claim_at: Option<Time> },
    Leading { term: HeldLease, epoch: Epoch, keep_at: Option<Time> },
    Yielding { lease: LeaseId, until: Time },
    Resigned,
}

/// Lease and the time until which it is reliable.
#[derive(Debug, Clone, Copy)]
struct HeldLease {
    lease: Lease,
    /// Time at which the last confirmed request was sent.
    sent: Time,
}

impl HeldLease {
    /// Until when it surely lasts.
    fn until(self) -> Time {
        self.sent + self.lease.ttl * 2 / 3
    }

    fn keep_at(self) -> Time {
        self.sent + self.lease.ttl / 3
    }
}

/// One who stands for election.
#[derive(Debug)]
pub struct Candidate {
    me: WorkerId,
    policy: Policy,
    state: State,
    /// Known leader, and the revision of that knowledge.
    leader: Option<LeaderRecord>,
    seen: Rev,
    said: Option<CandidateRole>,
    resigning: bool,
    chance: u64,
}

impl Candidate {
    /// A candidate that knows nothing yet: give it a [`Event::Tick`]. `chance` is any number that differs from those of
    /// the others.
    #[must_use]
    pub fn new(me: WorkerId, policy: Policy, chance: u64) -> Self {
        Self {
            me,
            policy,
            state: State::Following { look_at: Time::ZERO },
            leader: None,
            seen: Rev::NONE,
            said: None,
            resigning: false,
            chance,
        }
    }

    /// The term that it leads, if that surely still lasts. Nothing need have happened for it to end but time.
    #[must_use]
    pub fn leads(&self, now: Time) -> Option<Epoch> {
        match &self.state {
            State::Leading { term, epoch, .. } if now < term.until() => Some(*epoch),
            _ => None,
        }
    }

    /// True once it has resigned and released its lease.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Resigned)
    }

    /// Time at which to wake it; `None` if only events do.
    #[must_use]
    pub fn wake_at(&self) -> Option<Time> {
        match &self.state {
            State::Following { look_at } => Some(*look_at),
            State::Waiting { until } | State::Yielding { until, .. } => Some(*until),
            State::Granting | State::Resigned => None,
            State::Claiming { term, claim_at } => Some(claim_at.map_or(term.until(), |at| at.min(term.until()))),
            State::Leading { term, keep_at, .. } => Some(keep_at.map_or(term.until(), |at| at.min(term.until()))),
        }
    }

    /// Takes in what happened.
    pub fn on(&mut self, event: Event, now: Time) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Seen { at, leader } => self.see(at, leader, now, &mut effects),
            Event::Granted { sent, lease } => self.granted(HeldLease { lease, sent }, now, &mut effects),
            Event::NotGranted if matches!(self.state, State::Granting) => self.follow(now + self.policy.retry),
            Event::Won { lease, epoch } => self.won(lease, epoch, now, &mut effects),
            Event::NotWon { lease } => self.not_won(lease, now, &mut effects),
            Event::RenewalResult(kept) => self.kept(kept, now, &mut effects),
            Event::Released { lease } => self.released(lease, now, &mut effects),
            Event::Resign => {
                self.resigning = true;
                self.step_down(now, &mut effects);
            }
            Event::NotGranted | Event::Tick => {}
        }
        // Whatever it was that woke us, time has passed.
        self.tick(now, &mut effects);
        self.stand(&mut effects);
        effects
    }

    fn see(&mut self, at: Rev, leader: Option<LeaderRecord>, now: Time, effects: &mut Vec<Effect>) {
        if at < self.seen {
            return;
        }
        self.seen = at;
        self.leader = leader;
        let holder = self.leader.as_ref().map(|leader| (leader.lease, leader.epoch));
        match (&self.state, holder) {
            (State::Following { .. }, None) => {
                self.state = State::Waiting { until: now + self.hesitation() };
            }
            (State::Following { .. } | State::Waiting { .. }, Some(_)) => self.follow(now + self.look_every()),
            (State::Claiming { term, .. }, Some((lease, epoch))) if lease == term.lease.id => {
                self.won(lease, epoch, now, effects);
            }
            (State::Claiming { .. }, Some(_)) => self.step_down(now, effects),
            (State::Leading { epoch, .. }, holder) => {
                // What is known of the time before our term says nothing about it.
                let ours = at.0 < epoch.0 || holder.is_some_and(|(_, other)| other == *epoch);
                if !ours {
                    self.step_down(now, effects);
                }
            }
            _ => {}
        }
    }

    fn granted(&mut self, term: HeldLease, now: Time, effects: &mut Vec<Effect>) {
        match self.state {
            State::Granting if self.leader.is_none() && !self.resigning => {
                self.state = State::Claiming { term, claim_at: None };
                effects.push(Effect::Claim(term.lease.id));
            }
            State::Granting => {
                self.state = State::Claiming { term, claim_at: None };
                self.step_down(now, effects);
            }
            // An answer that nobody waits for.
            _ => effects.push(Effect::Release(term.lease.id)),
        }
    }

    fn won(&mut self, lease: LeaseId, epoch: Epoch, now: Time, effects: &mut Vec<Effect>) {
        match self.state {
            State::Claiming { term, .. } if term.lease.id == lease => {
                if now < term.until() {
                    self.state = State::Leading { term, epoch, keep_at: Some(term.keep_at()) };
                    self.seen = self.seen.max(Rev(epoch.0));
                } else {
                    self.step_down(now, effects);
                }
            }
            // The key is there and its lease is being given back, or it is ours by a look that was faster.
            _ => {}
        }
    }

    fn not_won(&mut self, lease: LeaseId, now: Time, effects: &mut Vec<Effect>) {
        if let State::Claiming { term, claim_at } = &mut self.state
            && term.lease.id == lease
        {
            *claim_at = Some(now + self.policy.retry);
            effects.push(Effect::Look);
        }
    }

    fn kept(&mut self, kept: RenewalResult, now: Time, effects: &mut Vec<Effect>) {
        let State::Leading { term, keep_at, .. } = &mut self.state else { return };
        if term.lease.id != kept.lease {
            return;
        }
        match kept.ttl {
            Some(Duration::ZERO) => self.step_down(now, effects),
            // Too late: the term was over before, and what was over does not begin again.
            Some(_) if now >= term.until() => self.step_down(now, effects),
            Some(ttl) => {
                term.sent = term.sent.max(kept.sent);
                term.lease.ttl = ttl;
                *keep_at = Some(term.keep_at());
                effects.push(Effect::Extend(term.until()));
            }
            None => *keep_at = Some(now + self.policy.retry),
        }
    }

    fn released(&mut self, lease: LeaseId, now: Time, effects: &mut Vec<Effect>) {
        if matches!(self.state, State::Yielding { lease: yielding, .. } if yielding == lease) {
            self.yielded(now, effects);
        }
    }

    fn yielded(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.resigning {
            self.state = State::Resigned;
        } else {
            self.follow(now + self.look_every());
            effects.push(Effect::Look);
        }
    }

    /// Stops leading, or trying to, and gives back what is held.
    fn step_down(&mut self, now: Time, effects: &mut Vec<Effect>) {
        match self.state {
            State::Claiming { term, .. } | State::Leading { term, .. } => {
                let lease = term.lease.id;
                self.state = State::Yielding { lease, until: now + term.lease.ttl };
                effects.push(Effect::Release(lease));
            }
            State::Following { .. } | State::Waiting { .. } if self.resigning => self.state = State::Resigned,
            // A lease that is still to come is given back when it comes.
            _ => {}
        }
    }

    fn tick(&mut self, now: Time, effects: &mut Vec<Effect>) {
        match &mut self.state {
            State::Following { look_at } if now >= *look_at => {
                *look_at = now + self.policy.ttl / 3;
                effects.push(Effect::Look);
            }
            State::Waiting { until } if now >= *until => {
                self.state = State::Granting;
                effects.push(Effect::Grant);
            }
            State::Claiming { term, .. } | State::Leading { term, .. } if now >= term.until() => {
                self.step_down(now, effects);
            }
            State::Claiming { term, claim_at } if claim_at.is_some_and(|at| now >= at) => {
                *claim_at = None;
                effects.push(Effect::Claim(term.lease.id));
            }
            State::Leading { term, keep_at, .. } if keep_at.is_some_and(|at| now >= at) => {
                *keep_at = None;
                effects.push(Effect::Keep(term.lease.id));
            }
            State::Yielding { until, .. } if now >= *until => self.yielded(now, effects),
            _ => {}
        }
    }

    /// Reports a change of the role. Comes first, so that a leader stops before the key is released.
    fn stand(&mut self, effects: &mut Vec<Effect>) {
        let standing = match &self.state {
            State::Leading { term, epoch, .. } => CandidateRole::Leading { epoch: *epoch, until: term.until() },
            // A key that is left from before, or is being given back, does not mean that we lead.
            _ => {
                let other = self.leader.as_ref().filter(|leader| leader.name != self.me);
                CandidateRole::Following(other.map(|leader| (leader.name.clone(), leader.epoch)))
            }
        };
        let same = match (&self.said, &standing) {
            (Some(CandidateRole::Leading { epoch: said, .. }), CandidateRole::Leading { epoch, .. }) => said == epoch,
            (said, standing) => said.as_ref() == Some(standing),
        };
        if !same {
            self.said = Some(standing.clone());
            effects.insert(0, Effect::Stand(standing));
        }
    }

    fn follow(&mut self, look_at: Time) {
        self.state = if self.resigning { State::Resigned } else { State::Following { look_at } };
    }

    fn look_every(&self) -> Duration {
        self.policy.ttl / 3
    }

    /// A pause of up to [`Policy::hesitation`]. SplitMix64 (Steele, Lea, Flood 2014), which needs no more than a counter.
    fn hesitation(&mut self) -> Duration {
        self.chance = self.chance.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.chance;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        self.policy.hesitation.mul_f64((mixed >> 11) as f64 / (1_u64 << 53) as f64)
    }
}
