//! Chooses the number of copies of a deployment by its load and use. Judged when something is heard of it and when it said
//! to be looked at again, and remembered as a goal; plans make it so, or let it go where there is no room.
//!
//! ```text
//!             used now and also some while ago, and there is room
//!   1 copy ─────────────────────────────────────────────────────────▶ 2
//!   n ──load for m > n, and the last ones asked for have come───────▶ m (at once)
//!   n ──load for less than n − 1, less a third, for `settle`────────▶ n − 1 (2 → 1: and unused for a share of the
//!   n ──no room, or its room was needed─────────────────────────────▶ what it has       age at which models leave)
//! ```

use std::time::Duration;

use berth_spec::{DeploymentName, RevisionId, Time, deployment::SecondCopy};

use super::{
    EvictionClass, TrackedDeployment, World,
    rate::{Level, Marks, Rate},
};
use crate::{Rollout, policy};

/// Age of the last use up to which a deployment counts as in use: gateways report each second.
const NOW: Duration = Duration::from_secs(60);

/// The longest that a second copy stays unused: what is used on working days keeps it over a break, and not over a night.
const MAX_UNUSED_TIME: Duration = Duration::from_secs(10 * 3600);

/// Load must be below this share of what one copy less would carry. Closer to 1, noise loads and unloads.
const HYSTERESIS: f32 = 2.0 / 3.0;

/// The copies that a deployment should have. Kept small: most are never scaled.
#[derive(Debug, Clone, Default)]
pub(crate) struct Copies {
    /// Number of copies; 0: as few as may be.
    pub(crate) goal: u32,
    /// The reason, for one that may have several and is used.
    pub(crate) scaling: Option<Box<Scaling>>,
}

/// Load and use of a deployment that may have several copies, from which its goal follows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scaling {
    /// Requests in flight.
    pub(crate) busy: Level,
    /// Minutes in which it was used.
    pub(crate) marks: Marks,
    /// The reason why the goal is above the least.
    pub(crate) reason: Reason,
    /// When the goal last moved.
    pub(crate) scaled_at: Time,
    /// There was no room: not to be tried before.
    pub(crate) not_before: Time,
    /// Since when the load has been low.
    quiet_since: Option<Time>,
    /// Time at which the goal is judged again without an event.
    pub(crate) look: Option<Time>,
}

/// The reason why there are more copies than must be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Reason {
    /// In use now and some while ago, and there is room.
    #[default]
    RegularUse,
    Load,
}

/// Load, bounds and replicas at the time of one decision on the goal.
#[derive(Debug, Clone, Copy)]
struct GoalInputs {
    now: Time,
    least: u32,
    most: u32,
    goal: u32,
    /// Replicas of the revision that serves that are ready.
    ready: u32,
    /// Replicas of it that are neither ready nor failed.
    coming: u32,
    quick: f32,
    slow: f32,
    busy: f32,
    target_rate: f32,
    target_busy: f32,
}

impl GoalInputs {
    /// Copies that the load now asks for.
    fn asked(&self) -> u32 {
        copies_for(self.quick, self.target_rate).max(copies_for(self.busy, self.target_busy))
    }

    /// The load below which one copy less is enough.
    fn low(&self) -> (f32, f32) {
        let less = self.goal.saturating_sub(1) as f32 * HYSTERESIS;
        (less * self.target_rate, less * self.target_busy)
    }

    fn is_low(&self) -> bool {
        let (rate, busy) = self.low();
        self.slow.max(self.quick) <= rate && self.busy <= busy
    }
}

/// Room for copies that nobody waits for. Computing it takes a look at every worker, and each deployment in regular
/// use asks for it, so it is kept for a second.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Room {
    at: Time,
    /// The unclaimed share of all memory.
    free_percent: u64,
    lru_age: Option<Duration>,
}

/// As many as carry `load`, each at most `each`.
fn copies_for(load: f32, each: f32) -> u32 {
    // A thousandth of slack: averages are not exact.
    (load / each.max(f32::MIN_POSITIVE) - 0.001).ceil().clamp(0.0, 10_000.0) as u32
}

