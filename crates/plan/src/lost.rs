//! Replicas that cannot stay where they are: their worker is gone for good, loading failed there for good, or they may
//! not be there any more.
//!
//! ```text
//! Alive ──lose_worker──→ Lost (routed around, kept) ──returns──→ Alive
//!                              └──grace over──→ dropped, placed elsewhere
//! ```
//! A deployment that nothing answers for does not wait for the grace: see `place`.

use berth_spec::{Time, event::Severity};

use crate::{
    Replica,
    draft::{Draft, Work},
    place,
    world::{Liveness, Seats},
};

/// Takes away what cannot stay.
pub(crate) fn step(draft: &mut Draft<'_>, work: &mut Work<'_>) {
    let name = work.name().clone();
    for replica in work.replicas.clone() {
        let Some(reason) = leaves(draft, work, &replica) else { continue };
        draft.drop_replicas(work, |other| *other == replica);
        draft.tell(
            Severity::Warning,
            "ReplicaLost",
            (&name, Some(&replica.worker)),
            format!("{name} left {}: {reason}", replica.worker),
        );
    }
    let Some(since) = work.replicas.iter().filter_map(|replica| unreachable_since(draft, replica)).min() else {
        return;
    };
    work.wake_at(since + draft.world.policy.lost_grace);
}

fn leaves(draft: &Draft<'_>, work: &Work<'_>, replica: &Replica) -> Option<String> {
    if let Some(since) = unreachable_since(draft, replica) {
        return (draft.now >= since + draft.world.policy.lost_grace).then(|| "the worker did not come back".to_owned());
    }
    let seats = draft.world.workers.get(&replica.worker)?;
    if let Some(failure) = work.entry.failed_there(&replica.revision, &replica.worker, draft.now) {
        return Some(format!("loading failed: {}", failure.message));
    }
    place::forbidden(seats, &work.entry.deployment).map(|rejection| format!("the worker {rejection}"))
}

/// Since when a replica's worker cannot be reached; `None`: it can.
fn unreachable_since(draft: &Draft<'_>, replica: &Replica) -> Option<Time> {
    match draft.world.workers.get(&replica.worker).map(|seats| seats.liveness) {
        Some(Liveness::Alive | Liveness::Detached { .. }) => None,
        Some(Liveness::Lost { since }) => Some(since),
        // Known from a record only: it may still be on its way to us after a restart.
        Some(Liveness::Unseen) | None => Some(draft.world.started.unwrap_or(draft.now)),
    }
}

/// Whether a replica's worker was there and is gone; one that was not seen yet since the start is waited for.
pub(crate) fn is_lost(seats: Option<&Seats>) -> bool {
    seats.is_some_and(|seats| matches!(seats.liveness, Liveness::Lost { .. }))
}
