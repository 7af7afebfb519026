//! Replicas that a worker which is back still holds, ready, though they were given to another one while it was gone: while
//! nothing else answers they are better than what is being loaded in their place.

use berth_spec::{DeploymentName, RevisionId, WorkerId};

use crate::{
    Replica, claim,
    draft::{Draft, Work},
    drain, lost, open,
    place::{self, HomeRegion, PlacementRequest},
    scale::EvictionScope,
};

/// Takes back what answers where nothing else does. Says whether there was anything.
pub(crate) fn step(draft: &mut Draft<'_>) -> bool {
    if draft.world.workers.values().all(|tracked| tracked.recovering(&draft.world.policy, draft.now).is_none()) {
        return false;
    }
    let silent = |work: &Work<'_>| work.target > 0 && !work.replicas.is_empty() && !lost::answers(draft, work);
    let names: Vec<DeploymentName> =
        draft.works().iter().filter(|(_, work)| silent(work)).map(|(name, _)| name.clone()).collect();
    let mut any = false;
    for name in names {
        any |= open::with(draft, &name, readopt).unwrap_or_default();
    }
    any
}

fn readopt<'w>(draft: &mut Draft<'w>, work: &mut Work<'w>) -> bool {
    let Some(rollout) = work.rollout.clone() else { return false };
    let (world, now) = (draft.world, draft.now);
    let back = |worker: &WorkerId| {
        world.workers.get(worker).is_some_and(|tracked| tracked.recovering(&world.policy, now).is_some())
    };
    // What leaves one of them in this very plan will be such a replica in the next.
    let leaves = |replica: &Replica| {
        let ready = || world.workers.get(&replica.worker).is_some_and(|tracked| tracked.ready(&replica.revision));
        back(&replica.worker) && !work.replicas.contains(replica) && ready()
    };
    work.unplaced |= work.entry.record().is_some_and(|record| record.replicas.iter().any(leaves));
    for id in rollout.live() {
        let held: Vec<WorkerId> = world.strays_of(id).filter(|worker| back(worker)).cloned().collect();
        for worker in held {
            if readopt_on(draft, work, id, &worker) {
                return true;
            }
            // It may fit as soon as something else moves.
            work.unplaced = true;
        }
    }
    false
}

fn readopt_on<'w>(draft: &mut Draft<'w>, work: &mut Work<'w>, id: &RevisionId, worker: &WorkerId) -> bool {
    let Some(revision) = work.revision(id) else { return false };
    let (memory, _) = claim::need(draft.world, work.entry, &revision);
    let request = PlacementRequest {
        revision: &revision,
        home: &HomeRegion::Anywhere,
        memory,
        eviction_scope: EvictionScope::Nothing,
    };
    let Ok(choice) = place::view(draft, work, &request, worker) else { return false };
    let replica = Replica { revision: id.clone(), worker: worker.clone(), claim: choice.claim, placed: draft.now };
    draft.put(work, replica);
    drain::shed(draft, work, id);
    lost::wait(draft, work); // it answers, so that what is lost can be waited for
    let name = work.name().clone();
    let message = format!("{name} is taken back on {worker}, which held it all the time");
    draft.tell(berth_spec::event::Severity::Normal, "TakenBack", &name, Some(worker), message);
    true
}
