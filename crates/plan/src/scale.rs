//! How many replicas: between `min` and `max` by demand and idleness.
//!
//! Residents have `min`. On demand: one when a request waits, none when nobody came for `idleAfter`, else as it is.

use std::time::Duration;

use berth_spec::{Residency, Time, event::Severity};

use crate::{
    draft::{Draft, Work},
    place,
    world::Verdict,
};

/// Sets the target.
pub(crate) fn step(draft: &mut Draft<'_>, work: &mut Work<'_>) {
    let deployment = &work.entry.deployment;
    let replicas = deployment.spec.replicas;
    work.target = if deployment.deleting || replicas.max == 0 {
        0
    } else if replicas.min > 0 {
        replicas.min
    } else {
        on_demand(draft, work)
    };
    if work.target > 0 || deployment.deleting || replicas.max == 0 {
        // What hindered the last plan is found again if it still does; where nothing is wanted, nothing hinders.
        work.verdict = None;
    } else {
        hindrance(draft, work);
    }
}

/// What is known to stand in the way of an on-demand deployment before anybody asks for it: that it can never fit, or
/// what the last one who asked was told.
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
        return 0;
    }
    let name = work.name().clone();
    if work.entry.warm.as_ref().is_some_and(|warm| warm.paged_out) {
        draft.tell(Severity::Normal, "PagedOut", (&name, None), format!("{name} was paged out on request"));
        return 0;
    }
    let Some(idle_after) = work.entry.deployment.spec.idle_after else { return 1 };
    match idle_since(draft, work) {
        Some(since) if draft.now >= since + idle_after => {
            let idle = Duration::from_secs(draft.now.since(since).as_secs());
            draft.tell(Severity::Normal, "ScaledToZero", (&name, None), format!("{name} was not used for {idle:?}"));
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
    let serves = work.rollout.as_ref()?.live().next()?;
    let ready_since = work.replicas.iter().filter(|replica| replica.revision == *serves).filter_map(|replica| {
        match draft.world.workers.get(&replica.worker)?.inventory.get(serves)? {
            Residency::Ready(ready) => Some(ready.since.max(replica.placed)),
            _ => None,
        }
    });
    // Of several the first: which of them are left is decided later, and must not turn what was decided here.
    Some(work.entry.last_used.max(ready_since.min()?))
}
