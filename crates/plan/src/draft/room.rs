//! Claims on workers in this plan, and the workers that have room.

use std::collections::{BTreeMap, BTreeSet};

use berth_spec::{ByteSize, Gpu, RevisionId, WorkerId, deployment::GpuNeed};

use super::{
    Draft,
    arrivals::Arrivals,
    bucket::{WorkerBucket, WorkerBuckets},
    version::newest_joined,
};
use crate::{
    Replica,
    claim::{self, Cores, PlacedClaim, RuntimeTotal},
    world::{Liveness, Rank, TrackedDeployment, TrackedWorker, WorkerIndex},
};

/// Claims on a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) memory: ByteSize,
    pub(crate) cores: Cores,
    pub(crate) models: u32,
    /// Replicas that are on their way.
    pub(crate) coming: u32,
}

impl Usage {
    fn of(tracked: &TrackedWorker) -> Self {
        Self {
            memory: tracked.used,
            cores: tracked.cores,
            models: count(tracked.assigned.len()),
            coming: count(tracked.coming.len()),
        }
    }
}

/// Differences that a plan makes on one worker, beside what the world has.
#[derive(Debug, Default)]
pub(super) struct WorkerChanges {
    /// Claims, where they differ from the world's.
    usage: Option<Usage>,
    /// Replicas of the world that leave: they cannot be evicted again.
    pub(super) left: BTreeSet<RevisionId>,
    /// Replicas that come.
    pub(super) arrived: Arrivals,
    /// Replicas with GPUs that leave, and what those have that come.
    gpus_left: BTreeSet<RevisionId>,
    gpus_came: BTreeMap<RevisionId, GpuNeed>,
    /// Replicas whose claims on a runtime change, where one has limits; `None`: it leaves.
    pub(super) runtime_claims: BTreeMap<RevisionId, Option<PlacedClaim>>,
    /// Claims on each runtime, where they differ from the world's.
    pub(super) runtime_totals: Option<Vec<RuntimeTotal>>,
}

/// Differences that a plan makes on all workers, by their numbers.
#[derive(Debug, Default)]
pub(super) struct ChangesByWorker(Vec<Option<Box<WorkerChanges>>>);

impl ChangesByWorker {
    pub(super) fn get(&self, worker: WorkerIndex) -> Option<&WorkerChanges> {
        self.0.get(worker.get())?.as_deref()
    }

    pub(super) fn get_or_insert(&mut self, worker: WorkerIndex) -> &mut WorkerChanges {
        if self.0.len() <= worker.get() {
            self.0.resize_with(worker.get() + 1, || None);
        }
        self.0[worker.get()].get_or_insert_default()
    }
}

/// A worker as the plan has it, found once for all that is asked of it.
#[derive(Clone, Copy)]
pub(crate) struct WorkerDraft<'w> {
    pub(super) index: WorkerIndex,
    pub(crate) id: &'w WorkerId,
    pub(crate) tracked: &'w TrackedWorker,
    pub(crate) usage: Usage,
}

impl WorkerDraft<'_> {
    /// The memory that a small replica may claim.
    pub(crate) fn free(&self) -> ByteSize {
        self.free_for(ByteSize::ZERO)
    }

    /// Unclaimed memory that a replica of this claim may take.
    pub(crate) fn free_for(&self, claim: ByteSize) -> ByteSize {
        self.tracked.memory() - self.usage.memory - self.tracked.overhead_beside(claim)
    }

    /// Cores that no replica claims.
    pub(crate) fn free_cores(&self) -> Cores {
        self.tracked.info.as_ref().map(Cores::in_all).unwrap_or_default() - self.usage.cores
    }

    /// Models that may be added; `None`: as many as fit.
    pub(crate) fn free_models(&self) -> Option<u32> {
        Some(self.tracked.info.as_ref()?.max_models?.saturating_sub(self.usage.models))
    }
}

