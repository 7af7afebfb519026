//! Applies a plan to the world and to the indexes that follow from it.

use berth_spec::{ByteSize, DeploymentName, Placed, Residency, RevisionId, Time, WorkerId, routes::Readiness};

use super::{Rank, TrackedDeployment, Verdict, World};
use crate::{Planned, Record, Replica, Rollout, planned::Note, proof::Settings};

/// Deployments that are not ready and are named in the readiness: enough to start looking, and one line.
const MISSING_NAMED: usize = 5;

impl World {
    /// Takes a plan over: its records are stored. Must be the plan that was made last from this world.
    pub fn commit(&mut self, planned: &Planned) {
        if self.started.is_none() {
            self.started = Some(planned.at);
            self.hold_if_many_are_unseen(planned.at);
        }
        self.tell_loss(planned);
        self.generation = self.generation.max(planned.generation);
        for (name, record) in &planned.records {
            if self.entries.contains_key(name) {
                self.rerank(name, |entry| entry.warm_mut().record.clone_from(record));
            } else {
                self.orphans.remove(name);
            }
        }
        for (worker, change) in &planned.assignments {
            for revision in &change.unset {
                self.unassign(worker, revision);
            }
            for placed in &change.set {
                self.assign(worker, placed.clone());
            }
            if let Some(tracked) = self.workers.get_mut(worker) {
                tracked.sent = change.generation;
            }
            self.limits_told(worker, change.limits);
        }
        for evicted in &planned.evicted {
            let sides = [Some(evicted.revision.deployment()), evicted.whom.as_ref()];
            for name in sides.into_iter().flatten() {
                if let Some(entry) = self.entries.get_mut(name) {
                    entry.warm_mut().remember(evicted);
                }
            }
        }
        self.note_idle_evicted(planned);
        for (name, note) in &planned.notes {
            if let Some(goal) = note.settles_for {
                self.settle_for(name, goal, planned.at);
            }
            self.note(name, note, planned.at);
        }
        for name in &planned.gone {
            self.forget(name);
        }
    }

    /// Remembers that people were told of a mass loss.
    fn tell_loss(&mut self, planned: &Planned) {
        let Some(held) = &mut self.held else { return };
        if planned.at >= held.loss.until {
            self.held_before = held.loss.until;
            self.held = None;
        } else if planned.loss.is_some_and(|told| told.since == held.loss.since) {
            held.told = true;
        }
    }

    fn note(&mut self, name: &DeploymentName, note: &Note, now: Time) {
        // Something may have happened while the plan was being stored.
        let since = self.entries.get(name).and_then(|entry| entry.warm.as_ref()?.wake);
        let since = since.filter(|at| note.woke != Some(*at));
        self.set_wake(name, since.into_iter().chain(note.wake).min());
        let Some(entry) = self.entries.get_mut(name) else { return };
        entry.routed = note.routed;
        let on_demand = entry.deployment.spec.replicas.min == 0;
        if note.verdict.is_some() || entry.warm.is_some() {
            let warm = entry.warm_mut();
            warm.verdict.clone_from(&note.verdict);
            warm.forgiven &= !note.forgave;
            // A canary on demand is remembered while nothing of it is loaded.
            let is_idle = |record: &Record| {
                on_demand && record.replicas.is_empty() && matches!(record.rollout, Rollout::Canary { .. })
            };
            if warm.record.as_ref().is_none_or(is_idle) {
                warm.paged_out = None;
                warm.copies.goal = 0;
            }
        }
        entry.cool(now);
        set_in(&mut self.unplaced, name, note.unplaced);
        set_in(&mut self.refused, name, matches!(note.verdict, Some(Verdict::NoCapacity { .. })));
        self.refresh_resident(name);
    }

