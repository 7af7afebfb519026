//! Claims on the runtimes of a worker that have limits of their own, as the plan has them.

use berth_spec::{ByteSize, ModelFormat, RevisionId, RuntimeInfo, WorkerId};

use super::{Draft, WorkerDraft, room::WorkerChanges};
use crate::{
    Replica,
    claim::{PlacedClaim, RuntimeClaim, RuntimeTotal},
    world::{TrackedDeployment, TrackedWorker},
};

/// A limit that a runtime may have beside those of its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RuntimeLimit {
    Memory,
    DeviceMemory,
    Models,
}

/// A runtime with limits, and the replicas in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RuntimeUse<'a> {
    pub(crate) runtime: &'a RuntimeInfo,
    place: usize,
    tracked: &'a TrackedWorker,
    changes: Option<&'a WorkerChanges>,
    total: RuntimeTotal,
}

impl<'a> RuntimeUse<'a> {
    fn at(
        tracked: &'a TrackedWorker,
        changes: Option<&'a WorkerChanges>,
        place: usize,
        runtime: &'a RuntimeInfo,
    ) -> Self {
        let totals = changes.and_then(|changes| changes.runtime_totals.as_ref()).unwrap_or(&tracked.in_runtimes);
        Self { runtime, place, tracked, changes, total: totals.get(place).copied().unwrap_or_default() }
    }

    /// The claim of a replica; `None`: it is not in this runtime.
    pub(crate) fn claim(&self, revision: &RevisionId) -> Option<RuntimeClaim> {
        let placed = placed_claim(self.tracked, self.changes, revision)?;
        (placed.runtime == self.place).then_some(placed.claim)
    }

    /// Claims on it once some have left.
    pub(crate) fn used(&self, left: RuntimeTotal) -> RuntimeTotal {
        self.total.without(left)
    }

    /// The first limit that is exceeded by `more` replicas with these claims together, once some have left.
    pub(crate) fn exceeded(&self, need: RuntimeClaim, more: u32, left: RuntimeTotal) -> Option<RuntimeLimit> {
        let RuntimeTotal { claims, models } = self.used(left);
        let above = |used: ByteSize, limit: Option<ByteSize>| limit.is_some_and(|limit| used > limit);
        if above(claims.memory + need.memory, self.runtime.memory) {
            Some(RuntimeLimit::Memory)
        } else if above(claims.device_memory + need.device_memory, self.runtime.device_memory) {
            Some(RuntimeLimit::DeviceMemory)
        } else {
            self.runtime.max_models.is_some_and(|most| models + more > most).then_some(RuntimeLimit::Models)
        }
    }
}

/// The claim of a replica on its runtime as the plan has it.
fn placed_claim(
    tracked: &TrackedWorker,
    changes: Option<&WorkerChanges>,
    revision: &RevisionId,
) -> Option<PlacedClaim> {
    match changes.and_then(|changes| changes.runtime_claims.get(revision)) {
        Some(changed) => *changed,
        None => tracked.placed_claim(revision),
    }
}

impl<'w> Draft<'w> {
    /// The runtime for models of a format, if it has limits of its own.
    pub(crate) fn limited_runtime<'a>(
        &'a self,
        candidate: &WorkerDraft<'a>,
        format: &ModelFormat,
    ) -> Option<RuntimeUse<'a>> {
        let tracked = candidate.tracked;
        if !tracked.has_limited_runtimes() {
            return None; // nearly always
        }
        let place = tracked.runtime_for(format)?;
        let runtime = &tracked.info.as_ref()?.runtimes[place];
        runtime.is_limited().then(|| RuntimeUse::at(tracked, self.changes.get(candidate.index), place, runtime))
    }

    /// Every runtime of a worker that has limits of its own.
    pub(crate) fn limited_runtimes<'a>(&'a self, worker: &'a WorkerId) -> impl Iterator<Item = RuntimeUse<'a>> {
        let index = self.world.workers.index(worker);
        index.into_iter().flat_map(move |index| {
            let (_, tracked) = self.world.workers.at(index);
            let changes = self.changes.get(index);
            let runtimes = tracked.info.iter().flat_map(|info| info.runtimes.iter().enumerate());
            let limited = runtimes.filter(|(_, runtime)| runtime.is_limited());
            limited.map(move |(place, runtime)| RuntimeUse::at(tracked, changes, place, runtime))
        })
    }

    /// Returns true if a worker whose runtimes limit device memory counts another amount of it for a replica than its deployment
    /// asks for by now. That is no part of a revision: it changes where the replica stays.
    pub(super) fn counts_other_device_memory(&self, entry: &TrackedDeployment, replica: &Replica) -> bool {
        let Some(index) = self.world.workers.index(&replica.worker) else { return false };
        let (_, tracked) = self.world.workers.at(index);
        let mut runtimes = tracked.info.iter().flat_map(|info| &info.runtimes);
        if !runtimes.any(|runtime| runtime.device_memory.is_some()) {
            return false; // nearly always
        }
        let asked = RuntimeClaim::of(replica.claim, &entry.deployment.spec).device_memory;
        let placed = placed_claim(tracked, self.changes.get(index), &replica.revision);
        placed.is_some_and(|placed| placed.claim.device_memory != asked)
    }

    /// Notes a replica that comes, leaves (`None`), or whose claim changes, where a runtime of its worker has limits.
    pub(super) fn note_in_runtime(
        &mut self,
        draft: &WorkerDraft<'w>,
        entry: &TrackedDeployment,
        replica: &Replica,
        claim: Option<ByteSize>,
    ) {
        let tracked = draft.tracked;
        if !tracked.has_limited_runtimes() {
            return;
        }
        let changes = self.changes.get_or_insert(draft.index);
        let spec = &entry.deployment.spec;
        let before = placed_claim(tracked, Some(changes), &replica.revision);
        let after = claim.and_then(|memory| {
            Some(PlacedClaim {
                runtime: tracked.runtime_for(entry.format(&replica.revision))?,
                claim: RuntimeClaim::of(memory, spec),
            })
        });
        let totals = changes.runtime_totals.get_or_insert_with(|| tracked.in_runtimes.clone());
        if let Some(placed) = before {
            totals[placed.runtime].remove(placed.claim);
        }
        if let Some(placed) = after {
            totals[placed.runtime].add(placed.claim);
        }
        changes.runtime_claims.insert(replica.revision.clone(), after);
    }
}
