//! Chooses the number of replicas: between `min` and `max` by demand and idleness.
//!
//! Residents have `min`. On demand: one when a request waits, none when nobody came for `idleAfter`, else as it is. More
//! than that by load and regular use, as `world/copies.rs` has judged: that is the goal of a plan, which it may miss.

use std::time::Duration;

use berth_spec::{Event, Residency, RevisionId, Time, event::Severity};

use crate::{
    Replica, Rollout,
    draft::{Draft, Work},
    drain, lost, place,
    world::Verdict,
};

/// Sets the number of replicas that a deployment should have.
pub(crate) fn step(draft: &mut Draft<'_>, work: &mut Work<'_>) {
    let deployment = &work.entry.deployment;
    let replicas = deployment.spec.replicas;
    work.target = if deployment.deleting || replicas.max == 0 {
        0
    } else {
        let least = if replicas.min > 0 { replicas.min } else { on_demand(draft, work) };
        if least > 0 { work.goal.clamp(least, replicas.max.max(least)) } else { 0 }
    };
    announce(draft, work);
    if work.target > 0 || deployment.deleting || replicas.max == 0 {
        // What hindered the last plan is found again if it still does; where nothing is wanted, nothing hinders.
        work.verdict = None;
    } else {
        hindrance(draft, work);
    }
}

/// Tells that a deployment gets more copies than it had, since load or regular use asks for them. Told of what is done:
/// what there is no room for is asked for again and again.
pub(crate) fn tell_grown(draft: &Draft<'_>, work: &Work<'_>, events: &mut Vec<Event>) {
    if work.goal <= work.least() {
        return;
    }
    let Some(Rollout::Stable { revision }) = &work.rollout else { return };
    let name = work.name();
    let before = work.entry.record().map_or(0, |record| record.of(revision).count());
    // What only takes the place of a copy that leaves is none more.
    let counts = |replica: &&Replica| replica.revision == *revision && lost::counts(draft, work, replica);
    let after = u32::try_from(work.replicas.iter().filter(counts).count()).unwrap_or(u32::MAX);
    if after as usize <= before || after <= work.least() {
        return;
    }
    let used = draft.world.used(name, draft.now);
    let message = format!(
        "{name}: {after} copies rather than {before}, with {:.0} requests per minute and {} in flight",
        used.per_minute, used.in_flight
    );
    let (at, deployment) = (draft.now, Some(name.clone()));
    events.push(Event {
        at,
        severity: Severity::Normal,
        reason: "ScaledUp",
        message,
        deployment,
        worker: None,
        function: None,
    });
}

/// Tells that there are to be fewer copies, and has them looked at again when that may change.
fn announce(draft: &mut Draft<'_>, work: &mut Work<'_>) {
    let Some(look) = work.entry.look() else { return };
    // One that is over was judged already, or cannot be: nothing is left to judge.
    if let Some(at) = look.filter(|at| *at > draft.now) {
        work.wake_at(at);
    }
    let Some(Rollout::Stable { revision }) = &work.rollout else { return };
    let of = work.replicas.iter().filter(|replica| replica.revision == *revision && lost::counts(draft, work, replica));
    let have = u32::try_from(of.count()).unwrap_or(u32::MAX);
    // One that is out of its region stays until one at home answers: that is no scaling.
    let by_region = !work.entry.deployment.spec.regions.is_empty();
    let too_many = if by_region { have.min(work.ready(draft.world, revision)) } else { have };
    let (name, target) = (work.name().clone(), work.target);
    if target > 0 && target < too_many {
        let message = format!("{name}: {target} copies rather than {have} are enough");
        draft.tell(Severity::Normal, "ScaledDown", &name, None, message);
    }
}

/// Replicas that an extra copy may push out.
pub(crate) fn eviction_scope(draft: &Draft<'_>, work: &Work<'_>, extra: Extra) -> EvictionScope {
    match extra {
        Extra::No if work.entry.waiting() > 0 || work.entry.deployment.spec.replicas.min > 0 => EvictionScope::Anything,
        Extra::No if work.entry.record().is_none() => EvictionScope::Nothing,
        Extra::No => EvictionScope::UnusedSince(work.entry.last_used),
        Extra::Yes if work.entry.copies_for_load() => {
            let settle = draft.world.policy.copies.settle;
            EvictionScope::UnusedSince(Time(
                draft.now.0.saturating_sub(u64::try_from(settle.as_nanos()).unwrap_or(u64::MAX)),
            ))
        }
        Extra::Yes => EvictionScope::Nothing,
    }
}

