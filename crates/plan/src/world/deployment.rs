//! State of one deployment.

use std::{collections::BTreeMap, fmt, sync::Arc};

use berth_spec::{ByteSize, Deployment, Failure, FailureCategory, GatewayId, ModelFormat, RevisionId, Time, WorkerId};

use super::{
    EvictionClass, Rank,
    copies::Copies,
    demand::{EXPLICIT_LOADS, GatewayUse},
};
use crate::{Evicted, Record, Rollout, claim::Basis};

/// One deployment. Kept small: there may be 100,000 of them, nearly all cold.
#[derive(Debug, Clone)]
pub(crate) struct TrackedDeployment {
    pub(crate) deployment: Arc<Deployment>,
    /// The hash of the revision that `deployment` wants. Its other part, the name, is in the deployment.
    wanted: [u8; 6],
    /// When a request last came.
    pub(crate) last_used: Time,
    /// The fingerprint of the route that was last sent; 0: none.
    pub(crate) routed: u64,
    /// Further state; none for a cold one.
    pub(crate) warm: Option<Box<Warm>>,
}

/// State of a deployment that has replicas, demand or a history of failure.
#[derive(Debug, Clone, Default)]
pub(crate) struct Warm {
    pub(crate) record: Option<Record>,
    /// The last report of each gateway that uses it.
    pub(crate) uses: BTreeMap<GatewayId, GatewayUse>,
    /// Time at which somebody asked that it be paged out; a later use takes that back.
    pub(crate) paged_out: Option<Time>,
    /// The reason why the last plan gave it less than it wants.
    pub(crate) verdict: Option<Verdict>,
    /// Loads that failed for good, until they are forgotten.
    pub(crate) failures: BTreeMap<(RevisionId, WorkerId), LoadFailed>,
    /// The cause of a failed load is gone, and the next plan has to know.
    pub(crate) forgiven: bool,
    /// Memory of revisions as learned from workers.
    pub(crate) learned: LearnedSizes,
    /// Time at which it is planned again without an event.
    pub(crate) wake: Option<Time>,
    /// Number of copies that there should be, with its inputs.
    pub(crate) copies: Copies,
    /// Waves of placing anew that go before its own, since its worker was lost.
    pub(crate) turn: u32,
    /// The last evictions that it was part of, on either side.
    pub(crate) evictions: Vec<Evicted>,
}

/// Evictions that are remembered of a deployment: one for each of its copies, as a rule.
const EVICTIONS: usize = 4;

impl Warm {
    /// Returns true if its rollout is stuck because a store refused the new revision.
    pub(crate) fn is_refused(&self) -> bool {
        self.record.as_ref().is_some_and(|record| matches!(record.rollout, Rollout::Stuck { refused: true, .. }))
    }

    /// Requests that are parked, at all gateways.
    pub(crate) fn waiting(&self) -> u32 {
        self.uses.values().fold(0, |sum, each| sum.saturating_add(each.waiting))
    }

    /// True if inference requests are parked: explicit loads do not count.
    pub(crate) fn has_requests(&self) -> bool {
        self.uses.iter().any(|(gateway, each)| *gateway != EXPLICIT_LOADS && each.waiting > 0)
    }

    /// Remembers an eviction that it was part of.
    pub(crate) fn remember(&mut self, evicted: &Evicted) {
        if self.evictions.len() == EVICTIONS {
            self.evictions.remove(0);
        } else {
            self.evictions.reserve_exact(1);
        }
        self.evictions.push(evicted.clone());
    }

    /// Requests that are being answered, from all gateways.
    pub(crate) fn in_flight(&self) -> u32 {
        self.uses.values().fold(0, |sum, each| sum.saturating_add(each.in_flight))
    }
}

/// Memory of a revision as learned from a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Learned {
    pub(crate) memory: ByteSize,
    /// Measured, or predicted from the artifact or a load that did not fit.
    pub(crate) basis: Basis,
}

/// Revisions of a deployment whose memory is remembered: the one that serves, the next one, and some to go back to; those of its
/// record in any case. Each model that was ever loaded keeps its own.
const LEARNED: usize = 4;

/// Memory of a deployment's revisions, those that were learned last at the end.
#[derive(Debug, Clone, Default)]
pub(crate) struct LearnedSizes(Vec<(RevisionId, Learned)>);

