//! The best worker for one replica.

use std::cmp::Reverse;

use berth_spec::{ByteSize, Revision, RevisionId, WorkerId};

use super::{Evicts, Rejection, Score, evict, filter};
use crate::{
    claim,
    draft::{Draft, Work},
};

/// Where a replica goes, and who leaves for it.
#[derive(Debug, Clone)]
pub(crate) struct Choice {
    pub(crate) worker: WorkerId,
    /// What is set aside for it there.
    pub(crate) claim: ByteSize,
    pub(crate) score: Score,
    pub(crate) victims: Vec<RevisionId>,
}

/// One worker that cannot take it.
pub(crate) type Refusal = (WorkerId, Rejection);

/// The best worker; if there is none, why each of them is not.
pub(crate) fn choose(
    draft: &mut Draft<'_>,
    work: &Work<'_>,
    revision: &Revision,
    need: ByteSize,
) -> Result<Choice, Vec<Refusal>> {
    if let Some(choice) = with_room(draft, work, revision, need) {
        return Ok(choice);
    }
    let mut refusals = Vec::new();
    let mut best: Option<Choice> = None;
    let world = draft.world;
    for worker in world.workers.keys() {
        match view(draft, work, revision, need, worker) {
            Ok(choice) if best.as_ref().is_none_or(|best| choice.score < best.score) => best = Some(choice),
            Ok(_) => {}
            Err(rejection) => refusals.push((worker.clone(), rejection)),
        }
    }
    best.ok_or(refusals)
}

/// The best of the workers that need not evict. The order by free memory is the order of [`Score`] among workers that
/// are equal otherwise, so the first one that may hold it is the best: no need to look at 1,000.
fn with_room(draft: &mut Draft<'_>, work: &Work<'_>, revision: &Revision, need: ByteSize) -> Option<Choice> {
    let all_equal = work.entry.deployment.spec.selector.preferred.is_empty();
    draft.by_free();
    let draft = &*draft;
    let roomy = draft.roomy(need);
    let may = |worker: &&WorkerId| {
        filter::reject(draft, work, &revision.id, worker).is_none()
            && draft.free(worker) >= claim::need_at(draft.world, revision, worker, need)
    };
    let by_room = roomy.filter(may).take(if all_equal { 1 } else { usize::MAX });
    let left = draft.world.strays.range((revision.id.clone(), first_worker())..);
    let strays = left.take_while(|(id, _)| *id == revision.id).map(|(_, worker)| worker).filter(may);
    let choices = by_room.chain(strays).map(|worker| Choice {
        worker: worker.clone(),
        claim: claim::need_at(draft.world, revision, worker, need),
        score: score(draft, work, revision, worker, Evicts::default()),
        victims: Vec::new(),
    });
    choices.min_by(|a, b| a.score.cmp(&b.score))
}

/// What one worker could do for it.
pub(crate) fn view(
    draft: &Draft<'_>,
    work: &Work<'_>,
    revision: &Revision,
    need: ByteSize,
    worker: &WorkerId,
) -> Result<Choice, Rejection> {
    if let Some(rejection) = filter::reject(draft, work, &revision.id, worker) {
        return Err(rejection);
    }
    let need = claim::need_at(draft.world, revision, worker, need);
    let free = draft.free(worker);
    let total = draft.world.workers.get(worker).map_or(ByteSize::ZERO, crate::world::Seats::memory);
    let victims = match need.saturating_sub(free) {
        ByteSize::ZERO => Vec::new(),
        lacking => evict::victims(draft, work.entry, worker, lacking).map_err(|short| Rejection::Memory {
            need,
            free,
            evictable: short.evictable,
            busy: short.busy,
            again: short.again,
            total,
        })?,
    };
    let evicts = evict::cost(draft, worker, &victims);
    let score = score(draft, work, revision, worker, evicts);
    Ok(Choice { worker: worker.clone(), claim: need, score, victims })
}

fn score(draft: &Draft<'_>, work: &Work<'_>, revision: &Revision, worker: &WorkerId, evicts: Evicts) -> Score {
    let labels = draft.world.workers.get(worker).and_then(|seats| seats.info.as_ref()).map(|info| &info.labels);
    let preferred = &work.entry.deployment.spec.selector.preferred;
    Score {
        evicts,
        cold: !draft.world.strays.contains(&(revision.id.clone(), worker.clone())),
        unpreferred: preferred
            .iter()
            .filter(|(key, value)| labels.and_then(|labels| labels.get(*key)) != Some(value))
            .count(),
        free: Reverse(draft.free(worker)),
        worker: worker.clone(),
    }
}

/// The smallest name that a worker could have.
fn first_worker() -> WorkerId {
    WorkerId::new("0").expect("a digit is a name")
}
