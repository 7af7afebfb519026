//! Brings workers under what they have again: a claim grew when it was measured, an author asks for more, or a worker came
//! back smaller.
//!
//! What grew makes room as if it were placed anew: by evicting what may leave for it. If that is not enough, what has not begun
//! to load goes back and waits: it loses nothing. If that is not enough either, what grew leaves itself, and looks for another
//! place with the others. Where nothing grew, the least important leave; what is pinned last.
//!
//! What the process takes beside its models counts, too, but no resident leaves for it: that would be an outage for a
//! number that the worker cannot keep otherwise.

use berth_spec::{ByteSize, Residency, RevisionId, RuntimeInfo, WorkerId};

use super::{
    evict,
    shortfall::{Freed, Shortfall},
};
use crate::{
    claim::{Cores, RuntimeClaim, RuntimeTotal, cores, gpus},
    draft::Draft,
    scale::EvictionScope,
    world::{EvictionClass, Rank, TrackedDeployment},
};

/// Relieves every worker that this plan has looked at.
pub(super) fn step(draft: &mut Draft<'_>) {
    for (worker, grown) in std::mem::take(&mut draft.grown) {
        let mut grown: Vec<RevisionId> = grown.into_iter().collect();
        // The most important makes room first; the least important leaves first.
        grown.sort_by_key(|revision| draft.world.entries.get(revision.deployment()).map(|entry| entry.rank(revision)));
        while let Some(excess) = excess(draft, &worker) {
            let Some(victims) = next_victims(draft, &worker, &mut grown, excess) else { break };
            for (revision, whom) in victims {
                evict::evict(draft, &revision, &worker, whom.as_ref().map(RevisionId::deployment));
            }
        }
    }
}

/// Resource of which more is claimed than a worker has.
#[derive(Debug, Clone, Copy)]
enum Excess<'w> {
    Memory(ByteSize),
    /// Memory that is missing for what the process takes beside its models.
    Overhead(ByteSize),
    Cores,
    Gpus,
    Models,
    /// A runtime with limits of its own holds more than they allow.
    Runtime(&'w RuntimeInfo),
}

fn excess<'w>(draft: &Draft<'w>, worker: &WorkerId) -> Option<Excess<'w>> {
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
    if !gpus::serves(devices, held.into_values()) {
        return Some(Excess::Gpus);
    }
    let over = draft
        .limited_runtimes(worker)
        .find(|held| held.exceeded(RuntimeClaim::default(), 0, RuntimeTotal::default()).is_some());
    if let Some(name) = over.map(|held| held.runtime.name.clone()) {
        return info.runtimes.iter().find(|runtime| runtime.name == name).map(Excess::Runtime);
    }
    if usage.memory + tracked.overhead <= info.memory {
        return None;
    }
    let claims = draft.eviction_order(worker).map(|rank| evict::claim_of(draft, tracked, worker, &rank.revision));
    let overhead = tracked.overhead_beside(claims.max().unwrap_or_default());
    let missing = (usage.memory + overhead).saturating_sub(info.memory);
    (missing > ByteSize::ZERO).then_some(Excess::Overhead(missing))
}

type Victims = Vec<(RevisionId, Option<RevisionId>)>;

/// Next replicas to leave, each with the one that grew and needs its room.
fn next_victims(
    draft: &Draft<'_>,
    worker: &WorkerId,
    grown: &mut Vec<RevisionId>,
    excess: Excess<'_>,
) -> Option<Victims> {
    grown.retain(|revision| draft.eviction_order(worker).any(|rank| rank.revision == *revision));
    if let (Some(important), Excess::Memory(memory) | Excess::Overhead(memory)) = (grown.last(), excess) {
        let entry = draft.world.entries.get(important.deployment())?;
        let shortfall = Shortfall::of_memory(worker, memory);
        if let Ok(victims) = evict::victims(draft, entry, EvictionScope::Anything, &shortfall, Freed::default()) {
            return Some(victims.into_iter().map(|victim| (victim, Some(important.clone()))).collect());
        }
        let yields = |rank: &&Rank| rank.priority <= entry.deployment.spec.priority && waits(draft, worker, rank);
        if let Some(rank) = draft.eviction_order(worker).filter(|rank| rank.revision != *important).find(yields) {
            return Some(vec![(rank.revision.clone(), None)]);
        }
        if matches!(excess, Excess::Memory(_)) {
            let least = grown.remove(0);
            return Some(vec![(least, None)]);
        }
    }
    if matches!(excess, Excess::Overhead(_)) {
        let may_leave = |rank: &&Rank| rank.class != EvictionClass::Resident && !evict::is_pinned(draft, rank);
        let victim = draft.eviction_order(worker).filter(may_leave).min_by_key(|rank| !waits(draft, worker, rank));
        return victim.map(|rank| vec![(rank.revision.clone(), None)]);
    }
    let info = draft.world.workers.get(worker).and_then(|tracked| tracked.info.as_ref());
    let holds = |entry: &TrackedDeployment, revision: &RevisionId| match excess {
        Excess::Memory(_) | Excess::Overhead(_) | Excess::Models => true,
        Excess::Runtime(runtime) => {
            let own = info.and_then(|info| info.runtime_for(entry.format(revision)));
            own.is_some_and(|own| own.name == runtime.name)
        }
        Excess::Cores => cores(&entry.deployment.spec) > Cores::ZERO,
        Excess::Gpus => entry.deployment.spec.gpu.is_some(),
    };
    let of =
        |revision: &RevisionId| draft.world.entries.get(revision.deployment()).filter(|entry| holds(entry, revision));
    let least = draft.eviction_order(worker).filter_map(|rank| Some((of(&rank.revision)?, rank)));
    // The order of eviction, but what is pinned comes last.
    let least = least.enumerate().min_by_key(|(at, (entry, _))| (entry.deployment.spec.pinned, *at));
    least.map(|(_, (_, rank))| vec![(rank.revision.clone(), None)])
}

/// Returns true for a replica on demand that is assigned and has not begun to take memory.
fn waits(draft: &Draft<'_>, worker: &WorkerId, rank: &Rank) -> bool {
    if rank.class == EvictionClass::Resident || evict::is_pinned(draft, rank) {
        return false;
    }
    let residency = draft.world.workers.get(worker).and_then(|tracked| tracked.inventory.get(&rank.revision));
    matches!(residency, None | Some(Residency::Queued | Residency::Preparing(_) | Residency::Fetching { .. }))
}
