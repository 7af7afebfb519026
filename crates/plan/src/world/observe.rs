//! What workers say.

use std::{collections::BTreeSet, sync::Arc};

use berth_spec::{
    ByteSize, DeploymentName, Event, Failure, FailureCategory, InventoryChange, Residency, RevisionId, Time, WorkerId,
    event::Severity, residency::Ready,
};

use super::{LoadFailed, World, entry::Learned};
use crate::{Observed, claim::Basis};

impl World {
    /// Takes in what a worker reports. Words of an earlier start of the worker are ignored; a change to an inventory
    /// that was never whole asks for the whole.
    pub fn observe(&mut self, change: &InventoryChange, now: Time) -> Observed {
        self.clock = self.clock.max(now);
        let mut observed = Observed::default();
        let Some(seats) = self.workers.get_mut(&change.worker) else {
            return Observed { resync: true, ..observed };
        };
        let known = seats.info.as_ref().map_or(0, |info| info.incarnation);
        if change.incarnation != known {
            return observed;
        }
        if !change.whole && !seats.reported {
            return Observed { resync: true, ..observed };
        }
        let mut gone: BTreeSet<RevisionId> = BTreeSet::new();
        if change.whole {
            gone.extend(seats.inventory.keys().cloned());
            if !seats.reported {
                seats.joined = now;
            }
            seats.reported = true;
        }
        // An assignment that we do not remember having numbered: go on from there, or the worker will ignore us.
        seats.sent = seats.sent.max(change.seen);
        let turned = std::mem::replace(&mut seats.state, change.state) != change.state;
        seats.load = change.load.unwrap_or(seats.load);
        seats.credentials = change.credentials;
        if let Some(breakers) = &change.breakers {
            seats.breakers.clone_from(breakers);
        }
        self.generation = self.generation.max(change.seen);
        if change.whole {
            observed.touched.extend(self.end_presumption(&change.worker));
        }
        if turned {
            self.landscape_changed(&change.worker);
            self.touch_worker(&change.worker);
        }
        for (revision, residency) in &change.replicas {
            gone.remove(revision);
            self.observe_replica(&change.worker, revision, residency.as_ref(), now, &mut observed);
        }
        for revision in gone {
            self.observe_replica(&change.worker, &revision, None, now, &mut observed);
        }
        self.observe_usage(change);
        for name in &observed.touched {
            self.refresh_resident(name);
        }
        let touched = std::mem::take(&mut observed.touched);
        self.touch_each(&touched);
        observed.touched = touched;
        observed
    }

    /// For people: it decides nothing, and touches nothing.
    fn observe_usage(&mut self, change: &InventoryChange) {
        let Some(seats) = self.workers.get_mut(&change.worker) else { return };
        if change.whole {
            seats.usage.clear();
        }
        seats.usage.extend(change.usage.iter().cloned());
        seats.usage.retain(|revision, _| seats.inventory.contains_key(revision));
    }

    fn observe_replica(
        &mut self,
        worker: &WorkerId,
        revision: &RevisionId,
        residency: Option<&Residency>,
        now: Time,
        observed: &mut Observed,
    ) {
        let Some(seats) = self.workers.get_mut(worker) else { return };
        let before = match residency {
            Some(residency) => seats.inventory.insert(revision.clone(), residency.clone()),
            None => seats.inventory.remove(revision),
        };
        let memory = seats.memory();
        let claim = seats.assigned.get(revision).map(|placed| placed.claim);
        self.refresh_stray(worker, revision);
        if before.as_ref() == residency {
            return;
        }
        let name = revision.deployment();
        let learned = match residency {
            Some(Residency::Fetching { total: Some(total), .. }) => self.learn_artifact(revision, *total),
            Some(Residency::Ready(ready)) => {
                if ready.measured {
                    self.learn_measured(revision, ready, observed);
                }
                self.forget_failure(worker, revision);
                if !before.as_ref().is_some_and(Residency::is_ready) {
                    observed.events.push(loaded(name, worker, now, ready));
                }
                true
            }
            Some(Residency::Failed(failure)) => {
                observed.events.push(failed(name, worker, now, failure));
                self.learn_failure(worker, revision, failure, (claim, memory, now));
                true
            }
            _ => false,
        };
        // Progress of a fetch is for people; it decides nothing.
        if learned || before.as_ref().map(Residency::as_str) != residency.map(Residency::as_str) {
            observed.touched.insert(name.clone());
        }
    }

