//! The plan in the making: a layer over the world that holds what this plan changes. `draft/room.rs` owns the arithmetic
//! of memory, cores, GPUs and counts. Knows no step of planning: `open.rs` takes deployments through theirs.

mod arrivals;
mod bucket;
mod room;
mod runtimes;
mod version;
mod works;

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use berth_spec::{DeploymentName, Event, Revision, RevisionId, Time, WorkerId, event::Severity};

pub use self::bucket::{LoadLevel, Queue};
pub(crate) use self::{
    bucket::WorkerBucket,
    room::WorkerDraft,
    runtimes::{RuntimeLimit, RuntimeUse},
    works::{WorkIndex, Works},
};
use self::{bucket::WorkerBuckets, room::ChangesByWorker, version::Version};
use crate::{
    Replica, Revisions, Rollout, World, claim,
    planned::Evicted,
    world::{Rank, TrackedDeployment, TrackedWorker, Verdict},
};

/// The plan in the making.
pub(crate) struct Draft<'w> {
    pub(crate) world: &'w World,
    pub(crate) now: Time,
    works: Works<'w>,
    changes: ChangesByWorker,
    /// The workers that can be reached, sorted; made when it is first asked for.
    buckets: Option<WorkerBuckets<'w>>,
    /// The newest version, while workers of older ones count as being replaced.
    newest: OnceCell<Option<Version<'w>>>,
    /// Workers that take more and can be reached, by region.
    by_region: OnceCell<BTreeMap<&'w str, Vec<&'w TrackedWorker>>>,
    /// Workers that were looked at, with the replicas whose claim grew.
    pub(crate) grown: BTreeMap<WorkerId, BTreeSet<RevisionId>>,
    pub(crate) events: Vec<Event>,
    pub(crate) evicted: Vec<Evicted>,
}

/// One deployment in the plan.
pub(crate) struct Work<'w> {
    pub(crate) entry: &'w TrackedDeployment,
    pub(crate) rollout: Option<Rollout>,
    pub(crate) replicas: Vec<Replica>,
    pub(crate) revisions: Revisions,
    /// Replicas that there should be; of a revision that is being replaced there may be fewer.
    pub(crate) target: u32,
    /// True if it was evicted rather than unwanted.
    pub(crate) idle_evicted: bool,
    /// Copies that load and use ask for; less once there is no room for them.
    pub(crate) goal: u32,
    pub(crate) verdict: Option<Verdict>,
    /// True if it wants more replicas than it has.
    pub(crate) unplaced: bool,
    /// Time at which it is planned again without an event.
    pub(crate) wake: Option<Time>,
}

impl<'w> Work<'w> {
    /// A deployment as the last plan left it.
    pub(crate) fn of(entry: &'w TrackedDeployment, now: Time) -> Self {
        let record = entry.record();
        Self {
            entry,
            rollout: record.map(|record| record.rollout.clone()),
            replicas: record.map(|record| record.replicas.clone()).unwrap_or_default(),
            revisions: record.map(|record| record.revisions.clone()).unwrap_or_default(),
            target: 0,
            idle_evicted: false,
            goal: entry.goal(),
            verdict: entry.last_verdict(now).cloned(),
            unplaced: false,
            wake: None,
        }
    }

    /// The place of a replica of a revision in the order of eviction, as the plan has it.
    fn rank(&self, revision: &RevisionId) -> Rank {
        self.entry.rank_among(revision, self.copies(revision), self.goal)
    }

    /// The replicas of a revision, wherever they are.
    pub(crate) fn copies(&self, revision: &RevisionId) -> u32 {
        let of = self.replicas.iter().filter(|replica| replica.revision == *revision);
        u32::try_from(of.count()).unwrap_or(u32::MAX)
    }

    /// Replicas that a live revision should have: of one that is being replaced no more than it had.
    pub(crate) fn target_of(&self, revision: &RevisionId) -> u32 {
        match &self.rollout {
            Some(Rollout::Surging { from, copies, .. }) if from == revision => self.target.min(*copies),
            _ => self.target,
        }
    }

    fn ranks(&self) -> Vec<(Replica, Rank)> {
        self.replicas.iter().map(|replica| (replica.clone(), self.rank(&replica.revision))).collect()
    }

