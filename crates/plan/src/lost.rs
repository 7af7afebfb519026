//! Replicas that cannot stay where they are: their worker is gone or leaves, loading failed there for good, or they may
//! not be there any more, since somebody changed the worker's labels, what it reads, or what the deployment asks for.
//!
//! ```text
//!           worker drains, leaves, is detached too long, or may not hold what it holds ready
//!   Stays ─────────────────────────────────────────────────→ Leaves ──successor ready──→ (gone)
//!     ▲ │                                                      │ on demand, and unused or no room elsewhere
//!     │ └─lose_worker─→ Gone: waited for ──due─→ Gone: replaced └────────────────────→ (gone)
//!     └────returns──────────┴────────────────────────┘ └─successor placed, or on demand and unused─→ (gone)
//! ```
//! What is waited for counts as a copy; what leaves or is to be replaced does not, so that another one is wanted. Due: at
//! once while nothing answers, else after a grace; later where many were lost at once, or its wave has not come. Where
//! requests wait and nothing answers, nothing is waited for.
//!
//! What may not be where it is, and does not answer either, goes at once; what answers waits for its successor: a word about a
//! worker must not be an outage. Of a revision that is being replaced, the next one is the successor, wherever that goes.

use berth_spec::{Time, event::Severity};

use crate::{
    Rejection, Replica,
    draft::{Draft, Work},
    place, scale,
    world::{Liveness, Standing},
};

/// Takes away what cannot stay and needs no successor.
pub(crate) fn step(draft: &mut Draft<'_>, work: &mut Work<'_>) {
    let name = work.name().clone();
    for replica in work.replicas.clone() {
        if is_gone(draft, &replica) {
            continue;
        }
        if work.entry.failed_there(&replica.revision, &replica.worker, draft.now).is_some() {
            // The event of the load has told of it.
            draft.drop_replicas(work, |other| *other == replica);
            continue;
        }
        let Some(rejection) = unanswered_and_forbidden(draft, work, &replica) else { continue };
        draft.drop_replicas(work, |other| *other == replica);
        draft.tell(
            Severity::Warning,
            "ReplicaLost",
            &name,
            Some(&replica.worker),
            format!("{name} left {}: the worker {rejection}", replica.worker),
        );
    }
    let_go_of_unused(draft, work);
    wait(draft, work);
}

/// The reason why a replica that is not ready must leave its worker.
fn unanswered_and_forbidden(draft: &Draft<'_>, work: &Work<'_>, replica: &Replica) -> Option<Rejection> {
    let answers = |rollout| draft.world.answers_at(&replica.worker, &replica.revision, rollout);
    if work.rollout.as_ref().is_some_and(answers) {
        return None;
    }
    forbidden(draft, work, replica)
}

/// The reason why a replica may never be where it is, by what its own revision asks for.
fn forbidden(draft: &Draft<'_>, work: &Work<'_>, replica: &Replica) -> Option<Rejection> {
    let tracked = draft.world.workers.get(&replica.worker)?;
    let revision = work.revisions.get(&replica.revision)?;
    place::forbidden(draft.world, tracked, &work.entry.deployment, revision)
}

/// Decides if a replica may stay on its worker.
pub(crate) fn standing(draft: &Draft<'_>, work: &Work<'_>, replica: &Replica) -> Standing {
    let misplaced = || work.entry.wants(&replica.revision) && forbidden(draft, work, replica).is_some();
    match on_its_worker(draft, replica) {
        Standing::Stays if misplaced() => Standing::Leaves,
        standing => standing,
    }
}

/// Returns true if a replica is out of reach.
pub(crate) fn is_gone(draft: &Draft<'_>, replica: &Replica) -> bool {
    matches!(on_its_worker(draft, replica), Standing::Gone { .. })
}

/// Decides if anything may stay on a replica's worker.
fn on_its_worker(draft: &Draft<'_>, replica: &Replica) -> Standing {
    let started = draft.world.started.unwrap_or(draft.now);
    match draft.world.workers.get(&replica.worker) {
        Some(tracked) => tracked.standing(&draft.world.policy, started, draft.now),
        // Known from a record only: it may still be on its way to us after a restart.
        None => Standing::Gone { since: started },
    }
}

/// Returns true if a replica counts towards the target.
pub(crate) fn counts(draft: &Draft<'_>, work: &Work<'_>, replica: &Replica) -> bool {
    match standing(draft, work, replica) {
        Standing::Stays => true,
        Standing::Leaves => false,
        Standing::Gone { since } => draft.now < due(draft, work, replica, since),
    }
}

