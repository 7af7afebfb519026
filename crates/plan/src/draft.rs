//! The plan in the making: a layer over the world that holds what this plan changes. It owns the arithmetic of memory.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use berth_spec::{ByteSize, DeploymentName, Event, Revision, RevisionId, Time, WorkerId, event::Severity};

use crate::{
    Replica, Rollout, World, claim, drain, lost, rollout, scale,
    world::{Entry, Rank, Verdict},
};

/// The plan in the making.
pub(crate) struct Draft<'w> {
    pub(crate) world: &'w World,
    pub(crate) now: Time,
    works: BTreeMap<DeploymentName, Work<'w>>,
    /// Claims on workers where they differ from the world's.
    used: BTreeMap<WorkerId, ByteSize>,
    /// Replicas of the world that this plan takes away: they are nobody's victims any more.
    left: BTreeSet<(WorkerId, RevisionId)>,
    /// Replicas that this plan puts on a worker, in the order of eviction.
    arrived: BTreeMap<WorkerId, BTreeSet<Rank>>,
    /// Workers by free memory, the most first; made when it is first asked for.
    by_free: Option<BTreeSet<(Reverse<ByteSize>, WorkerId)>>,
    /// Workers that were looked at, with the replicas whose claim grew.
    pub(crate) grown: BTreeMap<WorkerId, BTreeSet<RevisionId>>,
    pub(crate) events: Vec<Event>,
}

/// One deployment in the plan.
pub(crate) struct Work<'w> {
    pub(crate) entry: &'w Entry,
    pub(crate) rollout: Option<Rollout>,
    pub(crate) replicas: Vec<Replica>,
    pub(crate) revisions: BTreeMap<RevisionId, Arc<Revision>>,
    /// Replicas that each live revision should have.
    pub(crate) target: u32,
    pub(crate) verdict: Option<Verdict>,
    /// It wants more than it has.
    pub(crate) unplaced: bool,
    /// When to look again.
    pub(crate) wake: Option<Time>,
}

impl Work<'_> {
    /// Asks to be looked at again at `at`, if that is earlier than what was asked before.
    pub(crate) fn wake_at(&mut self, at: Time) {
        self.wake = Some(self.wake.map_or(at, |before| before.min(at)));
    }

    pub(crate) fn name(&self) -> &DeploymentName {
        &self.entry.deployment.name
    }

    /// Whether its rollout waits for something to be ready.
    fn unsettled(&self) -> bool {
        matches!(self.rollout, Some(Rollout::Starting { .. } | Rollout::Surging { .. } | Rollout::Recreating { .. }))
            && self.target > 0
    }

    /// A revision by its id: the one that is wanted, or one that is remembered.
    pub(crate) fn revision(&mut self, id: &RevisionId) -> Option<Arc<Revision>> {
        if let Some(known) = self.revisions.get(id) {
            return Some(Arc::clone(known));
        }
        (*id == self.entry.wanted).then(|| {
            let revision = Arc::new(self.entry.deployment.revision());
            self.revisions.insert(id.clone(), Arc::clone(&revision));
            revision
        })
    }

    /// Replicas of a revision that answer.
    pub(crate) fn ready(&self, world: &World, revision: &RevisionId) -> u32 {
        let ready = self.replicas.iter().filter(|replica| {
            replica.revision == *revision
                && world.workers.get(&replica.worker).is_some_and(|seats| seats.ready(revision))
        });
        u32::try_from(ready.count()).unwrap_or(u32::MAX)
    }
}

impl<'w> Draft<'w> {
    pub(crate) fn new(world: &'w World, now: Time) -> Self {
        Self {
            world,
            now,
            works: BTreeMap::new(),
            used: BTreeMap::new(),
            left: BTreeSet::new(),
            arrived: BTreeMap::new(),
            by_free: None,
            grown: BTreeMap::new(),
            events: Vec::new(),
        }
    }

    /// Takes a deployment up and goes with it through the steps that need no other one. Does nothing the second time.
    pub(crate) fn open(&mut self, name: &DeploymentName) {
        if self.works.contains_key(name) {
            return;
        }
        let Some(entry) = self.world.entries.get(name) else { return };
        let record = entry.record();
        let mut work = Work {
            entry,
            rollout: record.map(|record| record.rollout.clone()),
            replicas: record.map(|record| record.replicas.clone()).unwrap_or_default(),
            revisions: record.map(|record| record.revisions.clone()).unwrap_or_default(),
            target: 0,
            verdict: entry.last_verdict(self.now).cloned(),
            unplaced: false,
            wake: None,
        };
        if let Some(known) = work.revisions.get_mut(&entry.wanted) {
            // The same revision may be declared in another way: its location, or the author's word on its memory.
            let declared = entry.deployment.revision();
            if **known != declared {
                *known = Arc::new(declared);
            }
        }
        lost::step(self, &mut work);
        scale::step(self, &mut work);
        rollout::step(self, &mut work);
        drain::step(self, &mut work);
        self.works.insert(name.clone(), work);
    }

    /// Goes through the rollouts once more, after placing. Says whether any has moved; each moves forward only, so that
    /// this ends.
    pub(crate) fn advance(&mut self) -> bool {
        let starting: Vec<DeploymentName> =
            self.works.iter().filter(|(_, work)| work.unsettled()).map(|(name, _)| name.clone()).collect();
        let mut moved = false;
        for name in starting {
            let _ = self.with(&name, |draft, work| {
                let before = work.rollout.clone();
                rollout::step(draft, work);
                if work.rollout != before {
                    drain::step(draft, work);
                    moved = true;
                }
            });
        }
        moved
    }

