//! Takes in the reports of workers.

use std::collections::BTreeSet;

use berth_spec::{
    ByteSize, DeploymentName, Event, Failure, Generation, InventoryChange, Residency, RevisionId, Time, WorkerId,
    event::Severity,
    residency::{Deaths, Ready},
};

use super::{World, deployment::Learned};
use crate::{Observed, claim::Basis};

impl World {
    /// Takes in what a worker reports. Words of an earlier start of the worker are ignored; a change to an inventory
    /// that was never whole asks for the whole.
    pub fn observe(&mut self, change: &InventoryChange, now: Time) -> Observed {
        self.clock = self.clock.max(now);
        let mut observed = Observed::default();
        let Some(tracked) = self.workers.get_mut(&change.worker) else {
            return Observed { resync: true, ..observed };
        };
        let known = tracked.info.as_ref().map_or(0, |info| info.incarnation);
        if change.incarnation != known {
            return observed;
        }
        if !change.whole && !tracked.reported {
            return Observed { resync: true, ..observed };
        }
        let renewed =
            tracked.reported && change.credentials != tracked.credentials && change.credentials > Generation(0);
        let mut gone: BTreeSet<RevisionId> = BTreeSet::new();
        if change.whole {
            gone.extend(tracked.inventory.keys().cloned());
            if !tracked.reported {
                tracked.joined = now;
            }
            tracked.reported = true;
        }
        // An assignment that we do not remember having numbered: go on from there, or the worker will ignore us. A number
        // that was made up is of one worker, and would leave none for the plans of all.
        let seen = change.seen.believed().unwrap_or_default();
        tracked.sent = tracked.sent.max(seen);
        let turned = std::mem::replace(&mut tracked.state, change.state) != change.state;
        if let Some(load) = &change.load {
            tracked.load.clone_from(load);
        }
        tracked.credentials = change.credentials;
        let overhead = std::mem::replace(&mut tracked.overhead, change.overhead);
        tracked.renewed = if renewed { Some(now) } else { tracked.renewed };
        if let Some(breakers) = &change.breakers {
            tracked.breakers.clone_from(breakers);
        }
        self.generation = self.generation.max(seen);
        if change.whole {
            observed.changed.extend(self.end_assumption(&change.worker));
        }
        if turned {
            self.landscape_changed(&change.worker);
            self.touch_worker(&change.worker);
        }
        if renewed {
            observed.changed.extend(self.forgive_refusals(&change.worker, now));
        }
        for (revision, residency) in &change.replicas {
            gone.remove(revision);
            self.observe_replica(&change.worker, revision, residency.as_ref(), now, &mut observed);
        }
        for revision in gone {
            self.observe_replica(&change.worker, &revision, None, now, &mut observed);
        }
        self.observe_usage(change);
        self.overhead_changed(&change.worker, overhead);
        for name in &observed.changed {
            self.refresh_resident(name);
        }
        let changed = std::mem::take(&mut observed.changed);
        self.touch_each(&changed);
        observed.changed = changed;
        observed
    }

    /// The process of a worker takes more or less beside its models than before.
    fn overhead_changed(&mut self, worker: &WorkerId, before: ByteSize) {
        let Some(tracked) = self.workers.get(worker) else { return };
        if tracked.overhead < before {
            self.give_hope();
        } else if tracked.overhead > before && tracked.used + tracked.overhead > tracked.memory() {
            // Looking at one of its deployments is looking at the worker.
            let first = tracked.order.first().map(|rank| rank.revision.deployment().clone());
            first.iter().for_each(|name| self.touch(name));
        }
    }

    /// For people: it decides nothing, and touches nothing.
    fn observe_usage(&mut self, change: &InventoryChange) {
        let Some(tracked) = self.workers.get_mut(&change.worker) else { return };
        if change.whole {
            tracked.usage.clear();
        }
        let held = change.usage.iter().filter(|(revision, _)| tracked.inventory.contains_key(revision));
        tracked.usage.extend(held.cloned());
    }