/// When a replica that is gone is to be replaced.
fn due(draft: &Draft<'_>, work: &Work<'_>, replica: &Replica, since: Time) -> Time {
    let policy = &draft.world.policy;
    let Some(tracked) = draft.world.workers.get(&replica.worker) else { return since + policy.lost_grace };
    let answers = answers(draft, work);
    // One that was not seen since the start is likely to be on its way.
    let unseen = tracked.liveness == Liveness::Unseen;
    if !answers && !unseen && work.entry.waiting() > 0 {
        return since;
    }
    let grace = if answers || unseen { policy.lost_grace } else { std::time::Duration::ZERO };
    let turn = work.entry.warm.as_ref().map_or(0, |warm| warm.turn);
    (since + grace).max(tracked.held_until) + policy.wave_interval.saturating_mul(turn)
}

/// Until when a worker that was lost may come back with a replica that nobody else has room for.
pub(crate) fn may_return(draft: &Draft<'_>, work: &Work<'_>) -> Option<Time> {
    let until = |replica: &Replica| match on_its_worker(draft, replica) {
        Standing::Gone { since } => Some(since + draft.world.policy.lost_grace),
        Standing::Stays | Standing::Leaves => None,
    };
    work.replicas.iter().filter_map(until).max().filter(|until| *until > draft.now)
}

/// Returns true if any replica of a live revision is ready, or assumed to be.
pub(crate) fn answers(draft: &Draft<'_>, work: &Work<'_>) -> bool {
    work.rollout
        .as_ref()
        .is_some_and(|rollout| rollout.live().any(|revision| work.answering(draft.world, revision) > 0))
}

/// On demand, what nobody used for long goes with its worker: the next request loads it.
fn let_go_of_unused(draft: &mut Draft<'_>, work: &mut Work<'_>) {
    if !may_be_let_go(work) || work.replicas.iter().all(|replica| counts(draft, work, replica)) {
        return;
    }
    // One that has just come was asked for, also where its last use was long ago: whoever had it loaded calls it next.
    let arrived = work.replicas.iter().map(|replica| {
        let tracked = draft.world.workers.get(&replica.worker);
        tracked.and_then(|tracked| tracked.ready_since(&replica.revision)).unwrap_or(replica.placed)
    });
    let unused_at = work.entry.last_used.max(arrived.max().unwrap_or_default()) + draft.world.policy.unused_after;
    if draft.now < unused_at {
        work.wake_at(unused_at);
    } else {
        let_go(draft, work);
    }
}

/// Returns true if the deployment is on demand, idle, and may be loaded again by its next request.
fn may_be_let_go(work: &Work<'_>) -> bool {
    let spec = &work.entry.deployment.spec;
    spec.replicas.on_demand() && !spec.pinned && work.entry.waiting() == 0 && work.entry.in_flight() == 0
}

/// Lets those go that would need a successor, without one. Says whether it did.
pub(crate) fn let_go_without_room(draft: &mut Draft<'_>, work: &mut Work<'_>) -> bool {
    may_be_let_go(work) && let_go(draft, work)
}

fn let_go(draft: &mut Draft<'_>, work: &mut Work<'_>) -> bool {
    let name = work.name().clone();
    let departing: Vec<Replica> =
        work.replicas.iter().filter(|replica| !counts(draft, work, replica)).cloned().collect();
    draft.drop_replicas(work, |replica| departing.contains(replica));
    for replica in &departing {
        draft.tell(
            Severity::Normal,
            "LetGo",
            &name,
            Some(&replica.worker),
            format!("{name} leaves with {}: its next request loads it elsewhere", replica.worker),
        );
    }
    if work.replicas.is_empty() {
        scale::evict_idle(draft, work);
    }
    !departing.is_empty()
}

/// Looks again when what is waited for is to be replaced, and when a worker has been detached for too long.
pub(crate) fn wait(draft: &Draft<'_>, work: &mut Work<'_>) {
    let look = |replica: &Replica| match standing(draft, work, replica) {
        Standing::Gone { since } => Some(due(draft, work, replica, since)),
        Standing::Stays => match draft.world.workers.get(&replica.worker).map(|tracked| tracked.liveness) {
            Some(Liveness::Detached { since }) => Some(since + draft.world.policy.detached_grace),
            _ => None,
        },
        Standing::Leaves => None,
    };
    let first = work.replicas.iter().filter_map(look).filter(|at| *at > draft.now).min();
    if let Some(at) = first {
        work.wake_at(at);
    }
}