impl LearnedSizes {
    pub(crate) fn get(&self, revision: &RevisionId) -> Option<&Learned> {
        self.0.iter().find(|(known, _)| known == revision).map(|(_, learned)| learned)
    }

    /// Remembers the memory of a revision. Returns true if that is news. Of too many the one that was learned first goes, unless
    /// the record names it.
    pub(crate) fn insert(&mut self, revision: &RevisionId, learned: Learned, record: Option<&Record>) -> bool {
        let before = self.0.iter().position(|(known, _)| known == revision).map(|at| self.0.remove(at).1);
        let is_named = |known: &RevisionId| record.is_some_and(|record| record.revisions.get(known).is_some());
        while self.0.len() >= LEARNED
            && let Some(at) = self.0.iter().position(|(known, _)| !is_named(known))
        {
            self.0.remove(at);
        }
        self.0.reserve_exact(1);
        self.0.push((revision.clone(), learned));
        before != Some(learned)
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&Learned) -> bool) {
        self.0.retain(|(_, learned)| keep(learned));
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The reason why a deployment has fewer replicas than it wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// No worker has room, now or by evicting what may be evicted.
    NoCapacity {
        /// For people, with numbers.
        text: String,
        /// When a request may try again. The end of time: every plan tries it, or only a change helps.
        until: Time,
    },
    /// There will be room where models are being loaded that others wait for, when those have been let in.
    WaitsForRoom {
        /// For people, with numbers.
        text: String,
        /// When to look again at the latest.
        until: Time,
    },
    /// Tried wherever it may go, and failed.
    Failed {
        /// For people: what went wrong.
        text: String,
        /// When it is tried again.
        until: Time,
        /// The thing whose change makes it tried sooner.
        change: Change,
    },
    /// Its worker leaves, and nobody else has room for it: it answers there for as long as it can.
    LeaveWaits {
        /// For people, with numbers.
        text: String,
    },
    /// The next revision waits for room; the serving one goes on.
    SurgeWaits {
        /// For people, with numbers, and what to do.
        text: String,
        /// Expected length of the wait.
        prospect: Prospect,
    },
}

/// Prospect of a revision that waits for room beside the one that serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prospect {
    /// Room is being made, or a failed load is tried again.
    Soon,
    /// Nothing will make room by itself.
    Blocked,
    /// The same, for longer than `rollout.deadline`. It is placed all the same once there is room.
    Overdue,
}

impl Verdict {
    /// Time until which it holds; the end of time for what ends with an event.
    #[must_use]
    pub fn until(&self) -> Time {
        match self {
            Self::NoCapacity { until, .. } | Self::WaitsForRoom { until, .. } | Self::Failed { until, .. } => *until,
            Self::SurgeWaits { .. } | Self::LeaveWaits { .. } => Time(u64::MAX),
        }
    }

    /// When it ends by itself, if it does.
    #[must_use]
    pub fn ends(&self) -> Option<Time> {
        Some(self.until()).filter(|until| *until < Time(u64::MAX))
    }

    /// For people: why, and what to do.
    #[must_use]
    pub fn message(&self) -> String {
        match self {
            Self::NoCapacity { text, .. }
            | Self::WaitsForRoom { text, .. }
            | Self::SurgeWaits { text, .. }
            | Self::LeaveWaits { text } => text.clone(),
            Self::Failed { text, until, change } => {
                format!("{text}; tried again when {change} changes, or after {until}")
            }
        }
    }
}

/// The thing whose change makes another revision of a deployment, which is tried though this one failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The spec.
    Spec,
    /// The spec, or a local file at which the source looks.
    SpecOrFile,
}

impl Change {
    /// The change that helps this deployment.
    pub(crate) fn of(deployment: &Deployment) -> Self {
        if deployment.watches_file() { Self::SpecOrFile } else { Self::Spec }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Spec => "the spec",
            Self::SpecOrFile => "the spec or the file",
        })
    }
}

/// Workers that a store refuses before nobody else is tried. Credentials are a worker's own, so that another one may do
/// better: with one, a single worker without a key would keep a model off all, and each more is asked with a wrong key in vain.
const REFUSALS: usize = 2;

