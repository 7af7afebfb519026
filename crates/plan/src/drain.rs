//! What leaves: revisions that are not wanted any more, and replicas beyond the target. The worker refuses new requests,
//! finishes those in flight, then unloads; the routes of the same plan no longer name what leaves.

use berth_spec::RevisionId;

use crate::{
    Replica,
    draft::{Draft, Work},
};

/// Takes away what is not wanted, and brings the claims of the rest up to date.
pub(crate) fn step(draft: &mut Draft<'_>, work: &mut Work<'_>) {
    let live: Vec<RevisionId> = match &work.rollout {
        Some(rollout) if work.target > 0 => rollout.live().cloned().collect(),
        _ => Vec::new(),
    };
    draft.drop_replicas(work, |replica| !live.contains(&replica.revision));
    for revision in &live {
        let surplus = surplus(draft, work, revision);
        draft.drop_replicas(work, |replica| surplus.contains(replica));
    }
    draft.reclaim(work);
}

/// The replicas of a revision beyond the target: those that answer stay, then those that can be reached, then the
/// oldest.
fn surplus(draft: &Draft<'_>, work: &Work<'_>, revision: &RevisionId) -> Vec<Replica> {
    let worth = |replica: &Replica| {
        let seats = draft.world.workers.get(&replica.worker);
        let ready = seats.is_some_and(|seats| seats.ready(revision));
        let alive = seats.is_some_and(crate::world::Seats::alive);
        (!ready, !alive, replica.placed, replica.worker.clone())
    };
    let mut replicas: Vec<Replica> = work.replicas.iter().filter(|r| r.revision == *revision).cloned().collect();
    replicas.sort_by_key(worth);
    replicas.split_off(replicas.len().min(work.target as usize))
}
