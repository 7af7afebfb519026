//! Brings workers under their memory again: a claim grew when it was measured, or a worker came back smaller.
//!
//! What grew makes room as if it were placed anew: by evicting what may leave for it. If that is not enough it leaves
//! itself, and looks for another place with the others. Where nothing grew, the least important leave.

use berth_spec::{ByteSize, RevisionId, WorkerId};

use super::evict;
use crate::draft::Draft;

/// Relieves every worker that this plan has looked at.
pub(super) fn step(draft: &mut Draft<'_>) {
    for (worker, grown) in std::mem::take(&mut draft.grown) {
        let mut grown: Vec<RevisionId> = grown.into_iter().collect();
        // The most important makes room first; the least important leaves first.
        grown.sort_by_key(|revision| draft.world.entries.get(revision.deployment()).map(|entry| entry.rank(revision)));
        while let Some(excess) = excess(draft, &worker) {
            let Some(leaver) = next_to_leave(draft, &worker, &mut grown, excess) else { break };
            for (revision, whom) in leaver {
                evict::evict(draft, &revision, &worker, whom.as_ref().map(RevisionId::deployment));
            }
        }
    }
}

fn excess(draft: &Draft<'_>, worker: &WorkerId) -> Option<ByteSize> {
    let seats = draft.world.workers.get(worker).filter(|seats| seats.alive())?;
    let excess = draft.used(worker).saturating_sub(seats.memory());
    (excess > ByteSize::ZERO).then_some(excess)
}

type Leaver = Vec<(RevisionId, Option<RevisionId>)>;

/// Who leaves next, and for whom.
fn next_to_leave(
    draft: &Draft<'_>,
    worker: &WorkerId,
    grown: &mut Vec<RevisionId>,
    excess: ByteSize,
) -> Option<Leaver> {
    grown.retain(|revision| draft.sitting(worker).any(|rank| rank.revision == *revision));
    if let Some(important) = grown.last() {
        let entry = draft.world.entries.get(important.deployment())?;
        if let Ok(victims) = evict::victims(draft, entry, worker, excess) {
            return Some(victims.into_iter().map(|victim| (victim, Some(important.clone()))).collect());
        }
        let least = grown.remove(0);
        return Some(vec![(least, None)]);
    }
    let least = draft.sitting(worker).next()?;
    Some(vec![(least.revision.clone(), None)])
}
