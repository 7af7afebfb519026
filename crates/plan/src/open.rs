//! Takes deployments into a plan and through the steps that need no other deployment: lost, scale, rollout, drain.

use std::sync::Arc;

use berth_spec::{DeploymentName, Revision};

use crate::{
    draft::{Draft, Work, WorkIndex},
    drain, lost, rollout, scale,
    world::TrackedDeployment,
};

/// Takes a deployment up. Does nothing the second time.
pub(crate) fn open(draft: &mut Draft<'_>, name: &DeploymentName) {
    if draft.works().contains(name) {
        return;
    }
    let Some(entry) = draft.world.entries.get(name) else { return };
    let work = take_up(draft, entry);
    draft.add(work);
}

/// Takes all deployments up, as the first thing in a plan.
pub(crate) fn open_all(draft: &mut Draft<'_>) {
    let world = draft.world;
    let works = world.entries.values().map(|entry| Box::new(take_up(draft, entry))).collect();
    draft.fill(works);
}

/// Works on one deployment, which is opened if need be.
pub(crate) fn with<'w, R>(
    draft: &mut Draft<'w>,
    name: &DeploymentName,
    change: impl FnOnce(&mut Draft<'w>, &mut Work<'w>) -> R,
) -> Option<R> {
    open(draft, name);
    let slot = draft.works().find(name)?;
    draft.at(slot, change)
}

/// Goes through the rollouts once more, after placing. Returns true if any has moved. Each moves forward only, so that
/// this ends.
pub(crate) fn advance(draft: &mut Draft<'_>) -> bool {
    let starting: Vec<WorkIndex> =
        draft.works().numbered().filter(|(_, work)| work.unsettled()).map(|(slot, _)| slot).collect();
    let mut moved = false;
    for slot in starting {
        let _ = draft.at(slot, |draft, work| {
            if rollout::step(draft, work) {
                drain::step(draft, work);
                moved = true;
            }
        });
    }
    moved
}

fn take_up<'w>(draft: &mut Draft<'w>, entry: &'w TrackedDeployment) -> Work<'w> {
    let mut work = Work::of(entry, draft.now);
    if let Some(known) = work.revisions.get(&entry.wanted()) {
        // The same revision may be declared in another way: its location, or the author's word on its memory.
        let declared = Revision::with_id(&entry.deployment, entry.wanted());
        if **known != declared {
            work.revisions.insert(Arc::new(declared));
        }
    }
    lost::step(draft, &mut work);
    scale::step(draft, &mut work);
    let _ = rollout::step(draft, &mut work);
    drain::step(draft, &mut work);
    work
}