/// A load that failed for good on one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadFailed {
    /// Category of the failure, which decides whether other workers are tried.
    pub category: FailureCategory,
    /// The worker's message, for people.
    pub message: String,
    /// Time from which the load may be tried there again.
    pub until: Time,
    /// All that the worker said.
    pub failure: Arc<Failure>,
    /// A store refused it, and may have refused credentials which the worker has no longer: it says nothing of those that
    /// it has.
    pub outdated: bool,
}

impl LoadFailed {
    /// Returns true if the artifact is the cause, so that no other worker would do better.
    #[must_use]
    pub fn everywhere(&self) -> bool {
        use FailureCategory::{Checksum, InvalidModel, NotFound, Validation};
        matches!(self.category, NotFound | Checksum | InvalidModel | Validation)
    }
}

impl TrackedDeployment {
    pub(crate) fn new(deployment: Arc<Deployment>) -> Self {
        let wanted = deployment.revision_id().hash_bytes();
        Self { wanted, deployment, last_used: Time::ZERO, routed: 0, warm: None }
    }

    /// Takes the new declaration, and hashes the revision that it wants.
    pub(crate) fn declare(&mut self, deployment: Arc<Deployment>) {
        self.wanted = deployment.revision_id().hash_bytes();
        self.deployment = deployment;
    }

    /// Id of the revision that the declaration wants.
    pub(crate) fn wanted(&self) -> RevisionId {
        RevisionId::with_hash(self.deployment.name.clone(), self.wanted)
    }

    /// True if `revision` is the one that the declaration wants.
    pub(crate) fn wants(&self, revision: &RevisionId) -> bool {
        revision.hash_bytes() == self.wanted && *revision.deployment() == self.deployment.name
    }

    /// The format of a revision: an older one, which its replicas have until the rollout ends, may have another than the deployment.
    pub(crate) fn format(&self, revision: &RevisionId) -> &ModelFormat {
        let known = self.record().and_then(|record| record.revisions.get(revision));
        known.map_or(&self.deployment.spec.model.format, |revision| &revision.format)
    }

    /// The place of one of its replicas in the order of eviction, as the record has it.
    pub(crate) fn rank(&self, revision: &RevisionId) -> Rank {
        let copies = self.record().map_or(0, |record| record.of(revision).count());
        self.rank_among(revision, u32::try_from(copies).unwrap_or(u32::MAX), self.goal())
    }

    /// The same where there are `copies` of it, of `goal` that are wanted.
    pub(crate) fn rank_among(&self, revision: &RevisionId, copies: u32, goal: u32) -> Rank {
        let replicas = self.deployment.spec.replicas;
        let least = replicas.min.max(1);
        let class = if goal > least && copies > least {
            EvictionClass::Surplus
        } else if replicas.min > 0 {
            EvictionClass::Resident
        } else {
            EvictionClass::OnDemand
        };
        Rank { priority: self.deployment.spec.priority, class, last_used: self.last_used, revision: revision.clone() }
    }

    /// Returns true if it should always have a replica.
    pub(crate) fn must_be_resident(&self) -> bool {
        self.deployment.spec.replicas.min > 0 && !self.deployment.deleting
    }

    /// Copies that load and use ask for; 0: as few as may be.
    pub(crate) fn goal(&self) -> u32 {
        self.warm.as_ref().map_or(0, |warm| warm.copies.goal)
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.warm.as_ref().map_or(0, |warm| warm.in_flight())
    }

    pub(crate) fn record(&self) -> Option<&Record> {
        self.warm.as_ref().and_then(|warm| warm.record.as_ref())
    }

    pub(crate) fn learned(&self, revision: &RevisionId) -> Option<&Learned> {
        self.warm.as_ref().and_then(|warm| warm.learned.get(revision))
    }

    pub(crate) fn waiting(&self) -> u32 {
        self.warm.as_ref().map_or(0, |warm| warm.waiting())
    }

    pub(crate) fn has_requests(&self) -> bool {
        self.warm.as_ref().is_some_and(|warm| warm.has_requests())
    }

    pub(crate) fn verdict(&self) -> Option<&Verdict> {
        self.warm.as_ref().and_then(|warm| warm.verdict.as_ref())
    }

    /// The verdict, if it still holds: what requests are told.
    pub(crate) fn verdict_at(&self, now: Time) -> Option<&Verdict> {
        self.verdict().filter(|verdict| verdict.until() > now)
    }

