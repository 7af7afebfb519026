//! Effects of the controller, which its driver carries out.

use std::{collections::BTreeMap, time::Duration};

use berth_plan::{
    Record,
    drift::{Drift, DriftKind, SchemaViolation},
};
use berth_spec::{
    AssignmentChange, ByteSize, DeploymentName, Digest, GatewayId, Generation, RevisionId, RouteChange, WorkerId,
    routes::Readiness,
};

use crate::store::Rev;

/// Something to do. Effects are done in order.
#[derive(Debug, Clone)]
pub enum Effect {
    /// Store this, all of it, then say [`Event::Committed`](super::Event::Committed) or
    /// [`Refused`](super::Event::Refused).
    Commit(PlanCommit),
    /// Tell a worker what it should hold.
    SendAssignment {
        /// The worker, which is attached.
        worker: WorkerId,
        /// The difference to the last assignment sent.
        change: AssignmentChange,
        /// The same in the words of logs and metrics.
        commands: Vec<Command>,
    },
    /// Tell gateways where things are.
    SendRoutes {
        /// The gateways that get it.
        to: RouteRecipients,
        /// The difference to the last routes sent.
        change: RouteChange,
    },
    /// End a worker's connection: the members take it for dead, so what it seems to be connected by is not to be relied
    /// on. If it lives, it connects again.
    HangUp(WorkerId),
    /// Keep this event for people: `berth get events` lists it.
    Emit(berth_spec::Event),
    /// Something differs from what is wanted that did not before.
    Drifted(Drift),
    /// A model card was found that no worker reads to which it may go.
    SchemaViolated(SchemaViolation),
    /// So much differs now, by kind.
    DriftCount(BTreeMap<DriftKind, usize>),
    /// Remember what an artifact's replica takes.
    PersistMeasured(Digest, ByteSize),
    /// Tell those who watch that something about these changed.
    DeploymentsChanged(Vec<(DeploymentName, ChangeKind)>),
    /// Tell those who wait whether everything that should be resident is.
    Readiness(Readiness),
    /// Everything that was stored up to here has been taken in.
    Seen(Rev),
    /// Everything that was stored up to here is in the routes that were sent.
    InForce(Rev),
    /// All that a declaration wants is ready, this long after it was declared.
    BecameReady {
        /// Name of the declared deployment.
        deployment: DeploymentName,
        /// Time from the declaration to the last ready replica.
        took: Duration,
    },
    /// A plan was made and taken over: for metrics.
    Planned(PlanSize),
}

/// The part of a plan that must be stored before anything of it is sent.
#[derive(Debug, Clone)]
pub struct PlanCommit {
    /// The plan's number.
    pub generation: Generation,
    /// Records to write; `None`: to delete.
    pub records: Vec<(DeploymentName, Option<Record>)>,
    /// Deployments whose deletion is done, with the resource versions that they must still have.
    pub forget: Vec<(DeploymentName, Rev)>,
    /// A crash may undo it: what it says can be found out again.
    pub reconstructible: bool,
}

/// The gateways that get a change of routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteRecipients {
    /// Every gateway that is connected.
    All,
    /// This one.
    One(GatewayId),
}

/// A change of a deployment, as watchers see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// A new deployment.
    Added,
    /// A changed declaration or status.
    Modified,
    /// A deleted deployment.
    Deleted,
}

/// An instruction to a worker about one replica, as the difference of two assignments implies it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The change that the assignment makes to the replica.
    pub kind: CommandKind,
    /// Revision of the replica that is loaded or unloaded.
    pub revision: RevisionId,
}

/// An instruction about a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CommandKind {
    /// Load a revision of a deployment that the worker has no other of.
    Load,
    /// Load it beside, then instead of, another revision of the same deployment.
    Reload,
    /// Let requests in flight end, and free the memory.
    Unload,
}

impl CommandKind {
    /// The word in logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Load => "LOAD",
            Self::Reload => "RELOAD",
            Self::Unload => "UNLOAD",
        }
    }
}

/// The amount of work and of change in one plan, for metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanSize {
    /// Deployments that were planned for; `None`: all.
    pub considered: Option<usize>,
    /// Records that are written or deleted.
    pub records: usize,
    /// Replicas that left to make room.
    pub evictions: usize,
    /// Time since the last use of each of them.
    pub ages: Vec<Duration>,
    /// Routes that are set or withdrawn.
    pub routes: usize,
}