impl World {
    /// Brings a deployment's goal up to date, and has it planned for if that moves.
    pub(super) fn judge(&mut self, name: &DeploymentName, now: Time) {
        self.look_around(now);
        let Some(entry) = self.entries.get(name) else { return };
        let (Some(seen), Some(scaling)) = (self.seen(entry, now), entry.scaling()) else {
            // Nothing to judge: nobody needs to look at it.
            let warm = self.entries.get_mut(name).and_then(|entry| entry.warm.as_mut());
            if let Some(scaling) = warm.and_then(|warm| warm.copies.scaling.as_mut()) {
                scaling.look = None;
            }
            return;
        };
        let goal = self.goal(entry, scaling, &seen);
        let quiet_since = seen.is_low().then(|| scaling.quiet_since.unwrap_or(now));
        let moved = goal.0 != seen.goal;
        let scaled_at = if moved { now } else { scaling.scaled_at };
        let look = self.look(
            entry,
            &Scaling { quiet_since, scaled_at, ..scaling.clone() },
            &GoalInputs { goal: goal.0, ..seen },
        );
        let least = seen.least;
        self.rerank(name, |entry| {
            let copies = &mut entry.warm_mut().copies;
            copies.goal = if goal.0 > least { goal.0 } else { 0 };
            if let Some(scaling) = &mut copies.scaling {
                (scaling.quiet_since, scaling.scaled_at, scaling.look) = (quiet_since, scaled_at, look);
                scaling.reason = goal.1;
            }
        });
        let known = self.entries.get(name).and_then(|entry| entry.warm.as_ref()).and_then(|warm| warm.wake);
        let at = if moved { Some(now) } else { look };
        if let Some(at) = at.filter(|at| known.is_none_or(|known| *at < known)) {
            self.set_wake(name, Some(at));
        }
    }

    fn seen(&self, entry: &TrackedDeployment, now: Time) -> Option<GoalInputs> {
        let replicas = entry.deployment.spec.replicas;
        let least = replicas.min.max(1);
        let record = entry.record()?;
        // In the midst of a rollout copies come and go for other reasons; a canary may last for days.
        let (Rollout::Stable { revision }
        | Rollout::Canary { from: revision, .. }
        | Rollout::Stuck { serving: revision, .. }) = &record.rollout
        else {
            return None;
        };
        if replicas.max <= least || entry.deployment.deleting {
            return None;
        }
        if matches!(record.rollout, Rollout::Canary { .. }) && record.replicas.is_empty() {
            return None; // remembered for its shares alone: it has no more copies than any other that is not loaded
        }
        let there = record.of(revision).filter_map(|replica| self.workers.get(&replica.worker));
        let (mut ready, mut coming) = (0, 0);
        for tracked in there.filter(|tracked| tracked.answers()) {
            ready += u32::from(tracked.ready(revision));
            coming += u32::from(tracked.coming.contains(revision));
        }
        let warm = entry.warm.as_ref()?;
        let policy = &self.policy.copies;
        let scaling = entry.deployment.spec.scaling;
        let most_in_one = entry.deployment.spec.concurrency.max.map(|max| (max as f32 * 0.75).max(1.0));
        let target_busy = policy.target_concurrency.min(most_in_one.unwrap_or(f32::MAX));
        Some(GoalInputs {
            now,
            least,
            most: replicas.max,
            goal: entry.goal().clamp(least, replicas.max),
            ready,
            coming,
            quick: warm.uses.values().map(|each| each.rate.quick(now)).sum(),
            slow: warm.uses.values().map(|each| each.rate.slow(now)).sum(),
            busy: warm.copies.scaling.as_ref()?.busy.get(now),
            target_rate: scaling.target_rate.unwrap_or(policy.target_rate),
            target_busy: scaling.target_concurrency.unwrap_or(target_busy),
        })
    }

    /// Number of copies that there should be, and the reason.
    fn goal(&self, entry: &TrackedDeployment, scaling: &Scaling, seen: &GoalInputs) -> (u32, Reason) {
        let may_grow = seen.coming == 0 && seen.now >= scaling.not_before && seen.goal < seen.most;
        let asked = seen.asked().min(seen.most);
        if may_grow && asked > seen.goal {
            return (asked, Reason::Load);
        }
        if may_grow && seen.goal == 1 && seen.ready == 1 && self.regular(entry, scaling, seen.now) {
            return (2, Reason::RegularUse);
        }
        if seen.goal > seen.least && self.shrinks_at(entry, scaling, seen).is_some_and(|at| at <= seen.now) {
            return (seen.goal - 1, scaling.reason);
        }
        (seen.goal, scaling.reason)
    }

    /// Returns true if it is used now and was used some while ago, and there is room for a copy that nobody waits
    /// for.
    fn regular(&self, entry: &TrackedDeployment, scaling: &Scaling, now: Time) -> bool {
        let policy = &self.policy.copies;
        entry.deployment.spec.scaling.second_copy == SecondCopy::InRegularUse
            && (now.since(entry.last_used) < NOW || entry.in_flight() > 0)
            && scaling.marks.any(now, policy.regular_after, policy.regular_within)
            && (self.room.free_percent >= policy.reserve_percent
                || self.room.lru_age.is_some_and(|age| age >= policy.reserve_age))
    }

