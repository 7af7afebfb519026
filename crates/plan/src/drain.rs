//! Removes revisions that are not wanted any more, and replicas beyond the target. The worker refuses new requests,
//! finishes those in flight, then unloads; the routes of the same plan no longer name what leaves.

use std::cmp::Reverse;

use berth_spec::{RevisionId, event::Severity};

use crate::{
    Replica,
    draft::{Draft, Work},
    lost, place,
    world::Standing,
};

/// Takes away what is not wanted, and brings the claims of the rest up to date.
pub(crate) fn step(draft: &mut Draft<'_>, work: &mut Work<'_>) {
    let live: Vec<RevisionId> = match &work.rollout {
        Some(rollout) if work.target > 0 => rollout.live().cloned().collect(),
        _ => Vec::new(),
    };
    draft.drop_replicas(work, |replica| !live.contains(&replica.revision));
    for revision in &live {
        shed(draft, work, revision);
    }
    draft.reclaim(work);
}

/// Makes do with fewer copies than load and use ask for.
pub(crate) fn settle_for(draft: &mut Draft<'_>, work: &mut Work<'_>, goal: u32) {
    draft.settle_for(work, goal);
    let live: Vec<RevisionId> = work.rollout.iter().flat_map(|rollout| rollout.live().cloned()).collect();
    for revision in live {
        shed(draft, work, &revision);
    }
}

/// Takes away the replicas of a revision beyond the target, in the order of [`best_first`]. What leaves its worker stays until as many
/// answer elsewhere.
pub(crate) fn shed(draft: &mut Draft<'_>, work: &mut Work<'_>, revision: &RevisionId) {
    let surplus = surplus(draft, work, revision);
    let name = work.name();
    for replica in &surplus {
        let (severity, reason, why) = match lost::standing(draft, work, replica) {
            Standing::Stays => continue,
            Standing::Leaves => (Severity::Normal, "HandedOver", "what takes its place is ready"),
            Standing::Gone { .. } => (Severity::Warning, "ReplicaLost", "the worker did not come back"),
        };
        let message = format!("{name} left {}: {why}", replica.worker);
        draft.tell(severity, reason, name, Some(&replica.worker), message);
    }
    draft.drop_replicas(work, |replica| surplus.contains(replica));
}

/// Replicas to remove: misplaced ones, once as many as are wanted answer where they should.
fn surplus(draft: &Draft<'_>, work: &Work<'_>, revision: &RevisionId) -> Vec<Replica> {
    let all: Vec<&Replica> = work.replicas.iter().filter(|replica| replica.revision == *revision).collect();
    let target = work.target_of(revision);
    if all.len() <= target as usize && work.entry.deployment.spec.regions.is_empty() {
        return Vec::new(); // nearly always
    }
    let counting = all.iter().copied().filter(|replica| lost::counts(draft, work, replica)).collect();
    let kept = place::homes(draft, work, revision, target, &best_first(draft, counting)).kept;
    let (kept, others): (Vec<&Replica>, Vec<&Replica>) =
        all.into_iter().partition(|replica| kept.contains(&replica.worker));
    let target = target as usize;
    let (mut placed, mut answer) = (kept.len(), kept.iter().filter(|replica| ready(draft, replica)).count());
    let mut surplus = Vec::new();
    for replica in best_first(draft, others) {
        // What does not answer is of use only while nothing takes its place.
        let of_use = if ready(draft, replica) { answer < target } else { placed < target };
        if of_use {
            placed += 1;
            answer += 1;
        } else {
            surplus.push(replica.clone());
        }
    }
    surplus
}

/// Replicas that answer first, then those that can be reached; then those on the workers of which the least is claimed, then
/// those with the most models, then the oldest. So when there are to be fewer, a replica on the fullest worker goes
/// first; of equally full workers, one on the worker with the fewest models; of those, the one that came last. Claims are
/// those of before this plan: which of them are left must not depend on what else it decides.
pub(crate) fn best_first<'a>(draft: &Draft<'_>, mut replicas: Vec<&'a Replica>) -> Vec<&'a Replica> {
    if replicas.len() < 2 {
        return replicas; // nearly always
    }
    let full = |replica: &Replica| {
        let tracked = draft.world.workers.get(&replica.worker);
        tracked.map_or((0, Reverse(0)), |tracked| (tracked.utilization_percent(), Reverse(tracked.assigned.len())))
    };
    let key =
        |replica: &&Replica| (!ready(draft, replica), lost::is_gone(draft, replica), full(replica), replica.placed);
    replicas.sort_by(|a, b| (key(a), &a.worker).cmp(&(key(b), &b.worker)));
    replicas
}

fn ready(draft: &Draft<'_>, replica: &Replica) -> bool {
    draft.world.workers.get(&replica.worker).is_some_and(|tracked| tracked.ready(&replica.revision))
}
