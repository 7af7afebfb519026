//! What is claimed on workers in this plan, and which of them have room.

use std::collections::BTreeMap;

use berth_spec::{ByteSize, Gpu, RevisionId, WorkerId, deployment::GpuNeed};

use super::Draft;
use crate::{
    Replica,
    claim::{self, Cores},
    place::{Shelf, Shelves, newest_joined},
    world::{Entry, Liveness, Rank, Seats},
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
    fn of(seats: &Seats) -> Self {
        Self {
            memory: seats.used,
            cores: seats.cores,
            models: count(seats.assigned.len()),
            coming: count(seats.coming.len()),
        }
    }
}

impl<'w> Draft<'w> {
    /// What is claimed on a worker.
    pub(crate) fn usage(&self, worker: &WorkerId) -> Usage {
        match self.usage.get(worker) {
            Some(usage) => *usage,
            None => self.world.workers.get(worker).map(Usage::of).unwrap_or_default(),
        }
    }

    /// The memory that is claimed on a worker.
    pub(crate) fn used(&self, worker: &WorkerId) -> ByteSize {
        self.usage(worker).memory
    }

    /// The memory that nobody claims on a worker.
    pub(crate) fn free(&self, worker: &WorkerId) -> ByteSize {
        let memory = self.world.workers.get(worker).map_or(ByteSize::ZERO, Seats::memory);
        memory.saturating_sub(self.used(worker))
    }

    /// The cores that nobody claims on a worker.
    pub(crate) fn free_cores(&self, worker: &WorkerId) -> Cores {
        let info = self.world.workers.get(worker).and_then(|seats| seats.info.as_ref());
        info.map(Cores::in_all).unwrap_or_default() - self.usage(worker).cores
    }

    /// How many more models a worker may hold; `None`: as many as fit.
    pub(crate) fn free_models(&self, worker: &WorkerId) -> Option<u32> {
        let most = self.world.workers.get(worker)?.info.as_ref()?.max_models?;
        Some(most.saturating_sub(self.usage(worker).models))
    }

    /// The GPUs of a worker, and what each replica there that has any claims of them.
    pub(crate) fn gpus<'a>(&'a self, worker: &'a WorkerId) -> (&'w [Gpu], BTreeMap<&'a RevisionId, &'a GpuNeed>) {
        let seats = self.world.workers.get(worker);
        let devices = seats.and_then(|seats| seats.info.as_ref()).map_or(&[][..], |info| &info.gpus);
        let (left, came) = (self.gpus_left.get(worker), self.gpus_came.get(worker));
        let stayed = seats.into_iter().flat_map(Seats::gpus_held);
        let stayed = stayed.filter(|(revision, _)| left.is_none_or(|left| !left.contains(*revision)));
        (devices, stayed.chain(came.into_iter().flatten()).collect())
    }

    fn set_usage(&mut self, worker: &WorkerId, usage: Usage) {
        self.usage.insert(worker.clone(), usage);
        if let Some(mut shelves) = self.shelves.take() {
            if let Some((id, seats)) = self.world.workers.get_key_value(worker).filter(|(_, seats)| seats.alive()) {
                shelves.put(id, self.shelf(worker, seats), self.free(worker));
            }
            self.shelves = Some(shelves);
        }
    }

    /// Sets aside what a replica claims that comes to a worker.
    pub(super) fn claim(&mut self, entry: &Entry, replica: &Replica, rank: Rank) {
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
    pub(super) fn release(&mut self, entry: &Entry, replica: &Replica, rank: &Rank) {
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
        let seats = self.world.workers.get(&replica.worker);
        u32::from(
            !seats.is_some_and(|seats| {
                seats.inventory.get(&replica.revision).is_some_and(|residency| residency.is_loaded())
            }),
        )
    }

    /// 1 if the world counts a replica as on its way.
    fn was_coming(&self, replica: &Replica) -> u32 {
        let seats = self.world.workers.get(&replica.worker);
        u32::from(seats.is_some_and(|seats| seats.coming.contains(&replica.revision)))
    }

    /// What a worker is for any replica.
    pub(crate) fn shelf(&self, worker: &WorkerId, seats: &'w Seats) -> Shelf<'w> {
        let newest = self.newest.get_or_init(|| newest_joined(self.world, self.now));
        Shelf::of(seats, self.usage(worker).coming, newest.as_ref())
    }

    /// Sorts the workers that can be reached, once; [`shelves`](Self::shelves) reads it.
    pub(crate) fn shelve(&mut self) {
        if self.shelves.is_none() {
            let mut shelves = Shelves::default();
            for (id, seats) in self.world.workers.iter().filter(|(_, seats)| seats.alive()) {
                shelves.put(id, self.shelf(id, seats), self.free(id));
            }
            self.shelves = Some(shelves);
        }
    }

    /// The workers, sorted. `None` before [`shelve`](Self::shelve).
    pub(crate) fn shelves(&self) -> Option<&Shelves<'w>> {
        self.shelves.as_ref()
    }

    /// The workers of a region that take more, as far as people, they themselves and the network say.
    pub(crate) fn open_in(&self, region: &str) -> &[&'w Seats] {
        let by_region = self.by_region.get_or_init(|| {
            let mut by_region: BTreeMap<&str, Vec<&Seats>> = BTreeMap::new();
            for seats in self.world.workers.values().filter(|seats| seats.takes_more()) {
                let there = match seats.liveness {
                    Liveness::Alive => true,
                    Liveness::Detached { since } => self.now < since + self.world.policy.detached_grace,
                    Liveness::Unseen | Liveness::Lost { .. } => false,
                };
                if let Some(region) = seats.info.as_ref().filter(|_| there).and_then(|info| info.region()) {
                    by_region.entry(region).or_default().push(seats);
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