    fn observe_replica(
        &mut self,
        worker: &WorkerId,
        revision: &RevisionId,
        residency: Option<&Residency>,
        now: Time,
        observed: &mut Observed,
    ) {
        let Some(tracked) = self.workers.get_mut(worker) else { return };
        let before = match residency {
            Some(residency) => tracked.inventory.insert(revision.clone(), residency.clone()),
            None => {
                tracked.usage.remove(revision);
                tracked.inventory.remove(revision)
            }
        };
        let claim = tracked.assigned.get(revision).map(|placed| placed.claim);
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
                } else {
                    self.learn_predicted(revision, ready.memory);
                }
                self.forget_failure(worker, revision);
                match &before {
                    Some(Residency::Ready(before)) => observed.events.extend(died(name, worker, now, before, ready)),
                    _ => observed.events.push(loaded(name, worker, now, ready)),
                }
                true
            }
            Some(Residency::Failed(failure)) => {
                observed.events.push(failed(name, worker, now, failure));
                self.learn_failure(worker, revision, failure, claim, now);
                true
            }
            _ => false,
        };
        // Progress of a fetch is for people; it decides nothing.
        if learned || before.as_ref().map(Residency::as_str) != residency.map(Residency::as_str) {
            observed.changed.insert(name.clone());
        }
    }

    /// The artifact's size says what its memory will be at least, unless it was measured before.
    fn learn_artifact(&mut self, revision: &RevisionId, total: ByteSize) -> bool {
        self.learn_predicted(revision, self.policy.memory_of(total))
    }

    pub(super) fn learn_predicted(&mut self, revision: &RevisionId, memory: ByteSize) -> bool {
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

    pub(super) fn learn(&mut self, revision: &RevisionId, learned: Learned) -> bool {
        let Some(entry) = self.entries.get_mut(revision.deployment()) else { return false };
        let warm = entry.warm_mut();
        warm.learned.insert(revision, learned, warm.record.as_ref())
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
        function: None,
    }
}

/// Of deaths in a row the first is told, one for another reason than the last, and else as often as their number doubles: a
/// process that dies every half minute must not wash everything else away.
fn died(name: &DeploymentName, worker: &WorkerId, now: Time, before: &Ready, ready: &Ready) -> Option<Event> {
    let deaths = ready.deaths.as_deref()?;
    let known = before.deaths.as_deref();
    let (count, in_a_row) = known.map_or((0, 0), |known| (known.count, known.in_a_row));
    // What follows the first part are words of the process, which differ.
    let first = |deaths: &Deaths| deaths.cause.split(';').next().unwrap_or_default().to_owned();
    let begins = deaths.in_a_row <= in_a_row || known.map(first) != Some(first(deaths));
    let told = deaths.count > count && (begins || deaths.in_a_row.checked_ilog2() > in_a_row.checked_ilog2());
    told.then(|| Event {
        at: now,
        severity: Severity::Warning,
        reason: "ProcessDied",
        message: format!(
            "the process of {name} on {worker} died ({} in a row, {} since it was loaded) and is started again: {}",
            deaths.in_a_row, deaths.count, deaths.cause
        ),
        deployment: Some(name.clone()),
        worker: Some(worker.clone()),
        function: None,
    })
}

fn failed(name: &DeploymentName, worker: &WorkerId, now: Time, failure: &Failure) -> Event {
    let next = match failure.retry_at {
        Some(at) => format!("attempt {} failed, next at {at}", failure.attempts),
        None if failure.attempts == 1 => "given up after 1 attempt".to_owned(),
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
        function: None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_spec::{Digest, residency::Phases};

    use super::*;

    fn ready(deaths: Option<(u32, u32)>) -> Ready {
        let deaths = deaths.map(|(count, in_a_row)| {
            Arc::new(Deaths {
                count,
                in_a_row,
                at: Time(1),
                cause: "it was killed by signal 9".to_owned(),
                again_at: Some(Time(3)),
            })
        });
        Ready {
            since: Time(0),
            memory: ByteSize(1),
            measured: true,
            digest: Digest([0; 32]),
            signature: None,
            devices: Vec::new(),
            phases: Phases::default(),
            note: None,
            unvalidated: None,
            deaths,
        }
    }

    #[test]
    fn a_process_that_dies_again_and_again_is_told_ever_more_rarely() {
        let (name, worker) = ("iris".parse().expect("a name"), WorkerId::new("w").expect("a name"));
        let told = |before, now| died(&name, &worker, Time(2), &ready(before), &ready(now));
        let event = told(None, Some((1, 1))).expect("the first");
        assert_eq!((event.reason, event.severity), ("ProcessDied", Severity::Warning));
        assert!(event.message.contains("iris on w") && event.message.contains("signal 9"), "{}", event.message);
        for (before, now, is_told) in [
            (None, None, false),
            (Some((1, 1)), Some((1, 1)), false),
            (Some((1, 1)), Some((2, 2)), true),
            (Some((2, 2)), Some((3, 3)), false),
            (Some((3, 3)), Some((5, 5)), true),
            (Some((7, 7)), Some((7, 7)), false),
            (Some((7, 7)), Some((8, 8)), true),
            (Some((40, 40)), Some((41, 41)), false),
            (Some((41, 41)), Some((42, 1)), true),
        ] {
            assert_eq!(told(before, now).is_some(), is_told, "{before:?} {now:?}");
        }
        let mut other = ready(Some((3, 3)));
        let deaths = other.deaths.as_mut().map(Arc::make_mut).expect("it died");
        deaths.cause = "it was killed by signal 9; its last words: x".to_owned();
        let told = |now: &Ready| died(&name, &worker, Time(2), &ready(Some((2, 2))), now).is_some();
        assert!(!told(&other), "the same cause in other words");
        "it ended with code 3".clone_into(&mut other.deaths.as_mut().map(Arc::make_mut).expect("it died").cause);
        assert!(told(&other), "another cause");
    }
}
