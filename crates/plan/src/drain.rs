//! What leaves: revisions that are not wanted any more, and replicas beyond the target. The worker refuses new requests,
//! finishes those in flight, then unloads; the routes of the same plan no longer name what leaves.

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

/// Takes away the replicas of a revision beyond the target: those that answer stay, then those that can be reached, then
/// the oldest. What leaves its worker stays until as many answer elsewhere.
pub(crate) fn shed(draft: &mut Draft<'_>, work: &mut Work<'_>, revision: &RevisionId) {
    let surplus = surplus(draft, work, revision);
    let name = work.name().clone();
    for replica in &surplus {
        let (severity, reason, why) = match lost::standing(draft, replica) {
            Standing::Stays => continue,
            Standing::Leaves => (Severity::Normal, "HandedOver", "what takes its place is ready"),
            Standing::Gone { .. } => (Severity::Warning, "ReplicaLost", "the worker did not come back"),
        };
        let message = format!("{name} left {}: {why}", replica.worker);
        draft.tell(severity, reason, (&name, Some(&replica.worker)), message);
    }
    draft.drop_replicas(work, |replica| surplus.contains(replica));
}

/// What has to go: what is not where it should be, once as many as are wanted answer where they should.
fn surplus(draft: &Draft<'_>, work: &Work<'_>, revision: &RevisionId) -> Vec<Replica> {
    let (leaving, staying): (Vec<&Replica>, Vec<&Replica>) = work
        .replicas
        .iter()
        .filter(|replica| replica.revision == *revision)
        .partition(|replica| lost::standing(draft, replica) == Standing::Leaves);
    let staying = best_first(draft, staying);
    let kept = place::homes(draft, work, &staying).kept;
    let (staying, beyond): (Vec<&Replica>, Vec<&Replica>) =
        staying.into_iter().partition(|replica| kept.contains(&replica.worker));
    let answer = staying.iter().filter(|replica| ready(draft, replica)).count();
    let placed = staying.iter().filter(|replica| lost::counts(draft, work, replica)).count();
    let target = work.target as usize;
    let (mut kept, mut surplus) = (0, Vec::new());
    for replica in best_first(draft, leaving.into_iter().chain(beyond).collect()) {
        // What does not answer is of use only while nothing takes its place.
        let of_use = if ready(draft, replica) { answer + kept < target } else { placed + kept < target };
        if of_use {
            kept += 1;
        } else {
            surplus.push(replica.clone());
        }
    }
    surplus
}

/// Those that answer first, then those that can be reached, then the oldest.
pub(crate) fn best_first<'a>(draft: &Draft<'_>, mut replicas: Vec<&'a Replica>) -> Vec<&'a Replica> {
    let gone = |replica: &Replica| matches!(lost::standing(draft, replica), Standing::Gone { .. });
    replicas.sort_by_key(|replica| (!ready(draft, replica), gone(replica), replica.placed, &replica.worker));
    replicas
}

fn ready(draft: &Draft<'_>, replica: &Replica) -> bool {
    draft.world.workers.get(&replica.worker).is_some_and(|seats| seats.ready(&replica.revision))
}