    /// When one copy may leave, as far as load that stays as it is goes; `None`: not while it does.
    fn shrinks_at(&self, entry: &TrackedDeployment, scaling: &Scaling, seen: &GoalInputs) -> Option<Time> {
        let policy = &self.policy.copies;
        let quiet = scaling.quiet_since.filter(|_| seen.is_low())?;
        let at = quiet.max(scaling.scaled_at) + policy.settle;
        if seen.goal != 2 {
            return Some(at);
        }
        Some(at.max(entry.last_used + self.second_stays(policy)))
    }

    /// Time that a second copy stays unused: a share of the age at which models are evicted.
    fn second_stays(&self, policy: &policy::Copies) -> Duration {
        let age = self.room.lru_age.unwrap_or(MAX_UNUSED_TIME);
        (age * policy.age_percent / 100).clamp(policy.settle, MAX_UNUSED_TIME)
    }

    /// The time at which the goal may change without a new event.
    fn look(&self, entry: &TrackedDeployment, scaling: &Scaling, seen: &GoalInputs) -> Option<Time> {
        let soon = |at: Time| at.max(seen.now + Duration::from_secs(1));
        let grow =
            (seen.asked() > seen.goal && seen.goal < seen.most && seen.coming == 0).then(|| soon(scaling.not_before));
        let shrink = (seen.goal > seen.least).then(|| {
            if let Some(at) = self.shrinks_at(entry, scaling, seen) {
                return Some(soon(at));
            }
            let (rate, busy) = seen.low();
            let falls = scaling.busy.falls_in(busy, seen.now)?;
            Some(soon(seen.now + falls.max(Rate::fades_in(seen.slow.max(seen.quick), rate))))
        });
        grow.into_iter().chain(shrink.flatten()).min()
    }

    /// A plan could not do all that was asked for: it asks again later.
    pub(super) fn settle_for(&mut self, name: &DeploymentName, goal: u32, now: Time) {
        let retry = now + self.policy.copies.retry;
        self.rerank(name, |entry| {
            let least = entry.deployment.spec.replicas.min.max(1);
            let copies = &mut entry.warm_mut().copies;
            copies.goal = if goal > least { goal } else { 0 };
            if let Some(scaling) = &mut copies.scaling {
                scaling.not_before = retry;
            }
        });
    }

    /// Idle time of the next on-demand victim: the age at which models are evicted. `None`: nothing that may leave
    /// was ever used.
    #[must_use]
    pub fn lru_age(&self, now: Time) -> Option<Duration> {
        let alive = self.workers.values().filter(|tracked| tracked.alive());
        let first = alive.filter_map(|tracked| {
            let used =
                |class: EvictionClass| tracked.order.iter().find(move |r| r.class == class && r.last_used > Time::ZERO);
            used(EvictionClass::OnDemand).or_else(|| used(EvictionClass::Surplus))
        });
        first.map(|rank| rank.last_used).min().map(|at| now.since(at))
    }

    fn look_around(&mut self, now: Time) {
        if now < self.room.at + Duration::from_secs(1) {
            return;
        }
        let (all, used) = self.memory();
        let free_percent = (all - used).0.saturating_mul(100) / all.0.max(1);
        self.room = Room { at: now, free_percent, lru_age: self.lru_age(now) };
    }

    /// The copies that a stored record has are what is wanted until load says otherwise: a new leader moves nothing.
    pub(super) fn recall_goal(&mut self, name: &DeploymentName) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        let Some(record) = entry.record() else { return };
        let of = |revision: &RevisionId| record.of(revision).count();
        let copies = record.rollout.live().map(of).max().unwrap_or(0);
        let replicas = entry.deployment.spec.replicas;
        let copies = u32::try_from(copies).unwrap_or(u32::MAX).min(replicas.max);
        if copies > replicas.min.max(1) {
            self.rerank(name, |entry| {
                let known = &mut entry.warm_mut().copies;
                known.goal = copies;
                known.scaling.get_or_insert_default();
            });
        }
    }
}

impl TrackedDeployment {
    /// The time at which its goal may change without a new event; `None`: it has no goal.
    pub(crate) fn look(&self) -> Option<Option<Time>> {
        self.scaling().map(|scaling| scaling.look)
    }

    /// Returns true if its copies are for load, rather than for regular use.
    pub(crate) fn copies_for_load(&self) -> bool {
        self.scaling().is_some_and(|scaling| scaling.reason == Reason::Load)
    }

    fn scaling(&self) -> Option<&Scaling> {
        self.warm.as_ref()?.copies.scaling.as_deref()
    }
}