impl<'w> Draft<'w> {
    /// A worker as this plan has it; `None`: no such.
    pub(crate) fn worker(&self, worker: &WorkerId) -> Option<WorkerDraft<'w>> {
        Some(self.worker_at(self.world.workers.index(worker)?))
    }

    /// A worker as this plan has it, by its number, which exists.
    pub(crate) fn worker_at(&self, index: WorkerIndex) -> WorkerDraft<'w> {
        let (id, tracked) = self.world.workers.at(index);
        let usage = self.changes.get(index).and_then(|changes| changes.usage);
        WorkerDraft { index, id, tracked, usage: usage.unwrap_or_else(|| Usage::of(tracked)) }
    }

    /// The GPUs of a worker, and what each replica there that has any claims of them.
    pub(crate) fn gpus<'a>(&'a self, worker: &'a WorkerId) -> (&'w [Gpu], BTreeMap<&'a RevisionId, &'a GpuNeed>) {
        let Some(index) = self.world.workers.index(worker) else { return (&[], BTreeMap::new()) };
        let tracked = &self.world.workers.at(index).1;
        let devices = tracked.info.as_ref().map_or(&[][..], |info| &info.gpus);
        let changes = self.changes.get(index);
        let stayed = tracked.gpus_held();
        let stayed =
            stayed.filter(|(revision, _)| changes.is_none_or(|changes| !changes.gpus_left.contains(*revision)));
        (devices, stayed.chain(changes.into_iter().flat_map(|changes| &changes.gpus_came)).collect())
    }

    /// Changes of this plan on a worker that is known.
    pub(super) fn change(&mut self, worker: &WorkerId) -> Option<(WorkerDraft<'w>, &mut WorkerChanges)> {
        let draft = self.worker(worker)?;
        Some((draft, self.changes.get_or_insert(draft.index)))
    }

    fn set_usage(&mut self, draft: &WorkerDraft<'w>, usage: Usage) {
        self.changes.get_or_insert(draft.index).usage = Some(usage);
        if let Some(buckets) = &mut self.buckets {
            let queue = WorkerBucket::queue(draft.tracked, usage.coming);
            buckets.update(draft.index, queue, WorkerDraft { usage, ..*draft }.free());
        }
    }

    /// Reserves the claim of a replica that is placed on a worker.
    pub(super) fn claim(&mut self, entry: &TrackedDeployment, replica: &Replica, rank: Rank) {
        let Some((draft, changes)) = self.change(&replica.worker) else { return };
        changes.arrived.insert(rank);
        if let Some(need) = &entry.deployment.spec.gpu {
            changes.gpus_came.insert(replica.revision.clone(), need.clone());
        }
        let usage = Usage {
            memory: draft.usage.memory + replica.claim,
            cores: draft.usage.cores + claim::cores(&entry.deployment.spec),
            models: draft.usage.models + 1,
            coming: draft.usage.coming + comes(draft.tracked, replica),
        };
        self.set_usage(&draft, usage);
        self.note_in_runtime(&draft, entry, replica, Some(replica.claim));
    }

    /// Gives back what a replica claimed.
    pub(super) fn release(&mut self, entry: &TrackedDeployment, replica: &Replica, rank: &Rank) {
        let Some((draft, changes)) = self.change(&replica.worker) else { return };
        let came = changes.arrived.remove(rank);
        let had_come = changes.gpus_came.remove(&replica.revision).is_some();
        if entry.deployment.spec.gpu.is_some() && !had_come {
            changes.gpus_left.insert(replica.revision.clone());
        }
        if !came {
            changes.left.insert(replica.revision.clone());
        }
        let was_coming = u32::from(draft.tracked.coming.contains(&replica.revision));
        let usage = Usage {
            memory: draft.usage.memory.saturating_sub(replica.claim),
            cores: draft.usage.cores - claim::cores(&entry.deployment.spec),
            models: draft.usage.models.saturating_sub(1),
            coming: draft.usage.coming.saturating_sub(if came { comes(draft.tracked, replica) } else { was_coming }),
        };
        self.set_usage(&draft, usage);
        self.note_in_runtime(&draft, entry, replica, None);
    }

    /// Changes what is set aside for a replica that stays.
    pub(super) fn resize(&mut self, entry: &TrackedDeployment, replica: &Replica, claim: ByteSize) {
        let Some(draft) = self.worker(&replica.worker) else { return };
        let memory = draft.usage.memory.saturating_sub(replica.claim) + claim;
        self.set_usage(&draft, Usage { memory, ..draft.usage });
        self.note_in_runtime(&draft, entry, replica, Some(claim));
    }

    /// The bucket of a worker: all that ranks it for any replica but free memory.
    pub(crate) fn bucket(&self, candidate: &WorkerDraft<'w>) -> WorkerBucket<'w> {
        let sorted = self.buckets.as_ref().and_then(|buckets| buckets.bucket(candidate.index)).copied();
        sorted.unwrap_or_else(|| {
            let newest = self.newest.get_or_init(|| newest_joined(self.world, self.now));
            WorkerBucket::of(candidate.tracked, candidate.usage.coming, newest.as_ref())
        })
    }

    /// Sorts the workers that can be reached, once; [`buckets`](Self::buckets) reads it.
    pub(crate) fn sort_into_buckets(&mut self) {
        if self.buckets.is_some() {
            return;
        }
        let mut buckets = WorkerBuckets::default();
        for (index, _, _) in self.world.workers.indexed().filter(|(_, _, tracked)| tracked.alive()) {
            let candidate = self.worker_at(index);
            buckets.add(index, self.bucket(&candidate), candidate.free());
        }
        self.buckets = Some(buckets);
    }

    /// The workers, sorted. `None` before [`sort_into_buckets`](Self::sort_into_buckets).
    pub(crate) fn buckets(&self) -> Option<&WorkerBuckets<'w>> {
        self.buckets.as_ref()
    }

    /// The workers of a region that take more, as far as people, they themselves and the network say.
    pub(crate) fn open_in(&self, region: &str) -> &[&'w TrackedWorker] {
        let by_region = self.by_region.get_or_init(|| {
            let mut by_region: BTreeMap<&str, Vec<&TrackedWorker>> = BTreeMap::new();
            for tracked in self.world.workers.values().filter(|tracked| tracked.takes_more()) {
                let there = match tracked.liveness {
                    Liveness::Alive => true,
                    Liveness::Detached { since } => self.now < since + self.world.policy.detached_grace,
                    Liveness::Unseen | Liveness::Lost { .. } => false,
                };
                if let Some(region) = tracked.info.as_ref().filter(|_| there).and_then(|info| info.region()) {
                    by_region.entry(region).or_default().push(tracked);
                }
            }
            by_region
        });
        by_region.get(region).map_or(&[], Vec::as_slice)
    }
}

/// The number of loads that a new replica adds to its worker: 0 if it is loaded there already.
fn comes(tracked: &TrackedWorker, replica: &Replica) -> u32 {
    let loaded = tracked.inventory.get(&replica.revision).is_some_and(|residency| residency.is_loaded());
    u32::from(!loaded)
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
