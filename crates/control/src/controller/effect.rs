//! What the controller wants done.

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
    Commit(Commit),
    /// Tell a worker what it should hold.
    SendAssignment {
        /// Which worker.
        worker: WorkerId,
        /// What differs.
        change: AssignmentChange,
        /// The same in the words of logs and metrics.
        commands: Vec<Command>,
    },
    /// Tell gateways where things are.
    SendRoutes {
        /// Which.
        to: To,
        /// What differs.
        change: RouteChange,
    },
    /// End a worker's connection: the members take it for dead, so what it seems to be connected by is not to be relied
    /// on. If it lives, it connects again.
    HangUp(WorkerId),
    /// Tell people.
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
    Touched(Vec<(DeploymentName, Touch)>),
    /// Tell those who wait whether everything that should be resident is.
    Readiness(Readiness),
    /// Everything that was stored up to here has been taken in.
    Seen(Rev),
    /// Everything that was stored up to here is in the routes that were sent.
    InForce(Rev),
    /// All that a declaration wants is ready, this long after it was declared.
    BecameReady {
        /// Which deployment.
        deployment: DeploymentName,
        /// How long it took.
        took: Duration,
    },
    /// A plan was made and taken over: for metrics.
    Planned(Tally),
}

/// What a plan has to store before anything of it may be sent.
#[derive(Debug, Clone)]
pub struct Commit {
    /// The plan's number.
    pub generation: Generation,
    /// Records to write; `None`: to delete.
    pub records: Vec<(DeploymentName, Option<Record>)>,
    /// Deployments whose deletion is done, with the resource versions that they must still have.
    pub forget: Vec<(DeploymentName, Rev)>,
    /// A crash may undo it: what it says can be found out again.
    pub reconstructible: bool,
}

/// Which gateways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    /// Every one that is connected.
    All,
    /// This one.
    One(GatewayId),
}

/// How a deployment was touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// It is new.
    Added,
    /// It, or what is true of it, changed.
    Modified,
    /// It is gone.
    Deleted,
}

/// What an assignment asks of a worker for one replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// What to do.
    pub kind: CommandKind,
    /// With which revision.
    pub revision: RevisionId,
}

/// What to do with a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CommandKind {
    /// Load it.
    Load,
    /// Load it beside, then instead of, another revision of the same deployment.
    Reload,
    /// Drain and unload it.
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

/// What a plan came to, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Deployments that were planned for; `None`: all.
    pub considered: Option<usize>,
    /// Records that changed.
    pub records: usize,
    /// Replicas that left to make room.
    pub evictions: usize,
    /// Routes that changed.
    pub routes: usize,
}
