//! All that is known: what people declared, what was decided, what workers and gateways say. The only input of
//! [`plan`](crate::plan()).
//!
//! The setters keep every index that planning needs (who is where, what may be evicted first, who must wake when), so
//! that planning for one change does not look at the rest. Each of them marks the deployments that it touches;
//! [`World::due`] hands those out.
//!
//! A cold deployment is one [`TrackedDeployment`] of a few words: what is known of warm ones is in a box beside it.

mod aliases;
mod apply;
mod assumed;
mod copies;
mod demand;
mod deployment;
mod devices;
mod endpoints;
mod failing;
mod landscape;
mod liveness;
mod observe;
mod pack;
mod preload;
mod rate;
mod runtime_totals;
mod set;
mod terms;
mod wake;
mod worker;
mod workers;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use berth_spec::{
    AssignmentChange, ByteSize, DeploymentName, Digest, FormatSupport, GatewayId, Generation, RevisionId, Route,
    RouteChange, Time, WorkerId, deployment::Sharing,
};

pub use assumed::AssumedInventory;
use copies::Room;
pub use demand::{EXPLICIT_LOADS, TotalUse};
pub(crate) use deployment::TrackedDeployment;
pub use deployment::{Change, LoadFailed, Prospect, Verdict};
pub use liveness::MassLoss;
pub(crate) use liveness::{MassLossHold, Waves};
use terms::Registered;
pub(crate) use worker::{EvictionClass, Rank, Standing};
pub use worker::{Liveness, TrackedWorker};
pub(crate) use workers::{WorkerIndex, Workers};

use crate::{Policy, Record};

/// Everything that plans look at: declarations, decisions, and the reports of workers and gateways.
#[derive(Debug, Clone)]
pub struct World {
    pub(crate) policy: Policy,
    pub(crate) entries: BTreeMap<DeploymentName, TrackedDeployment>,
    /// Number of entries when the map was last packed.
    packed: usize,
    pub(crate) workers: Workers,
    /// Connected gateways with their regions.
    pub(crate) gateways: BTreeMap<GatewayId, Option<String>>,
    /// Sizes that were measured, by content.
    pub(crate) measured: BTreeMap<Digest, ByteSize>,
    /// Records whose deployment has not been declared (yet).
    pub(crate) orphans: BTreeMap<DeploymentName, Record>,
    /// The number of the last plan.
    pub(crate) generation: Generation,
    /// When the first plan was made: a worker that was never seen counts as lost from then.
    pub(crate) started: Option<Time>,
    /// The memory for models of the largest worker that is known.
    pub(crate) largest: ByteSize,
    /// The memory that runtimes want set aside for models of which nothing is known, by what they take.
    default_claims: Vec<(FormatSupport, ByteSize)>,
    /// Deployments that the last plan for them found no room for. Those on demand are tried again with a request only,
    /// so what changes on workers must be told to them.
    pub(crate) refused: BTreeSet<DeploymentName>,
    /// Deployments with loads that failed for good or with a rollout that a store refused, and some that had such.
    failing: BTreeSet<DeploymentName>,
    /// Deployments that want more than they have: every plan tries them again, unless they are a crowd.
    pub(crate) unplaced: BTreeSet<DeploymentName>,
    /// Deployments that should always be resident.
    pub(crate) residents: BTreeSet<DeploymentName>,
    /// Deployments of `residents` that have no ready replica.
    pub(crate) missing: BTreeSet<DeploymentName>,
    /// Replicas that are ready where they are not assigned: left from before, good to have back.
    pub(crate) strays: BTreeSet<(RevisionId, WorkerId)>,
    /// Deployments that declare a path of their own, by that path.
    endpoints: BTreeMap<Box<str>, BTreeSet<DeploymentName>>,
    /// Deployments that count their replicas by region.
    pub(crate) regional: BTreeSet<DeploymentName>,
    /// Deployments that changed since [`World::due`] was last asked.
    dirty: BTreeSet<DeploymentName>,
    /// Something happened that may touch everything.
    all_dirty: bool,
    /// Deployments that are planned again without an event, by the time of that.
    wakes: BTreeSet<(Time, DeploymentName)>,
    /// Names that lead to deployments.
    aliases: aliases::Aliases,
    /// The settings that deployments share.
    sharing: Sharing,
    /// Deployments of which each gateway has reported use: they are forgotten when it disconnects.
    used_by: BTreeMap<GatewayId, BTreeSet<DeploymentName>>,
    /// Deployments for which some gateway has parked requests.
    waiting: BTreeSet<DeploymentName>,
    /// On-demand deployments that had to leave, by when they were used last.
    idle_evicted: BTreeSet<(Time, DeploymentName)>,
    /// When to see whether any of those may come back.
    pub(crate) preload_at: Option<Time>,
    room: Room,
    /// When a crowd of `unplaced` is tried again.
    crowd_at: Time,
    /// The latest time that was said, for what comes without one.
    clock: Time,
    /// A loss of many workers at once, until people have been told that it is over.
    pub(crate) held: Option<MassLossHold>,
    /// When the last one that is over was.
    held_before: Time,
    waves: Waves,
    /// Workers that are assumed to hold what they should, by when that ends.
    assumed: BTreeSet<(Time, WorkerId)>,
    registered: Registered,
}