    /// Works on one deployment, which is opened if need be.
    pub(crate) fn with<R>(
        &mut self,
        name: &DeploymentName,
        change: impl FnOnce(&mut Self, &mut Work<'w>) -> R,
    ) -> Option<R> {
        self.open(name);
        let (name, mut work) = self.works.remove_entry(name)?;
        let result = change(self, &mut work);
        self.works.insert(name, work);
        Some(result)
    }

    pub(crate) fn works(&self) -> &BTreeMap<DeploymentName, Work<'w>> {
        &self.works
    }

    /// Claims on a worker.
    pub(crate) fn used(&self, worker: &WorkerId) -> ByteSize {
        match self.used.get(worker) {
            Some(used) => *used,
            None => self.world.workers.get(worker).map_or(ByteSize::ZERO, |seats| seats.used),
        }
    }

    fn set_used(&mut self, worker: &WorkerId, used: ByteSize) {
        if let Some(by_free) = &mut self.by_free
            && let Some(seats) = self.world.workers.get(worker)
            && seats.alive()
        {
            let before = self.used.get(worker).copied().unwrap_or(seats.used);
            by_free.remove(&(Reverse(seats.memory() - before), worker.clone()));
            by_free.insert((Reverse(seats.memory() - used), worker.clone()));
        }
        self.used.insert(worker.clone(), used);
    }

    /// Sets memory aside for a replica that comes to a worker.
    pub(crate) fn claim(&mut self, entry: &Entry, replica: &Replica) {
        self.set_used(&replica.worker, self.used(&replica.worker) + replica.claim);
        self.arrived.entry(replica.worker.clone()).or_default().insert(entry.rank(&replica.revision));
    }

    /// Gives back what a replica claimed.
    pub(crate) fn release(&mut self, entry: &Entry, replica: &Replica) {
        self.set_used(&replica.worker, self.used(&replica.worker) - replica.claim);
        let arrived = self.arrived.get_mut(&replica.worker);
        if !arrived.is_some_and(|arrived| arrived.remove(&entry.rank(&replica.revision))) {
            self.left.insert((replica.worker.clone(), replica.revision.clone()));
        }
    }

    /// What sits on a worker in this plan, the first to be evicted first.
    pub(crate) fn sitting<'a>(&'a self, worker: &'a WorkerId) -> impl Iterator<Item = &'a Rank> {
        let stayed = self.world.workers.get(worker).into_iter().flat_map(|seats| &seats.order);
        let mut stayed = stayed.filter(|rank| !self.left.contains(&(worker.clone(), rank.revision.clone()))).peekable();
        let mut arrived = self.arrived.get(worker).into_iter().flatten().peekable();
        std::iter::from_fn(move || match (stayed.peek(), arrived.peek()) {
            (Some(old), Some(new)) if new < old => arrived.next(),
            (Some(_), _) => stayed.next(),
            (None, _) => arrived.next(),
        })
    }

    /// What nobody claims on a worker.
    pub(crate) fn free(&self, worker: &WorkerId) -> ByteSize {
        let memory = self.world.workers.get(worker).map_or(ByteSize::ZERO, crate::world::Seats::memory);
        memory - self.used(worker)
    }

    /// Sorts the workers that can be reached by free memory, once; [`roomy`](Self::roomy) reads it.
    pub(crate) fn by_free(&mut self) {
        if self.by_free.is_none() {
            let alive = self.world.workers.iter().filter(|(_, seats)| seats.alive());
            let sorted = alive.map(|(id, _)| (Reverse(self.free(id)), id.clone())).collect();
            self.by_free = Some(sorted);
        }
    }

    /// The workers with `need` to spare, the most free memory first. Empty before [`by_free`](Self::by_free).
    pub(crate) fn roomy(&self, need: ByteSize) -> impl Iterator<Item = &WorkerId> {
        let sorted = self.by_free.iter().flatten();
        sorted.take_while(move |(free, _)| free.0 >= need).map(|(_, worker)| worker)
    }

    /// Takes away the replicas that `goes` says yes to.
    pub(crate) fn drop_replicas(&mut self, work: &mut Work<'_>, mut goes: impl FnMut(&Replica) -> bool) -> usize {
        let (gone, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut work.replicas).into_iter().partition(|r| goes(r));
        work.replicas = kept;
        for replica in &gone {
            self.release(work.entry, replica);
        }
        gone.len()
    }

    /// Brings a replica's claim up to date.
    pub(crate) fn reclaim(&mut self, work: &mut Work<'_>) {
        for replica in &mut work.replicas {
            let Some(revision) = work.revisions.get(&replica.revision) else { continue };
            let claim = claim::of_replica(self.world, work.entry, revision, replica);
            let grown = self.grown.entry(replica.worker.clone()).or_default();
            if claim == replica.claim {
                continue;
            }
            if claim > replica.claim {
                grown.insert(replica.revision.clone());
            }
            self.set_used(&replica.worker, self.used(&replica.worker) - replica.claim + claim);
            replica.claim = claim;
        }
    }

    /// Notes something worth telling.
    pub(crate) fn tell(
        &mut self,
        severity: Severity,
        reason: &'static str,
        about: (&DeploymentName, Option<&WorkerId>),
        message: String,
    ) {
        let (deployment, worker) = (Some(about.0.clone()), about.1.cloned());
        self.events.push(Event { at: self.now, severity, reason, message, deployment, worker });
    }
}
