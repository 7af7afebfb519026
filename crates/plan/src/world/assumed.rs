//! Replicas of workers that a new leader has not heard, and the members see: their way to the leader is late, not they.
//!
//! ```text
//!            assume: members see it, records name it
//! Untold ─────────────────────────────────────────────▶ Until(t) ──reports, is lost, starts anew, or t──▶ Over
//! ```
//! What was serving there is assumed to serve still: it is routed to, and nothing takes its place. Nothing else follows
//! from it: no room is given out or taken because of it, no rollout goes on. If it is wrong, gateways find out at once, by
//! the worker's own word that it does not hold the model, and go elsewhere.

use berth_spec::{DeploymentName, RevisionId, Time, WorkerId};

use super::{Liveness, TrackedWorker, World};
use crate::Rollout;

/// Assumption that a worker which has not reported yet holds its assignment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AssumedInventory {
    /// Nobody said that it lives.
    #[default]
    Untold,
    /// Assumed until then.
    Until(Time),
    /// Over for good: it has reported, or the time has passed.
    Over,
}

impl TrackedWorker {
    /// Returns true if it is assumed to hold its assignment before it has reported.
    #[must_use]
    pub fn is_assumed(&self) -> bool {
        matches!(self.assumed, AssumedInventory::Until(_))
    }
}

impl World {
    /// The members see a worker. If it has not been heard since the start, what served there is assumed to serve for a
    /// while ([`Policy::assumed_for`](crate::Policy::assumed_for)); said again, nothing changes.
    pub fn assume(&mut self, worker: &WorkerId, now: Time) {
        let until = now + self.policy.assumed_for;
        let Some(tracked) = self.workers.get_mut(worker) else { return };
        let unreported = matches!(tracked.liveness, Liveness::Unseen | Liveness::Alive) && tracked.joined == Time::ZERO;
        if !unreported || tracked.assumed != AssumedInventory::Untold || tracked.assigned.is_empty() {
            return;
        }
        tracked.assumed = AssumedInventory::Until(until);
        self.assumed.insert((until, worker.clone()));
        self.clock = self.clock.max(now);
        self.touch_worker(worker);
    }

    /// Ends an assumption. Returns the deployments that it was about: the worker's report on them is news in any
    /// case.
    pub(super) fn end_assumption(&mut self, worker: &WorkerId) -> Vec<DeploymentName> {
        let Some(tracked) = self.workers.get_mut(worker) else { return Vec::new() };
        let AssumedInventory::Until(until) = std::mem::replace(&mut tracked.assumed, AssumedInventory::Over) else {
            return Vec::new();
        };
        let names = tracked.assigned.keys().map(|revision| revision.deployment().clone()).collect();
        self.assumed.remove(&(until, worker.clone()));
        self.touch_worker(worker);
        names
    }

    /// Ends the assumptions that have lasted too long: those workers are as lost as those that nobody sees.
    pub(super) fn end_assumptions(&mut self, now: Time) {
        let mut silent = Vec::new();
        while let Some((_, worker)) = self.assumed.first().filter(|(until, _)| *until <= now).cloned() {
            self.end_assumption(&worker);
            if self.workers.get(&worker).is_some_and(|tracked| tracked.liveness == Liveness::Unseen) {
                silent.push(worker);
            }
        }
        self.hold_unseen(&silent, now);
    }

    /// The earliest time at which an assumption ends by itself.
    pub(crate) fn assumed_until(&self) -> Option<Time> {
        self.assumed.first().map(|(until, _)| *until)
    }

    /// Returns true if a replica answers, known or assumed. Only the serving revision is assumed.
    pub(crate) fn answers_at(&self, worker: &WorkerId, revision: &RevisionId, rollout: &Rollout) -> bool {
        self.workers.get(worker).is_some_and(|tracked| {
            let served = || tracked.is_assumed() && rollout.serving() == Some(revision);
            tracked.ready(revision) || served()
        })
    }
}