impl World {
    /// A world without deployments, workers and gateways, under this policy.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            entries: BTreeMap::new(),
            packed: 0,
            workers: Workers::default(),
            gateways: BTreeMap::new(),
            measured: BTreeMap::new(),
            orphans: BTreeMap::new(),
            generation: Generation(0),
            started: None,
            largest: ByteSize::ZERO,
            default_claims: Vec::new(),
            refused: BTreeSet::new(),
            failing: BTreeSet::new(),
            unplaced: BTreeSet::new(),
            residents: BTreeSet::new(),
            missing: BTreeSet::new(),
            strays: BTreeSet::new(),
            endpoints: BTreeMap::new(),
            regional: BTreeSet::new(),
            dirty: BTreeSet::new(),
            all_dirty: true,
            wakes: BTreeSet::new(),
            aliases: aliases::Aliases::default(),
            sharing: Sharing::default(),
            used_by: BTreeMap::new(),
            waiting: BTreeSet::new(),
            idle_evicted: BTreeSet::new(),
            preload_at: None,
            room: Room::default(),
            crowd_at: Time::ZERO,
            clock: Time::ZERO,
            held: None,
            held_before: Time::ZERO,
            waves: Waves::default(),
            assumed: BTreeSet::new(),
            registered: Registered::default(),
        }
    }

    /// The number of the last plan that was committed.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Decisions about a deployment, if it has any.
    #[must_use]
    pub fn record(&self, name: &DeploymentName) -> Option<&Record> {
        self.entries.get(name).and_then(TrackedDeployment::record)
    }

    /// Deployment declared under a name.
    #[must_use]
    pub fn deployment(&self, name: &DeploymentName) -> Option<&std::sync::Arc<berth_spec::Deployment>> {
        self.entries.get(name).map(|entry| &entry.deployment)
    }

    /// Time of the last use of a deployment; `None`: it is not known, or was never used.
    #[must_use]
    pub fn last_used(&self, name: &DeploymentName) -> Option<Time> {
        self.entries.get(name).map(|entry| entry.last_used).filter(|at| *at > Time::ZERO)
    }

    /// Every deployment, by name.
    pub fn deployments(&self) -> impl Iterator<Item = &std::sync::Arc<berth_spec::Deployment>> {
        self.entries.values().map(|entry| &entry.deployment)
    }

    /// Deployments from this name on, by name.
    pub fn deployments_from<'a>(
        &'a self,
        from: Bound<&DeploymentName>,
    ) -> impl Iterator<Item = &'a std::sync::Arc<berth_spec::Deployment>> + use<'a> {
        self.entries.range::<DeploymentName, _>((from, Bound::Unbounded)).map(|(_, entry)| &entry.deployment)
    }

    /// Every worker, by name, those that are only known from records included.
    pub fn workers(&self) -> impl Iterator<Item = (&WorkerId, &TrackedWorker)> {
        self.workers.iter()
    }

    /// A worker that joined, or that records name; `None`: neither.
    #[must_use]
    pub fn worker(&self, id: &WorkerId) -> Option<&TrackedWorker> {
        self.workers.get(id)
    }

    /// The whole assignment of a worker: what it is sent when it joins or has lost count.
    #[must_use]
    pub fn whole_assignment(&self, worker: &WorkerId) -> AssignmentChange {
        let tracked = self.workers.get(worker);
        AssignmentChange {
            generation: tracked.map_or(self.generation, |tracked| tracked.sent),
            base: None,
            limits: self.limits(worker),
            set: tracked.map(|tracked| tracked.in_loading_order()).unwrap_or_default(),
            unset: Vec::new(),
        }
    }

    /// Every route: what a gateway is sent when it joins or has lost count. The caller numbers it.
    #[must_use]
    pub fn whole_routes(&self, now: Time) -> RouteChange {
        RouteChange {
            seq: 0,
            base: None,
            set: self
                .entries
                .values()
                .filter(|entry| !entry.deployment.deleting)
                .map(|entry| self.route(entry, now))
                .collect(),
            unset: Vec::new(),
            aliases: self.aliases().map(|alias| crate::route::of_alias(alias)).collect(),
            readiness: self.readiness(),
        }
    }

    /// The workers on which a revision is ready though it is not assigned to them.
    pub(crate) fn strays_of<'a>(&'a self, revision: &'a RevisionId) -> impl Iterator<Item = &'a WorkerId> {
        let of = || {
            // The smallest name that a worker could have.
            let first = WorkerId::new("0").expect("a digit is a name");
            self.strays.range((revision.clone(), first)..).take_while(move |(id, _)| id == revision).map(|(_, on)| on)
        };
        (!self.strays.is_empty()).then(of).into_iter().flatten()
    }

    /// The same for all revisions of a deployment.
    pub(crate) fn strays_of_deployment<'a>(
        &'a self,
        name: &'a DeploymentName,
    ) -> impl Iterator<Item = &'a (RevisionId, WorkerId)> {
        let first = WorkerId::new("0").expect("a digit is a name");
        // Revisions sort by deployment first.
        self.strays.range((apply::first_of(name), first)..).take_while(move |(id, _)| id.deployment() == name)
    }

    /// Derives the route of one deployment from the world as it is.
    fn route(&self, entry: &TrackedDeployment, now: Time) -> Route {
        crate::route::derive(self, entry, entry.record(), entry.verdict_at(now))
    }
}
