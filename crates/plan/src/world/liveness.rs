//! Tracks the workers that can be reached, and what is held back when too many cannot.
//!
//! ```text
//!                      detach_worker                detached_grace
//! Unseen ─set_worker→ Alive ────────→ Detached ─────────────────────→ (planned for as leaving, routed to)
//!                      ▲ │               │
//!            set_worker│ └──lose_worker──┴──→ Lost ──lost_grace──→ (its replicas get places elsewhere)
//!                      └─────────────────────┘  back: little at a time for a while
//!
//! mass loss:  Calm ──more than half of those known alive are lost──→ Held ──back, or the hold is over──→ Calm
//! ```
//! While a loss is held, only what requests wait for is placed anew. After that, and after any other loss, replicas are
//! placed anew in waves, what matters most first: those of later waves may find their worker back.

use berth_spec::{DeploymentName, Time, WorkerId};

use super::{Liveness, TrackedWorker, World};
use crate::Policy;

/// A loss of many workers at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MassLoss {
    /// When the first of them was lost.
    pub since: Time,
    /// Until when only what requests wait for is placed anew.
    pub until: Time,
    /// Workers that were lost.
    pub lost: usize,
    /// Workers that were there before.
    pub known: usize,
}

/// A mass loss and what people have been told of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MassLossHold {
    pub(crate) loss: MassLoss,
    /// People have been told that it began.
    pub(crate) told: bool,
}

impl MassLoss {
    /// For people: what happened, and what is done about it.
    #[must_use]
    pub fn message(&self) -> String {
        let Self { lost, known, until, .. } = self;
        format!(
            "{lost} of {known} workers were lost at once, which looks like a fault of the network: until {until} only \
             what requests wait for is placed elsewhere"
        )
    }
}

impl World {
    /// The controller lost its connection to a worker that the members see: it goes on answering.
    pub fn detach_worker(&mut self, worker: &WorkerId, now: Time) {
        if let Some(tracked) = self.workers.get_mut(worker)
            && tracked.liveness == Liveness::Alive
        {
            tracked.liveness = Liveness::Detached { since: now };
            self.clock = self.clock.max(now);
            self.touch_worker(worker);
            self.landscape_changed(worker);
        }
    }

    /// A worker cannot be reached any more, by anybody.
    pub fn lose_worker(&mut self, worker: &WorkerId, now: Time) {
        if let Some(tracked) = self.workers.get_mut(worker)
            && !matches!(tracked.liveness, Liveness::Lost { .. })
        {
            tracked.liveness = Liveness::Lost { since: now };
            tracked.held_until = Time::ZERO;
            self.end_assumption(worker);
            self.give_turns(worker, now);
            self.clock = self.clock.max(now);
            self.hold_if_many(now);
            self.touch_worker(worker);
            self.landscape_changed(worker);
        }
    }

    /// Returns true if a worker known from records only is given up: nobody has heard or seen it since the start, and
    /// its replicas are waited for no longer.
    #[must_use]
    pub fn is_overdue(&self, worker: &WorkerId, now: Time) -> bool {
        let (Some(tracked), Some(started)) = (self.workers.get(worker), self.started) else { return false };
        let waited = (started + self.policy.lost_grace).max(tracked.held_until);
        tracked.liveness == Liveness::Unseen && !tracked.is_assumed() && now >= waited
    }

    /// The loss of many workers that is being held, if there is one.
    #[must_use]
    pub fn mass_loss(&self, now: Time) -> Option<MassLoss> {
        self.held.map(|held| held.loss).filter(|loss| now < loss.until)
    }

    /// A worker is back: whatever was held because of it is looked at again, and it gets little at first.
    pub(super) fn welcome_back(&mut self, worker: &WorkerId, now: Time) {
        if let Some(tracked) = self.workers.get_mut(worker) {
            tracked.back = Some(now);
            tracked.held_until = Time::ZERO;
        }
        let Some(held) = self.held else { return };
        let lost = self.lost_since(held.loss.since);
        if lost.len() * 100 <= held.loss.known * self.policy.mass_loss_percent as usize {
            self.held = Some(MassLossHold { loss: MassLoss { until: now, ..held.loss }, ..held });
            self.hold_each(&lost, now);
        }
    }

