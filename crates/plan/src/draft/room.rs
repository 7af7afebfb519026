//! What is claimed on workers in this plan, and which of them have room.

use std::collections::BTreeMap;

use berth_spec::{ByteSize, Gpu, RevisionId, WorkerId, deployment::GpuNeed};

use super::Draft;
use crate::{
    Replica,
    claim::{self, Cores},
    place::{WorkerBucket, WorkerBuckets, newest_joined},
    world::{Liveness, Rank, TrackedDeployment, TrackedWorker},
};

/// What is claimed on a worker.
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

/// A worker as the plan has it, found once for all that is asked of it.
#[derive(Clone, Copy)]
pub(crate) struct WorkerDraft<'w> {
    pub(crate) id: &'w WorkerId,
    pub(crate) tracked: &'w TrackedWorker,
    pub(crate) usage: Usage,
}

impl WorkerDraft<'_> {
    /// The memory that nobody claims.
    pub(crate) fn free(&self) -> ByteSize {
        self.tracked.memory().saturating_sub(self.usage.memory)
    }

    /// The cores that nobody claims.
    pub(crate) fn free_cores(&self) -> Cores {
        self.tracked.info.as_ref().map(Cores::in_all).unwrap_or_default() - self.usage.cores
    }

    /// How many more models it may hold; `None`: as many as fit.
    pub(crate) fn free_models(&self) -> Option<u32> {
        Some(self.tracked.info.as_ref()?.max_models?.saturating_sub(self.usage.models))
    }
}

impl<'w> Draft<'w> {
    /// A worker as this plan has it; `None`: no such.
    pub(crate) fn worker(&self, worker: &WorkerId) -> Option<WorkerDraft<'w>> {
        let (id, tracked) = self.world.workers.get_key_value(worker)?;
        Some(self.worker_draft_of(id, tracked))
    }

    fn worker_draft_of(&self, id: &'w WorkerId, tracked: &'w TrackedWorker) -> WorkerDraft<'w> {
        let usage = if self.usage.is_empty() { None } else { self.usage.get(id).copied() };
        WorkerDraft { id, tracked, usage: usage.unwrap_or_else(|| Usage::of(tracked)) }
    }

    /// What is claimed on a worker.
    pub(crate) fn usage(&self, worker: &WorkerId) -> Usage {
        match self.usage.get(worker) {
            Some(usage) => *usage,
            None => self.world.workers.get(worker).map(Usage::of).unwrap_or_default(),
        }
    }

    /// The GPUs of a worker, and what each replica there that has any claims of them.
    pub(crate) fn gpus<'a>(&'a self, worker: &'a WorkerId) -> (&'w [Gpu], BTreeMap<&'a RevisionId, &'a GpuNeed>) {
        let tracked = self.world.workers.get(worker);
        let devices = tracked.and_then(|tracked| tracked.info.as_ref()).map_or(&[][..], |info| &info.gpus);
        let (left, came) = (self.gpus_left.get(worker), self.gpus_came.get(worker));
        let stayed = tracked.into_iter().flat_map(TrackedWorker::gpus_held);
        let stayed = stayed.filter(|(revision, _)| left.is_none_or(|left| !left.contains(*revision)));
        (devices, stayed.chain(came.into_iter().flatten()).collect())
    }

    fn set_usage(&mut self, worker: &WorkerId, usage: Usage) {
        self.usage.insert(worker.clone(), usage);
        if let Some(mut buckets) = self.buckets.take() {
            if let Some((id, tracked)) = self.world.workers.get_key_value(worker).filter(|(_, tracked)| tracked.alive())
            {
                let candidate = WorkerDraft { id, tracked, usage };
                buckets.put(id, self.bucket(&candidate), candidate.free());
            }
            self.buckets = Some(buckets);
        }
    }

    /// Sets aside what a replica claims that comes to a worker.
    pub(super) fn claim(&mut self, entry: &TrackedDeployment, replica: &Replica, rank: Rank) {
        let mut usage = self.usage(&replica.worker);
        usage.memory += replica.claim;
        usage.cores = usage.cores + claim::cores(&entry.deployment.spec);
        usage.models += 1;
        usage.coming += self.comes(replica);
        self.set_usage(&replica.worker, usage);
        if let Some(need) = &entry.deployment.spec.gpu {
            let came = self.gpus_came.entry(replica.worker.clone()).or_default();
            came.insert(replica.revision.clone(), need.clone());
        }
        self.arrived.entry(replica.worker.clone()).or_default().insert(rank);
    }

    /// Gives back what a replica claimed.
    pub(super) fn release(&mut self, entry: &TrackedDeployment, replica: &Replica, rank: &Rank) {
        let arrived = self.arrived.get_mut(&replica.worker);
        let came = arrived.is_some_and(|arrived| arrived.remove(rank));
        let had_come =
            self.gpus_came.get_mut(&replica.worker).and_then(|came| came.remove(&replica.revision)).is_some();
        if entry.deployment.spec.gpu.is_some() && !had_come {
            self.gpus_left.entry(replica.worker.clone()).or_default().insert(replica.revision.clone());
        }
        let mut usage = self.usage(&replica.worker);
        usage.memory = usage.memory.saturating_sub(replica.claim);
        usage.cores = usage.cores - claim::cores(&entry.deployment.spec);
        usage.models = usage.models.saturating_sub(1);
        usage.coming = usage.coming.saturating_sub(if came { self.comes(replica) } else { self.was_coming(replica) });
        if !came {
            self.left.insert((replica.worker.clone(), replica.revision.clone()));
        }
        self.set_usage(&replica.worker, usage);
    }

    /// Changes what is set aside for a replica that stays.
    pub(super) fn resize(&mut self, replica: &Replica, claim: ByteSize) {
        let mut usage = self.usage(&replica.worker);
        usage.memory = usage.memory.saturating_sub(replica.claim) + claim;
        self.set_usage(&replica.worker, usage);
    }

    /// 1 if a replica that comes to where it says would be on its way.
    fn comes(&self, replica: &Replica) -> u32 {
        let tracked = self.world.workers.get(&replica.worker);
        u32::from(!tracked.is_some_and(|tracked| {
            tracked.inventory.get(&replica.revision).is_some_and(|residency| residency.is_loaded())
        }))
    }

    /// 1 if the world counts a replica as on its way.
    fn was_coming(&self, replica: &Replica) -> u32 {
        let tracked = self.world.workers.get(&replica.worker);
        u32::from(tracked.is_some_and(|tracked| tracked.coming.contains(&replica.revision)))
    }

    /// What a worker is for any replica.
    pub(crate) fn bucket(&self, candidate: &WorkerDraft<'w>) -> WorkerBucket<'w> {
        let newest = self.newest.get_or_init(|| newest_joined(self.world, self.now));
        WorkerBucket::of(candidate.tracked, candidate.usage.coming, newest.as_ref())
    }

    /// Sorts the workers that can be reached, once; [`buckets`](Self::buckets) reads it.
    pub(crate) fn sort_into_buckets(&mut self) {
        if self.buckets.is_none() {
            let mut buckets = WorkerBuckets::default();
            for (id, tracked) in self.world.workers.iter().filter(|(_, tracked)| tracked.alive()) {
                let candidate = self.worker_draft_of(id, tracked);
                buckets.put(id, self.bucket(&candidate), candidate.free());
            }
            self.buckets = Some(buckets);
        }
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

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
