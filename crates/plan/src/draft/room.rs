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

/// A worker as the plan has it, found once for all that is asked of it.
#[derive(Clone, Copy)]
pub(crate) struct Site<'w> {
    pub(crate) id: &'w WorkerId,
    pub(crate) seats: &'w Seats,
    pub(crate) usage: Usage,
}

impl Site<'_> {
    /// The memory that nobody claims.
    pub(crate) fn free(&self) -> ByteSize {
        self.seats.memory().saturating_sub(self.usage.memory)
    }

    /// The cores that nobody claims.
    pub(crate) fn free_cores(&self) -> Cores {
        self.seats.info.as_ref().map(Cores::in_all).unwrap_or_default() - self.usage.cores
    }

    /// How many more models it may hold; `None`: as many as fit.
    pub(crate) fn free_models(&self) -> Option<u32> {
        Some(self.seats.info.as_ref()?.max_models?.saturating_sub(self.usage.models))
    }
}

impl<'w> Draft<'w> {
    /// A worker as this plan has it; `None`: no such.
    pub(crate) fn site(&self, worker: &WorkerId) -> Option<Site<'w>> {
        let (id, seats) = self.world.workers.get_key_value(worker)?;
        Some(self.site_of(id, seats))
    }

    fn site_of(&self, id: &'w WorkerId, seats: &'w Seats) -> Site<'w> {
        let usage = if self.usage.is_empty() { None } else { self.usage.get(id).copied() };
        Site { id, seats, usage: usage.unwrap_or_else(|| Usage::of(seats)) }
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
                let site = Site { id, seats, usage };
                shelves.put(id, self.shelf(&site), site.free());
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
    pub(crate) fn shelf(&self, site: &Site<'w>) -> Shelf<'w> {
        let newest = self.newest.get_or_init(|| newest_joined(self.world, self.now));
        Shelf::of(site.seats, site.usage.coming, newest.as_ref())
    }

    /// Sorts the workers that can be reached, once; [`shelves`](Self::shelves) reads it.
    pub(crate) fn shelve(&mut self) {
        if self.shelves.is_none() {
            let mut shelves = Shelves::default();
            for (id, seats) in self.world.workers.iter().filter(|(_, seats)| seats.alive()) {
                let site = self.site_of(id, seats);
                shelves.put(id, self.shelf(&site), site.free());
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