    /// The verdict as people are told it: that there was no room is true until it is tried again, and on demand that
    /// is with the next request.
    pub(crate) fn last_verdict(&self, now: Time) -> Option<&Verdict> {
        self.verdict().filter(|verdict| verdict.until() > now || matches!(verdict, Verdict::NoCapacity { .. }))
    }

    pub(crate) fn warm_mut(&mut self) -> &mut Warm {
        self.warm.get_or_insert_default()
    }

    /// The failure that keeps a revision off a worker now: its own there, or one anywhere that lies in the artifact.
    pub(crate) fn failure(&self, revision: &RevisionId, worker: &WorkerId, now: Time) -> Option<&LoadFailed> {
        let failures = &self.warm.as_ref()?.failures;
        let known = || failures.iter().filter(|((failed, _), failure)| failed == revision && failure.until > now);
        let refused = self.refusals(revision, now).count() >= REFUSALS;
        known()
            .filter(|((_, at), failure)| {
                at == worker || failure.everywhere() || (refused && failure.category == FailureCategory::Auth)
            })
            .map(|(_, failure)| failure)
            .max_by_key(|failure| failure.until)
    }

    /// Refusals of a revision by stores, by worker.
    pub(crate) fn refusals(&self, revision: &RevisionId, now: Time) -> impl Iterator<Item = &LoadFailed> {
        let failures = self.warm.iter().flat_map(|warm| &warm.failures);
        let refused = move |failure: &LoadFailed| failure.category == FailureCategory::Auth && failure.until > now;
        failures
            .filter(move |((failed, _), failure)| failed == revision && refused(failure))
            .map(|(_, failure)| failure)
    }

    /// The failure of a revision on a worker itself.
    pub(crate) fn failed_there(&self, revision: &RevisionId, worker: &WorkerId, now: Time) -> Option<&LoadFailed> {
        let failures = &self.warm.as_ref()?.failures;
        failures.get(&(revision.clone(), worker.clone())).filter(|failure| failure.until > now)
    }

    /// Gives the box back where nothing is in it.
    pub(crate) fn cool(&mut self, now: Time) {
        let Some(warm) = &mut self.warm else { return };
        warm.failures.retain(|_, failure| failure.until > now);
        if warm.record.is_none() {
            // What it was used lately is no reason to remember a model that is not loaded.
            warm.uses.retain(|_, each| each.waiting > 0 || each.in_flight > 0);
        }
        let cold = warm.record.is_none()
            && warm.uses.is_empty()
            && warm.paged_out.is_none()
            && warm.verdict.is_none()
            && warm.failures.is_empty()
            && warm.learned.is_empty()
            && warm.wake.is_none();
        if cold {
            self.warm = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_spec::Generation;

    use super::*;
    use crate::Revisions;

    #[test]
    fn the_revision_that_serves_keeps_its_size_however_many_were_tried_since() {
        let name = berth_spec::DeploymentName::new("iris").expect("a name");
        let revision = |number: u8| RevisionId::with_hash(name.clone(), [number; 6]);
        let learned = |number: u8| Learned { memory: ByteSize(u64::from(number)), basis: Basis::Measured };
        let deployment = crate::fixture::deployment("iris");
        let serving = deployment.revision();
        let mut revisions = Revisions::default();
        revisions.insert(Arc::new(serving.clone()));
        let rollout = Rollout::Stable { revision: serving.id.clone() };
        let record = Record { generation: Generation(1), rollout, replicas: Vec::new(), revisions };
        let mut sizes = LearnedSizes::default();
        assert!(sizes.insert(&serving.id, learned(1), Some(&record)));
        for number in 2..20 {
            assert!(sizes.insert(&revision(number), learned(number), Some(&record)));
            assert!(sizes.0.len() <= LEARNED);
        }
        assert_eq!(sizes.get(&serving.id), Some(&learned(1)));
        assert_eq!((sizes.get(&revision(16)), sizes.get(&revision(17))), (None, Some(&learned(17))));
        assert!(!sizes.insert(&revision(17), learned(17), Some(&record)), "no news, and last again");
        assert!(sizes.insert(&revision(20), learned(20), Some(&record)));
        assert_eq!((sizes.get(&revision(18)), sizes.get(&revision(17))), (None, Some(&learned(17))));
    }
}
