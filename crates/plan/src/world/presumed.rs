//! Replicas of workers that a new leader has not heard, and the members see: their way to the leader is late, not they.
//!
//! ```text
//!            presume: members see it, records name it
//! Untold ─────────────────────────────────────────────▶ Until(t) ──reports, is lost, starts anew, or t──▶ Over
//! ```
//! What was serving there is presumed to serve still: it is routed to, and nothing takes its place. Nothing else follows
//! from it: no room is given out or taken because of it, no rollout goes on. If it is wrong, gateways find out at once, by
//! the worker's own word that it does not hold the model, and go elsewhere.

use berth_spec::{DeploymentName, RevisionId, Time, WorkerId};

use super::{Liveness, Seats, World};
use crate::Rollout;

/// Whether a worker that was not heard yet is presumed to hold what it held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Presumed {
    /// Nobody said that it lives.
    #[default]
    Untold,
    /// It is, until then.
    Until(Time),
    /// It is not any more, and will not be again.
    Over,
}

impl Seats {
    /// Whether it is presumed to hold what it should, though it has not said so.
    #[must_use]
    pub fn is_presumed(&self) -> bool {
        matches!(self.presumed, Presumed::Until(_))
    }
}

impl World {
    /// The members see a worker. If it has not been heard since the start, what served there is presumed to serve for a
    /// while ([`Policy::presumed_for`](crate::Policy::presumed_for)); said again, nothing changes.
    pub fn presume(&mut self, worker: &WorkerId, now: Time) {
        let until = now + self.policy.presumed_for;
        let Some(seats) = self.workers.get_mut(worker) else { return };
        let unheard = matches!(seats.liveness, Liveness::Unseen | Liveness::Alive) && seats.joined == Time::ZERO;
        if !unheard || seats.presumed != Presumed::Untold || seats.assigned.is_empty() {
            return;
        }
        seats.presumed = Presumed::Until(until);
        self.presumed.insert((until, worker.clone()));
        self.clock = self.clock.max(now);
        self.touch_worker(worker);
    }

    /// It is known better now. Gives what was presumed of it: what its worker says of that is news in any case.
    pub(super) fn end_presumption(&mut self, worker: &WorkerId) -> Vec<DeploymentName> {
        let Some(seats) = self.workers.get_mut(worker) else { return Vec::new() };
        let Presumed::Until(until) = std::mem::replace(&mut seats.presumed, Presumed::Over) else { return Vec::new() };
        let names = seats.assigned.keys().map(|revision| revision.deployment().clone()).collect();
        self.presumed.remove(&(until, worker.clone()));
        self.touch_worker(worker);
        names
    }

    /// Those that have been silent for too long are as lost as those that nobody sees.
    pub(super) fn end_presumptions(&mut self, now: Time) {
        let mut silent = Vec::new();
        while let Some((_, worker)) = self.presumed.first().filter(|(until, _)| *until <= now).cloned() {
            self.end_presumption(&worker);
            if self.workers.get(&worker).is_some_and(|seats| seats.liveness == Liveness::Unseen) {
                silent.push(worker);
            }
        }
        self.hold_unseen(&silent, now);
    }

    /// When a presumption ends by itself, the first of them.
    pub(crate) fn presumed_until(&self) -> Option<Time> {
        self.presumed.first().map(|(until, _)| *until)
    }

    /// Whether a replica answers, known or presumed. Presumed is what had been ready, as far as its rollout says.
    pub(crate) fn answers_at(&self, worker: &WorkerId, revision: &RevisionId, rollout: &Rollout) -> bool {
        self.workers.get(worker).is_some_and(|seats| {
            let served = || seats.is_presumed() && rollout.serving() == Some(revision);
            seats.ready(revision) || served()
        })
    }
}