    /// Returns true if it is loaded ahead of demand.
    pub(crate) fn preloads(&self) -> bool {
        self.entry.deployment.spec.replicas.min == 0 && self.entry.waiting() == 0 && self.entry.record().is_none()
    }

    /// The fewest copies that it must have where it is wanted at all.
    pub(crate) fn least(&self) -> u32 {
        self.entry.deployment.spec.replicas.min.max(1)
    }

    /// Asks to be looked at again at `at`, if that is earlier than what was asked before.
    pub(crate) fn wake_at(&mut self, at: Time) {
        self.wake = Some(self.wake.map_or(at, |before| before.min(at)));
    }

    pub(crate) fn name(&self) -> &'w DeploymentName {
        &self.entry.deployment.name
    }

    /// Returns true if its rollout waits for a replica to be ready. A canary waits for its author, until it is promoted.
    pub(crate) fn unsettled(&self) -> bool {
        let waits = match self.rollout {
            Some(Rollout::Starting { .. } | Rollout::Surging { .. } | Rollout::Recreating { .. }) => true,
            Some(Rollout::Canary { .. }) => self.entry.deployment.spec.rollout.canary.is_none(),
            Some(Rollout::Stable { .. } | Rollout::Stuck { .. }) | None => false,
        };
        waits && self.target > 0
    }

    /// A revision by its id: the one that is wanted, or one that is remembered.
    pub(crate) fn look_up(&self, id: &RevisionId) -> Option<Arc<Revision>> {
        let wanted = || Arc::new(Revision::with_id(&self.entry.deployment, id.clone()));
        self.revisions.get(id).cloned().or_else(|| self.entry.wants(id).then(wanted))
    }

    /// The same, and remembers it.
    pub(crate) fn revision(&mut self, id: &RevisionId) -> Option<Arc<Revision>> {
        let revision = self.look_up(id)?;
        if self.revisions.get(id).is_none() {
            self.revisions.insert(Arc::clone(&revision));
        }
        Some(revision)
    }

    /// Replicas of a revision that answer, or are assumed to.
    pub(crate) fn answering(&self, world: &World, revision: &RevisionId) -> u32 {
        let Some(rollout) = &self.rollout else { return 0 };
        let of = self.replicas.iter().filter(|replica| replica.revision == *revision);
        let answering = of.filter(|replica| world.answers_at(&replica.worker, revision, rollout));
        u32::try_from(answering.count()).unwrap_or(u32::MAX)
    }

    /// Replicas of a revision that are known to answer.
    pub(crate) fn ready(&self, world: &World, revision: &RevisionId) -> u32 {
        let ready = self.replicas.iter().filter(|replica| {
            replica.revision == *revision
                && world.workers.get(&replica.worker).is_some_and(|tracked| tracked.ready(revision))
        });
        u32::try_from(ready.count()).unwrap_or(u32::MAX)
    }
}

impl<'w> Draft<'w> {
    pub(crate) fn new(world: &'w World, now: Time) -> Self {
        Self {
            world,
            now,
            works: Works::default(),
            changes: ChangesByWorker::default(),
            buckets: None,
            newest: OnceCell::new(),
            by_region: OnceCell::new(),
            grown: BTreeMap::new(),
            events: Vec::new(),
            evicted: Vec::new(),
        }
    }

    /// Adds a deployment that is not there yet.
    pub(crate) fn add(&mut self, work: Work<'w>) {
        self.works.add(work);
    }

    /// Adds all deployments that there are, in the order of their names.
    #[expect(clippy::vec_box, reason = "slots hold boxes, so that growing moves pointers and not deployments")]
    pub(crate) fn fill(&mut self, works: Vec<Box<Work<'w>>>) {
        self.works.fill(works);
    }

    /// Calls `change` with one deployment of the plan; `None`: it is being worked on already.
    pub(crate) fn at<R>(&mut self, slot: WorkIndex, change: impl FnOnce(&mut Self, &mut Work<'w>) -> R) -> Option<R> {
        let mut work = self.works.take(slot)?;
        let result = change(self, &mut work);
        self.works.put_back(slot, work);
        Some(result)
    }

    pub(crate) fn works(&self) -> &Works<'w> {
        &self.works
    }