    /// The artifact's size says what its memory will be at least, unless it was measured before.
    fn learn_artifact(&mut self, revision: &RevisionId, total: ByteSize) -> bool {
        let memory = self.policy.memory_of(total);
        let known = self.entries.get(revision.deployment()).and_then(|entry| entry.learned(revision));
        known.is_none_or(|known| known.basis == Basis::Predicted && known.memory < memory)
            && self.learn(revision, Learned { memory, basis: Basis::Predicted })
    }

    /// The most that was ever measured counts: replicas of one artifact differ a little from worker to worker, and a
    /// claim that follows the last one would have it evicted and placed again for ever.
    fn learn_measured(&mut self, revision: &RevisionId, ready: &Ready, observed: &mut Observed) {
        let known = self.entries.get(revision.deployment()).and_then(|entry| entry.learned(revision));
        let before = known.filter(|known| known.basis == Basis::Measured).map_or(ByteSize::ZERO, |known| known.memory);
        self.learn(revision, Learned { memory: ready.memory.max(before), basis: Basis::Measured });
        let known = self.measured.entry(ready.digest).or_default();
        if *known < ready.memory {
            *known = ready.memory;
            observed.measured.push((ready.digest, ready.memory));
        }
    }

    fn learn(&mut self, revision: &RevisionId, learned: Learned) -> bool {
        let Some(entry) = self.entries.get_mut(revision.deployment()) else { return false };
        entry.warm_mut().learned.insert(revision.clone(), learned) != Some(learned)
    }

    fn forget_failure(&mut self, worker: &WorkerId, revision: &RevisionId) {
        if let Some(warm) = self.entries.get_mut(revision.deployment()).and_then(|entry| entry.warm.as_mut()) {
            warm.failures.remove(&(revision.clone(), worker.clone()));
        }
    }

    fn learn_failure(
        &mut self,
        worker: &WorkerId,
        revision: &RevisionId,
        failure: &Arc<Failure>,
        (claim, memory, now): (Option<ByteSize>, ByteSize, Time),
    ) {
        // From now, not from when it happened: a failure that is reported late would else keep its replica for ever.
        let until = now + self.policy.failure_memory;
        if failure.category == FailureCategory::Memory
            && let Some(claim) = claim
            && failure.retry_at.is_some()
        {
            // It takes more than was set aside, nobody knows how much: double it, up to all that the worker has.
            let memory = ByteSize(claim.0.saturating_mul(2)).min(memory.max(claim));
            self.learn(revision, Learned { memory, basis: Basis::Predicted });
        }
        // A disk may stay full for long, and the disks of others are not.
        let elsewhere = failure.category == FailureCategory::Disk
            && self.workers.iter().any(|(other, seats)| other != worker && seats.alive());
        if (failure.retry_at.is_none() || elsewhere)
            && let Some(entry) = self.entries.get_mut(revision.deployment())
        {
            let until = failure.retry_at.unwrap_or(until);
            let (category, message) = (failure.category, failure.message.clone());
            let failed = LoadFailed { category, message, until, failure: Arc::clone(failure) };
            entry.warm_mut().failures.insert((revision.clone(), worker.clone()), failed);
        }
    }
}

fn loaded(name: &DeploymentName, worker: &WorkerId, now: Time, ready: &Ready) -> Event {
    let phases = &ready.phases;
    let load_ms = phases.fetch_ms + phases.load_ms + phases.validate_ms;
    Event {
        at: now,
        severity: Severity::Normal,
        reason: "Loaded",
        message: format!("{name} is ready on {worker}: {} of memory, loaded in {load_ms:.0} ms", ready.memory),
        deployment: Some(name.clone()),
        worker: Some(worker.clone()),
    }
}

fn failed(name: &DeploymentName, worker: &WorkerId, now: Time, failure: &Failure) -> Event {
    let next = match failure.retry_at {
        Some(at) => format!("attempt {} failed, next at {at}", failure.attempts),
        None => format!("given up after {} attempts", failure.attempts),
    };
    Event {
        at: now,
        severity: Severity::Warning,
        reason: "LoadFailed",
        message: format!(
            "{name} could not be loaded on {worker} ({}): {}; {next}",
            failure.category.as_str(),
            failure.message
        ),
        deployment: Some(name.clone()),
        worker: Some(worker.clone()),
    }
}
