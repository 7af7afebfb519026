//! Result of a plan, and result of an observation.

use std::collections::{BTreeMap, BTreeSet};

use berth_spec::{
    AssignmentChange, ByteSize, DeploymentName, Digest, Event, Generation, RevisionId, Route, Time, WorkerId,
    routes::Readiness,
};

use crate::{
    Record, Rollout, World,
    world::{MassLoss, Verdict},
};

/// Deployments to plan for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// All of them: at start, and after a lost write.
    All,
    /// Deployments that something happened to; the result is the same as for all, sooner.
    Only(BTreeSet<DeploymentName>),
}

impl Scope {
    /// Returns true if there is nothing to plan for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Only(names) if names.is_empty())
    }
}

/// A plan. [`World::commit`](crate::World::commit) it once `records` are stored, then send the rest.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a plan changes nothing until it is committed and sent"]
pub struct Planned {
    /// The number of this plan: the last one's where nothing was decided.
    pub generation: Generation,
    /// Time of the plan, given by the caller.
    pub at: Time,
    /// Records to store, by name; `None`: to delete.
    pub records: Vec<(DeploymentName, Option<Record>)>,
    /// Assignment changes of the workers that have any.
    pub assignments: BTreeMap<WorkerId, AssignmentChange>,
    /// Routes that differ from what was last sent.
    pub routes: Vec<Route>,
    /// Deployments that are being deleted and were routed to until now: tell the gateways, though replicas still drain.
    pub withdrawn: Vec<DeploymentName>,
    /// Deployments that were deleted and have left every worker: delete them from the store and tell the gateways.
    pub gone: Vec<DeploymentName>,
    /// Readiness of the resident deployments.
    pub readiness: Readiness,
    /// Events for people, in the order in which they were decided.
    pub events: Vec<Event>,
    /// Replicas that had to leave their worker, and for whom. What is on demand and unused leaves whole: each of its copies
    /// is not named.
    pub evicted: Vec<Evicted>,
    /// When to plan again though nothing happens.
    pub wake_at: Option<Time>,
    /// The mass loss that `events` report.
    pub(crate) loss: Option<MassLoss>,
    /// State that the world keeps of this plan in memory, by name.
    pub(crate) notes: Vec<(DeploymentName, Note)>,
}

/// A replica that had to leave its worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evicted {
    /// Time of the plan that decided it.
    pub at: Time,
    /// The revision that had to leave.
    pub revision: RevisionId,
    /// The worker that it had to leave.
    pub worker: WorkerId,
    /// Deployment that gets its room; `None`: nobody, its worker has less room than was claimed.
    pub whom: Option<DeploymentName>,
}

/// State that the world keeps of one deployment's last plan, beside its record.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Note {
    /// The reason why it has fewer replicas than it wants.
    pub(crate) verdict: Option<Verdict>,
    /// Wants more replicas than it has.
    pub(crate) unplaced: bool,
    /// Time at which it is planned again without an event.
    pub(crate) wake: Option<Time>,
    /// When that was when the plan was made: what was asked for since then, the plan does not know.
    pub(crate) woke: Option<Time>,
    /// The plan took into account that the cause of a failed load is gone.
    pub(crate) forgave: bool,
    /// The fingerprint of the route that was last sent.
    pub(crate) routed: u64,
    /// There are fewer copies than load and use ask for, and as many are all that there can be.
    pub(crate) settles_for: Option<u32>,
    /// Evicted while idle: may come back when there is room.
    pub(crate) idle_evicted: bool,
}

impl Planned {
    /// State of a deployment that the world keeps; `None`: it was not planned for.
    pub(crate) fn note(&self, name: &DeploymentName) -> Option<&Note> {
        let place = self.notes.binary_search_by(|(other, _)| other.cmp(name)).ok()?;
        Some(&self.notes[place].1)
    }

    /// Returns true if anything was decided that must be stored before it is sent.
    #[must_use]
    pub fn decided(&self) -> bool {
        !self.records.is_empty() || !self.assignments.is_empty()
    }

    /// Returns true if a crash may undo the stored part of this plan: it only places or removes replicas of on-demand
    /// deployments and moves no rollout from one revision to another. The reports of workers, or the next request,
    /// lead to the same state. To be asked before the plan is committed to the world.
    #[must_use]
    pub fn is_reconstructible(&self, world: &World) -> bool {
        self.gone.is_empty()
            && self.records.iter().all(|(name, next)| {
                let on_demand = world
                    .deployment(name)
                    .is_some_and(|deployment| deployment.spec.replicas.min == 0 && !deployment.deleting);
                let only = |record: &Record| match &record.rollout {
                    Rollout::Starting { revision } | Rollout::Stable { revision } => Some(revision.clone()),
                    Rollout::Surging { .. }
                    | Rollout::Canary { .. }
                    | Rollout::Recreating { .. }
                    | Rollout::Stuck { .. } => None,
                };
                let (before, after) = (world.record(name).map(only), next.as_ref().map(only));
                on_demand
                    && match (before, after) {
                        (Some(before), Some(after)) => before.is_some() && before == after,
                        (one, other) => one.or(other).is_none_or(|revision| revision.is_some()),
                    }
            })
    }
}

/// Changes made by an inventory. The world has marked the deployments for the next [`due`](crate::World::due).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Observed {
    /// Deployments whose replicas the inventory says something new of.
    pub changed: BTreeSet<DeploymentName>,
    /// Could not be applied: ask the worker for its whole inventory.
    pub resync: bool,
    /// Sizes that were measured, to be stored under the artifact's digest.
    pub measured: Vec<(Digest, ByteSize)>,
    /// Events for people: loads that ended, and processes that died.
    pub events: Vec<Event>,
}
