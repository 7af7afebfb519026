//! Loads that failed for good: what is remembered of them, and what ends it before its time.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use berth_spec::{
    ByteSize, Cordon, DeploymentName, Failure, FailureCategory, OpaqueModel, Residency, Revision, RevisionId, Time,
    WorkerId,
};

use super::{LoadFailed, TrackedWorker, Verdict, World, deployment::Learned};
use crate::{claim::Basis, place::forbidden};

/// Time after a worker got other credentials in which a refusal may still be owed to the older ones though its
/// replica was placed later, for it joined a fetch that began with them; also the time that a refusal owed to older
/// ones is remembered. Longer than a slow clone takes to fail.
const RENEWED: Duration = Duration::from_secs(30);

/// The most model servers that a model leaves, as long as their failures are remembered: they may have died of it, and others would.
const SERVERS_LEFT: usize = 2;

impl World {
    /// Forgets a failure after a successful load.
    pub(super) fn forget_failure(&mut self, worker: &WorkerId, revision: &RevisionId) {
        if let Some(warm) = self.entries.get_mut(revision.deployment()).and_then(|entry| entry.warm.as_mut()) {
            warm.failures.remove(&(revision.clone(), worker.clone()));
        }
    }

    /// Remembers a failure. `claim`: the memory set aside for the replica.
    pub(super) fn learn_failure(
        &mut self,
        worker: &WorkerId,
        revision: &RevisionId,
        failure: &Arc<Failure>,
        claim: Option<ByteSize>,
        now: Time,
    ) {
        if let Some(needs) = failure.needs {
            self.learn_predicted(revision, needs);
        }
        if failure.category == FailureCategory::Memory
            && let Some(claim) = claim
            && failure.retry_at.is_some()
        {
            // It takes more than was set aside, nobody knows how much: double it, up to all that the worker has.
            let all = self.workers.get(worker).map_or(ByteSize::ZERO, TrackedWorker::memory);
            let memory = ByteSize(claim.0.saturating_mul(2)).min(all.max(claim));
            self.learn(revision, Learned { memory, basis: Basis::Predicted });
        }
        let elsewhere = match failure.category {
            // A disk may stay full for long, and the disks of others are not.
            FailureCategory::Disk => self.workers.iter().any(|(other, tracked)| other != worker && tracked.alive()),
            FailureCategory::Network => self.leaves_server(worker, revision, now),
            _ => false,
        };
        if failure.retry_at.is_some() && !elsewhere {
            return;
        }
        // From now, not from when it happened: a failure that is reported late would else keep its replica for ever.
        let outdated = failure.category == FailureCategory::Auth && self.is_outdated(worker, revision, now);
        let memory = self.policy.failure_memory;
        let remembered = if outdated { RENEWED.min(memory) } else { memory };
        let until = match failure.retry_at {
            Some(at) if failure.category == FailureCategory::Disk => at,
            _ => now + remembered,
        };
        let Some(entry) = self.entries.get_mut(revision.deployment()) else { return };
        let (category, message) = (failure.category, failure.message.clone());
        let failed = LoadFailed { category, message, until, failure: Arc::clone(failure), outdated };
        entry.warm_mut().failures.insert((revision.clone(), worker.clone()), failed);
        self.failing.insert(revision.deployment().clone());
    }

    /// Returns true if a model whose model server cannot be reached, or went away while it loaded it, tries another worker.
    fn leaves_server(&self, worker: &WorkerId, revision: &RevisionId, now: Time) -> bool {
        let Some(entry) = self.entries.get(revision.deployment()) else { return false };
        let deployment = &entry.deployment;
        // Nothing is fetched for such a model: no store is meant.
        if !entry.wants(revision) || !OpaqueModel::is_one(&deployment.spec.model.uri) {
            return false;
        }
        let failures = entry.warm.iter().flat_map(|warm| &warm.failures);
        let left = failures.filter(|((failed, _), failure)| {
            failed == revision && failure.category == FailureCategory::Network && failure.until > now
        });
        let is_new = |other: &WorkerId| other != worker && entry.failed_there(revision, other, now).is_none();
        let wanted = Revision::with_id(deployment, revision.clone());
        let takes = |tracked: &TrackedWorker| {
            let open = tracked.alive() && tracked.cordon == Cordon::Open && !tracked.leaves();
            open && forbidden(self, tracked, deployment, &wanted).is_none()
        };
        left.count() < SERVERS_LEFT && self.workers.iter().any(|(other, tracked)| is_new(other) && takes(tracked))
    }

    /// Returns true if a store may have refused credentials that the worker has no longer.
    fn is_outdated(&self, worker: &WorkerId, revision: &RevisionId, now: Time) -> bool {
        let Some(renewed) = self.workers.get(worker).and_then(|tracked| tracked.renewed) else { return false };
        let record = self.entries.get(revision.deployment()).and_then(|entry| entry.record());
        let placed = record.and_then(|record| record.replica(revision, worker)).map(|replica| replica.placed);
        now < renewed + RENEWED || placed.is_some_and(|placed| placed <= renewed)
    }

    /// A worker has other credentials: what was refused to it is tried again, as if the spec had changed. Gives whom that
    /// concerns.
    pub(super) fn forgive_refusals(&mut self, worker: &WorkerId, now: Time) -> BTreeSet<DeploymentName> {
        let Self { entries, workers, failing, .. } = self;
        // It has yet to be taken off the worker, which will not try it again where it is.
        let is_there = |revision: &RevisionId| {
            let residency = workers.get(worker).and_then(|tracked| tracked.inventory.get(revision));
            matches!(residency, Some(Residency::Failed(_)))
        };
        let mut concerned = BTreeSet::new();
        failing.retain(|name| {
            let Some(warm) = entries.get_mut(name).and_then(|entry| entry.warm.as_deref_mut()) else { return false };
            let is_refusal =
                |at: &WorkerId, failure: &LoadFailed| at == worker && failure.category == FailureCategory::Auth;
            let is_here = warm.failures.iter().any(|((_, at), failure)| is_refusal(at, failure));
            // After a while, and after another controller took over, nobody knows any more which worker was refused.
            let is_anywhere =
                warm.failures.values().any(|failure| failure.category == FailureCategory::Auth && failure.until > now);
            if is_here || (warm.is_refused() && !is_anywhere) {
                warm.failures.retain(|(revision, at), failure| !is_refusal(at, failure) || is_there(revision));
                for ((_, at), failure) in &mut warm.failures {
                    if is_refusal(at, failure) {
                        failure.until = failure.until.min(now + RENEWED);
                        failure.outdated = true;
                    }
                }
                if matches!(warm.verdict, Some(Verdict::Failed { .. })) {
                    warm.verdict = None;
                }
                warm.forgiven = true;
                concerned.insert(name.clone());
            }
            warm.is_refused() || !warm.failures.is_empty()
        });
        concerned
    }
}
