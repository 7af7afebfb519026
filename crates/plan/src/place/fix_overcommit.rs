//! Brings workers under what they have again: a claim grew when it was measured, an author asks for more, or a worker came
//! back smaller.
//!
//! What grew makes room as if it were placed anew: by evicting what may leave for it. If that is not enough it leaves
//! itself, and looks for another place with the others. Where nothing grew, the least important leave; what is pinned
//! last.

use berth_spec::{ByteSize, RevisionId, WorkerId};

use super::{
    evict,
    shortfall::{Freed, Shortfall},
};
use crate::{
    claim::{Cores, cores, gpus},
    draft::Draft,
    scale::EvictionScope,
    world::TrackedDeployment,
};

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

/// Resource of which more is claimed than a worker has.
#[derive(Debug, Clone, Copy)]
enum Excess {
    Memory(ByteSize),
    Cores,
    Gpus,
    Models,
}

fn excess(draft: &Draft<'_>, worker: &WorkerId) -> Option<Excess> {
    let tracked = draft.world.workers.get(worker).filter(|tracked| tracked.alive())?;
    let info = tracked.info.as_ref()?;
    let usage = draft.worker(worker)?.usage;
    let memory = usage.memory.saturating_sub(info.memory);
    if memory > ByteSize::ZERO {
        return Some(Excess::Memory(memory));
    }
    if usage.cores > Cores::in_all(info) {
        return Some(Excess::Cores);
    }
    if info.max_models.is_some_and(|most| usage.models > most) {
        return Some(Excess::Models);
    }
    let (devices, held) = draft.gpus(worker);
    (!gpus::serves(devices, held.into_values())).then_some(Excess::Gpus)
}

type Leaver = Vec<(RevisionId, Option<RevisionId>)>;

/// Next replica to leave, and the one it leaves for.
fn next_to_leave(draft: &Draft<'_>, worker: &WorkerId, grown: &mut Vec<RevisionId>, excess: Excess) -> Option<Leaver> {
    grown.retain(|revision| draft.eviction_order(worker).any(|rank| rank.revision == *revision));
    if let (Some(important), Excess::Memory(memory)) = (grown.last(), excess) {
        let entry = draft.world.entries.get(important.deployment())?;
        let shortfall = Shortfall::of_memory(worker, memory);
        if let Ok(victims) = evict::victims(draft, entry, EvictionScope::Anything, &shortfall, Freed::default()) {
            return Some(victims.into_iter().map(|victim| (victim, Some(important.clone()))).collect());
        }
        let least = grown.remove(0);
        return Some(vec![(least, None)]);
    }
    let holds = |entry: &&TrackedDeployment| match excess {
        Excess::Memory(_) | Excess::Models => true,
        Excess::Cores => cores(&entry.deployment.spec) > Cores::ZERO,
        Excess::Gpus => entry.deployment.spec.gpu.is_some(),
    };
    let of = |revision: &RevisionId| draft.world.entries.get(revision.deployment()).filter(holds);
    let least = draft.eviction_order(worker).filter_map(|rank| Some((of(&rank.revision)?, rank)));
    // The order of eviction, but what is pinned comes last.
    let least = least.enumerate().min_by_key(|(at, (entry, _))| (entry.deployment.spec.pinned, *at));
    least.map(|(_, (_, rank))| vec![(rank.revision.clone(), None)])
}