    /// Puts what a stored record says where it says, instead of what was there.
    pub(super) fn assign_record(&mut self, name: &DeploymentName, record: Option<Record>) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        let deployment = entry.deployment.clone();
        let before = entry.record().cloned();
        self.rerank(name, |entry| entry.warm_mut().record.clone_from(&record));
        for replica in before.iter().flat_map(|record| &record.replicas) {
            self.unassign(&replica.worker, &replica.revision);
        }
        let settings = record.as_ref().map(|record| Settings::of(self, &deployment, record));
        for replica in record.iter().flat_map(|record| &record.replicas) {
            let Some(revision) = record.as_ref().and_then(|record| record.revisions.get(&replica.revision)) else {
                continue;
            };
            let Some(settings) = &settings else { continue };
            let placed = Placed {
                revision: revision.clone(),
                claim: replica.claim,
                gpu: deployment.spec.gpu.clone(),
                urgent: false,
                serving: settings.for_replica(&replica.revision, None),
            };
            let sent = record.as_ref().map_or(self.generation, |record| record.generation);
            self.assign(&replica.worker, placed);
            if let Some(tracked) = self.workers.get_mut(&replica.worker) {
                tracked.sent = tracked.sent.max(sent);
            }
        }
        if self.entries.get(name).and_then(|entry| entry.warm.as_ref()).is_some_and(|warm| warm.is_refused()) {
            self.failing.insert(name.clone());
        }
        self.recall_goal(name);
    }

    fn assign(&mut self, worker: &WorkerId, placed: Placed) {
        let revision = placed.revision.id.clone();
        self.unassign(worker, &revision);
        let Some(entry) = self.entries.get(revision.deployment()) else { return };
        let rank = entry.rank(&revision);
        let tracked = self.workers.get_or_insert(worker);
        tracked.used += placed.claim;
        tracked.equip(&entry.deployment.spec, &revision);
        tracked.count_claim(&placed);
        tracked.order.insert(rank);
        tracked.assigned.insert(revision.clone(), placed);
        self.refresh_stray(worker, &revision);
    }

    fn unassign(&mut self, worker: &WorkerId, revision: &RevisionId) {
        let Some(tracked) = self.workers.get_mut(worker) else { return };
        let Some(placed) = tracked.assigned.remove(revision) else { return };
        tracked.used -= placed.claim;
        tracked.strip(revision);
        tracked.uncount_claim(&placed);
        if let Some(entry) = self.entries.get(revision.deployment()) {
            let rank = entry.rank(revision);
            tracked.order.remove(&rank);
        }
        self.refresh_stray(worker, revision);
    }

    /// Keeps `strays`, `coming` and `busy` true for one replica.
    pub(super) fn refresh_stray(&mut self, worker: &WorkerId, revision: &RevisionId) {
        let Some(tracked) = self.workers.get_mut(worker) else { return };
        tracked.refresh_coming(revision);
        let ready = tracked.inventory.get(revision).is_some_and(Residency::is_ready);
        let key = (revision.clone(), worker.clone());
        if ready && !tracked.assigned.contains_key(revision) {
            self.strays.insert(key);
        } else {
            self.strays.remove(&key);
        }
    }

    /// Changes a deployment and moves its replicas in the order of eviction to where they belong afterwards.
    pub(super) fn rerank(&mut self, name: &DeploymentName, change: impl FnOnce(&mut TrackedDeployment)) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        let before = ranks(entry);
        change(entry);
        let after = ranks(entry);
        if before == after {
            return;
        }
        for (worker, rank) in before {
            if let Some(tracked) = self.workers.get_mut(&worker) {
                tracked.order.remove(&rank);
            }
        }
        for (worker, rank) in after {
            // What is only about to sit down there gets its place then.
            if let Some(tracked) = self.workers.get_mut(&worker).filter(|s| s.assigned.contains_key(&rank.revision)) {
                tracked.order.insert(rank);
            }
        }
    }

    /// Everything that sits on a worker is looked at again; what wants to sit anywhere always is.
    pub(super) fn touch_worker(&mut self, worker: &WorkerId) {
        let Some(tracked) = self.workers.get(worker) else { return };
        let names: std::collections::BTreeSet<DeploymentName> = tracked
            .assigned
            .keys()
            .chain(tracked.inventory.keys())
            .map(|revision| revision.deployment().clone())
            .collect();
        for name in &names {
            self.refresh_resident(name);
        }
        self.touch_each(&names);
    }

    /// Keeps `residents` and `missing` true for one deployment.
    pub(super) fn refresh_resident(&mut self, name: &DeploymentName) {
        let Some(entry) = self.entries.get(name) else { return };
        let resident = entry.must_be_resident();
        let there = resident && self.is_resident(entry.record());
        set_in(&mut self.residents, name, resident);
        set_in(&mut self.missing, name, resident && !there);
    }

    /// Returns true if any replica of a record is loaded within reach, or assumed to be. One whose process died still
    /// counts: its own requests are refused, and a model that dies again and again must not take every gateway of the
    /// fleet out of its load balancer.
    pub(crate) fn is_resident(&self, record: Option<&Record>) -> bool {
        record.is_some_and(|record| {
            let loaded = |replica: &Replica| {
                let tracked = self.workers.get(&replica.worker).filter(|tracked| tracked.answers());
                tracked.and_then(|tracked| tracked.inventory.get(&replica.revision)).is_some_and(Residency::is_loaded)
            };
            let answers = |replica: &Replica| self.answers_at(&replica.worker, &replica.revision, &record.rollout);
            record.replicas.iter().any(|replica| loaded(replica) || answers(replica))
        })
    }

    /// Readiness of the resident deployments.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Readiness {
            planned: self.started.is_some(),
            expected: count(self.residents.len()),
            ready: count(self.residents.len() - self.missing.len()),
            missing: self.missing.iter().take(MISSING_NAMED).cloned().collect(),
        }
    }

    /// Returns true if any worker within reach reports a revision of the deployment.
    pub(crate) fn held_anywhere(&self, name: &DeploymentName) -> bool {
        // Revisions sort by deployment first, so that those of one deployment lie together.
        self.workers.values().filter(|tracked| tracked.alive()).any(|tracked| {
            tracked.inventory.range(first_of(name)..).next().is_some_and(|(revision, _)| revision.deployment() == name)
        })
    }

    /// Forgets a deployment and all indexes of it.
    pub(super) fn forget(&mut self, name: &DeploymentName) {
        self.set_wake(name, None);
        if let Some(TrackedDeployment { warm: Some(warm), .. }) = self.entries.get(name) {
            for replica in warm.record.iter().flat_map(|record| record.replicas.clone()).collect::<Vec<_>>() {
                self.unassign(&replica.worker, &replica.revision);
            }
        }
        self.forget_idle_evicted(name);
        self.waiting.remove(name);
        self.readdress(name, None);
        self.entries.remove(name);
        self.residents.remove(name);
        self.missing.remove(name);
        self.unplaced.remove(name);
        self.refused.remove(name);
        self.regional.remove(name);
    }

    /// The memory that may be given out on all workers that can be reached, and what of it is.
    #[must_use]
    pub fn memory(&self) -> (ByteSize, ByteSize) {
        let alive = || self.workers.values().filter(|tracked| tracked.alive());
        (alive().map(super::TrackedWorker::memory).sum(), alive().map(|tracked| tracked.used).sum())
    }
}

/// The ranks of a deployment's replicas in the order of eviction.
fn ranks(entry: &TrackedDeployment) -> Vec<(WorkerId, Rank)> {
    let replicas = entry.record().into_iter().flat_map(|record| &record.replicas);
    replicas.map(|replica| (replica.worker.clone(), entry.rank(&replica.revision))).collect()
}

/// The smallest revision that a deployment could have.
pub(super) fn first_of(name: &DeploymentName) -> RevisionId {
    RevisionId::with_hash(name.clone(), [0; 6])
}

pub(super) fn set_in(set: &mut std::collections::BTreeSet<DeploymentName>, name: &DeploymentName, present: bool) {
    if present {
        set.insert(name.clone());
    } else {
        set.remove(name);
    }
}
