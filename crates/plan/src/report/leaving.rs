//! Progress of a worker that leaves: what `berth drain` shows.

use berth_spec::{DeploymentName, RevisionId, Time, WorkerId};

use crate::{World, world::TrackedWorker};

/// Replicas that a leaving worker still holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leaving {
    /// Replicas that are still assigned to it.
    pub left: u32,
    /// Replicas that stay until their successor is ready, with the worker that loads it.
    pub waiting_for: Vec<(RevisionId, WorkerId)>,
    /// Deployments that nobody else has room for, with the reason and what to do.
    pub blocked: Vec<(DeploymentName, String)>,
    /// Replicas that it holds still though they are no longer assigned: they finish their requests.
    pub draining: u32,
}

impl Leaving {
    /// Returns true if nothing holds the worker any more.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.left == 0 && self.draining == 0
    }
}

impl World {
    /// Progress of a worker that leaves; `None`: it is not leaving, or not known.
    #[must_use]
    pub fn leaving(&self, worker: &WorkerId, now: Time) -> Option<Leaving> {
        let tracked = self.workers.get(worker).filter(|tracked| tracked.leaves())?;
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let unassigned = tracked.inventory.keys().filter(|revision| !tracked.assigned.contains_key(revision));
        let mut leaving = Leaving {
            left: count(tracked.assigned.len()),
            draining: if tracked.answers() { count(unassigned.count()) } else { 0 },
            ..Leaving::default()
        };
        for revision in tracked.assigned.keys() {
            if let Some(successor) = self.successor(worker, revision) {
                leaving.waiting_for.push((revision.clone(), successor));
                continue;
            }
            let entry = self.entries.get(revision.deployment());
            if let Some(verdict) = entry.and_then(|entry| entry.verdict_at(now)) {
                leaving.blocked.push((revision.deployment().clone(), verdict.message()));
            }
        }
        Some(leaving)
    }

    /// The worker on which a replica is loaded to take the place of one on `worker`.
    fn successor(&self, worker: &WorkerId, revision: &RevisionId) -> Option<WorkerId> {
        let record = self.record(revision.deployment())?;
        let elsewhere = record.of(revision).map(|replica| &replica.worker).filter(|other| *other != worker);
        let coming = |tracked: &TrackedWorker| tracked.alive() && !tracked.leaves() && !tracked.ready(revision);
        elsewhere.filter(|other| self.workers.get(other).is_some_and(coming)).min().cloned()
    }
}