/// Ways to do without a replica that there is no room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MakesDo {
    /// Cannot do without.
    No,
    /// Asks again later, if it still wants it then.
    Without,
    /// Nobody uses it, so that those go that it was to take the place of.
    LetsGo,
}

/// Lets the replicas of an on-demand deployment go, all of them, though it might be used again.
pub(crate) fn evict_idle(draft: &mut Draft<'_>, work: &mut Work<'_>) {
    draft.drop_replicas(work, |_| true);
    (work.target, work.unplaced, work.idle_evicted) = (0, false, true);
    hindrance(draft, work);
}

/// Makes do without a replica of a revision if that can be.
pub(crate) fn make_do(draft: &mut Draft<'_>, work: &mut Work<'_>, revision: &RevisionId, extra: Extra) -> MakesDo {
    if extra == Extra::Yes || work.preloads() {
        let have = work.replicas.iter().filter(|r| r.revision == *revision && lost::counts(draft, work, r)).count();
        drain::settle_for(draft, work, u32::try_from(have).unwrap_or(u32::MAX));
        if work.target == 0 {
            // Nothing is wanted any more: the obstacle is what the next plan will find, which wants nothing either.
            work.verdict = work.entry.last_verdict(draft.now).cloned();
            hindrance(draft, work);
        }
        return MakesDo::Without;
    }
    if lost::let_go_without_room(draft, work) { MakesDo::LetsGo } else { MakesDo::No }
}

/// Marks replicas beyond the least that there must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Extra {
    /// No more replicas than the deployment must have.
    No,
    /// Load or regular use asks for it.
    Yes,
}

/// Replicas that may be evicted for another one, beside the rule of priorities.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum EvictionScope {
    /// Whatever its priority reaches.
    #[default]
    Anything,
    /// Only what is on demand and was not used since.
    UnusedSince(Time),
    Nothing,
}

/// Sets the obstacle of an on-demand deployment before anybody asks for it: that it can never fit, or the last answer
/// to a request.
fn hindrance(draft: &Draft<'_>, work: &mut Work<'_>) {
    if let Some(never) = place::never(draft.world, work.entry) {
        work.verdict = Some(never);
        return;
    }
    match work.verdict.as_ref().map(Verdict::ends) {
        Some(Some(until)) if until > draft.now => work.wake_at(until),
        Some(Some(_)) => {}
        Some(None) | None => work.verdict = None,
    }
}

fn on_demand(draft: &mut Draft<'_>, work: &mut Work<'_>) -> u32 {
    if work.entry.waiting() > 0 {
        return 1;
    }
    if work.replicas.is_empty() {
        // A goal without any: to be loaded before anybody asks.
        return work.goal.min(1);
    }
    let name = work.name().clone();
    if work.entry.warm.as_ref().is_some_and(|warm| warm.paged_out.is_some()) {
        draft.tell(Severity::Normal, "PagedOut", &name, None, format!("{name} was paged out on request"));
        return 0;
    }
    let Some(idle_after) = work.entry.deployment.spec.idle_after else { return 1 };
    match idle_since(draft, work) {
        Some(since) if draft.now >= since + idle_after => {
            let idle = Duration::from_secs(draft.now.since(since).as_secs());
            draft.tell(Severity::Normal, "ScaledToZero", &name, None, format!("{name} was not used for {idle:?}"));
            0
        }
        Some(since) => {
            work.wake_at(since + idle_after);
            1
        }
        None => 1,
    }
}

/// Since when nobody uses it: the last request, or the moment when what serves was ready for one. `None` while that
/// loads, or answers. A revision on its way does not count: whoever comes next will get it.
fn idle_since(draft: &Draft<'_>, work: &Work<'_>) -> Option<Time> {
    if work.entry.warm.as_ref().is_some_and(|warm| warm.in_flight() > 0) {
        return None;
    }
    let rollout = work.rollout.as_ref()?;
    // Either revision of a canary serves where the other is loaded nowhere.
    let serving = if matches!(rollout, Rollout::Canary { .. }) { 2 } else { 1 };
    let serves = |replica: &&Replica| rollout.live().take(serving).any(|revision| *revision == replica.revision);
    let ready_since = work.replicas.iter().filter(serves).filter_map(|replica| {
        match draft.world.workers.get(&replica.worker)?.inventory.get(&replica.revision)? {
            Residency::Ready(ready) => Some(ready.since.max(replica.placed)),
            _ => None,
        }
    });
    // Of several the first: which of them are left is decided later, and must not turn what was decided here.
    Some(work.entry.last_used.max(ready_since.min()?))
}