    /// Holds workers known from records that nobody has seen since the start: as if they had been lost with it.
    pub(super) fn hold_if_many_are_unseen(&mut self, now: Time) {
        let silent = |tracked: &TrackedWorker| tracked.liveness == Liveness::Unseen && !tracked.is_assumed();
        let unseen: Vec<WorkerId> = self.with(|tracked| silent(tracked) && !tracked.assigned.is_empty());
        self.hold_unseen(&unseen, now);
    }

    /// Holds these workers as if they had been lost with the start.
    pub(super) fn hold_unseen(&mut self, unseen: &[WorkerId], now: Time) {
        for worker in unseen {
            self.give_turns(worker, now);
        }
        self.hold(unseen, self.workers.len(), now, now);
    }

    /// Holds what is lost if it is too much to be anything but a fault of the network.
    fn hold_if_many(&mut self, now: Time) {
        // What was held once is not held again: that it is gone is known by now.
        let over = self.held.map(|held| held.loss.until).filter(|until| *until <= now);
        let window = u64::try_from(self.policy.mass_loss_window.as_nanos()).unwrap_or(u64::MAX);
        let lost = self.lost_since(over.unwrap_or(self.held_before).max(Time(now.0.saturating_sub(window))));
        let here = self.workers.values().filter(|tracked| tracked.answers() || tracked.is_assumed()).count();
        let first = lost.iter().filter_map(|worker| self.workers.get(worker)?.lost_at()).min().unwrap_or(now);
        self.hold(&lost, here + lost.len(), first, now);
    }

    fn hold(&mut self, lost: &[WorkerId], known: usize, since: Time, now: Time) {
        if lost.len() < 2 || lost.len() * 100 <= known * self.policy.mass_loss_percent as usize {
            return;
        }
        let until = now + self.policy.mass_loss_hold;
        let loss = MassLoss { since, until, lost: lost.len(), known };
        let held = match self.held.filter(|held| now < held.loss.until) {
            Some(held) => {
                MassLossHold { loss: MassLoss { since: held.loss.since, until: held.loss.until, ..loss }, ..held }
            }
            None => MassLossHold { loss, told: false },
        };
        self.held = Some(held);
        self.hold_each(lost, held.loss.until);
    }

    fn hold_each(&mut self, lost: &[WorkerId], until: Time) {
        for worker in lost {
            // With each further loss only what is new: of 600 lost workers the last one must not touch all.
            if let Some(tracked) = self.workers.get_mut(worker).filter(|tracked| tracked.held_until != until) {
                tracked.held_until = until;
                self.touch_worker(worker);
            }
        }
    }

    /// The workers that were lost since `since`, those aside that had said that they leave.
    fn lost_since(&self, since: Time) -> Vec<WorkerId> {
        self.with(|tracked| !tracked.leaves() && tracked.lost_at().is_some_and(|at| at >= since))
    }

    fn with(&self, is: impl Fn(&TrackedWorker) -> bool) -> Vec<WorkerId> {
        self.workers.iter().filter(|(_, tracked)| is(tracked)).map(|(id, _)| id.clone()).collect()
    }

    /// Puts what sat on a lost worker into waves, what matters most first.
    fn give_turns(&mut self, worker: &WorkerId, now: Time) {
        let here = self.workers.values().filter(|tracked| tracked.alive()).count();
        let Some(tracked) = self.workers.get(worker) else { return };
        let names: Vec<DeploymentName> =
            tracked.order.iter().rev().map(|rank| rank.revision.deployment().clone()).collect();
        for name in names {
            let turn = self.waves.next(&self.policy, here, now);
            if let Some(warm) = self.entries.get_mut(&name).and_then(|entry| entry.warm.as_mut()) {
                warm.turn = turn;
            }
        }
    }
}

/// Gives out places in waves.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Waves {
    /// When the first of them was given out.
    from: Time,
    given: u64,
}

impl Waves {
    /// The wave of the next replica: `policy.wave` for each worker that is left go together.
    fn next(&mut self, policy: &Policy, workers: usize, now: Time) -> u32 {
        let together = u64::from(policy.wave.max(1)) * workers.max(1) as u64;
        let waves = u32::try_from(self.given / together).unwrap_or(u32::MAX);
        if now >= self.from + policy.wave_interval.saturating_mul(waves.saturating_add(1)) {
            *self = Self { from: now, given: 0 };
        }
        let turn = u32::try_from(self.given / together).unwrap_or(u32::MAX);
        self.given += 1;
        turn
    }
}