    /// Takes all deployments out, in the order of their names: the plan is made.
    pub(crate) fn take_works(&mut self) -> impl Iterator<Item = Box<Work<'w>>> + use<'w> {
        std::mem::take(&mut self.works).into_by_name()
    }

    /// Replicas on a worker in this plan, the first to be evicted first.
    pub(crate) fn eviction_order<'a>(&'a self, worker: &'a WorkerId) -> impl Iterator<Item = &'a Rank> {
        let index = self.world.workers.index(worker);
        let changes = index.and_then(|index| self.changes.get(index));
        let stayed = index.into_iter().flat_map(|index| &self.world.workers.at(index).1.order);
        let leaves = move |rank: &Rank| changes.is_some_and(|changes| changes.left.contains(&rank.revision));
        let mut stayed = stayed.filter(move |rank| !leaves(rank)).peekable();
        let mut arrived = changes.into_iter().flat_map(|changes| changes.arrived.in_order()).peekable();
        std::iter::from_fn(move || match (stayed.peek(), arrived.peek()) {
            (Some(old), Some(new)) if new < old => arrived.next(),
            (Some(_), _) => stayed.next(),
            (None, _) => arrived.next(),
        })
    }

    /// Places a replica on a worker: claims its room and ranks the deployment's replicas anew.
    pub(crate) fn put(&mut self, work: &mut Work<'_>, replica: Replica) {
        let before = work.ranks();
        work.replicas.reserve_exact(1); // nearly always the only one
        work.replicas.push(replica.clone());
        work.replicas.sort();
        self.claim(work.entry, &replica, work.rank(&replica.revision));
        self.rerank(&before, work);
    }

    /// Takes away the replicas that `goes` says yes to.
    pub(crate) fn drop_replicas(&mut self, work: &mut Work<'_>, mut goes: impl FnMut(&Replica) -> bool) -> usize {
        if !work.replicas.iter().any(&mut goes) {
            return 0;
        }
        let before = work.ranks();
        work.replicas.retain(|replica| !goes(replica));
        let gone = before.iter().filter(|(replica, _)| goes(replica));
        let count = gone.map(|(replica, rank)| self.release(work.entry, replica, rank)).count();
        self.rerank(&before, work);
        count
    }

    /// Makes do with fewer copies than load and use ask for.
    pub(crate) fn settle_for(&mut self, work: &mut Work<'_>, goal: u32) {
        let before = work.ranks();
        work.goal = goal;
        work.target = work.target.min(if work.preloads() { goal } else { goal.max(work.least()) });
        self.rerank(&before, work);
    }

    /// Moves what stays to where it belongs in the order of eviction: copies matter less while there are others.
    fn rerank(&mut self, before: &[(Replica, Rank)], work: &Work<'_>) {
        for (replica, old) in before.iter().filter(|(replica, _)| work.replicas.contains(replica)) {
            let new = work.rank(&replica.revision);
            if new == *old {
                continue;
            }
            let Some((_, changes)) = self.change(&replica.worker) else { continue };
            if !changes.arrived.remove(old) {
                changes.left.insert(replica.revision.clone());
            }
            changes.arrived.insert(new);
        }
    }

    /// Brings a replica's claim up to date.
    pub(crate) fn reclaim(&mut self, work: &mut Work<'_>) {
        for replica in &mut work.replicas {
            let Some(revision) = work.revisions.get(&replica.revision) else { continue };
            let claim = claim::of_replica(self.world, work.entry, revision, replica);
            let other_device_memory = self.counts_other_device_memory(work.entry, replica);
            // A worker that was looked at is relieved where too much is claimed, whatever grew.
            let grown = self.grown.entry(replica.worker.clone()).or_default();
            if claim == replica.claim && !other_device_memory {
                continue;
            }
            if claim > replica.claim {
                grown.insert(replica.revision.clone());
            }
            self.resize(work.entry, replica, claim);
            replica.claim = claim;
        }
    }

    /// Notes something worth telling.
    pub(crate) fn tell(
        &mut self,
        severity: Severity,
        reason: &'static str,
        deployment: &DeploymentName,
        worker: Option<&WorkerId>,
        message: String,
    ) {
        let (deployment, worker) = (Some(deployment.clone()), worker.cloned());
        self.events.push(Event { at: self.now, severity, reason, message, deployment, worker, function: None });
    }
}
