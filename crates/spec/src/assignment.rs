//! The whole, numbered set of replicas that a worker should hold.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{
    ByteSize, CredentialSet, DeploymentName, Generation, Revision, RevisionId, WorkerId,
    deployment::{Batching, Concurrency, GpuNeed, Warmup},
};

/// The replicas that a worker should hold. Older generations are ignored; the worker diffs it against what it has.
#[derive(Debug, Clone, PartialEq)]
pub struct Assignment {
    /// The worker that it is for.
    pub worker: WorkerId,
    /// Grows with every change.
    pub generation: Generation,
    /// Every replica it should hold, and nothing else.
    pub replicas: BTreeMap<RevisionId, Placed>,
}

/// One replica in an assignment.
#[derive(Debug, Clone, PartialEq)]
pub struct Placed {
    /// The revision to load, with all that the worker needs for it.
    pub revision: Arc<Revision>,
    /// The memory that the plan sets aside for it.
    pub claim: ByteSize,
    /// The GPUs that the plan sets aside for it. The worker gives it particular ones when it is loaded.
    pub gpu: Option<GpuNeed>,
    /// Requests are parked for it: its load goes before others'.
    pub urgent: bool,
    /// Serving parameters; may change without loading again.
    pub serving: Arc<Serving>,
}

/// Serving parameters of a replica: they may change without loading it again.
#[derive(Debug, Clone, PartialEq)]
pub struct Serving {
    /// The deployment of the replica: the name that requests of it come by.
    pub deployment: DeploymentName,
    /// The validation inference before it is ready.
    pub warmup: Warmup,
    /// Limits on requests at once.
    pub concurrency: Concurrency,
    /// Joining of requests into batches.
    pub batching: Batching,
    /// The longest that requests in flight have once it drains.
    pub drain_timeout: Duration,
}

/// An [`Assignment`] on the wire: what differs from `base`. Whole when `base` is `None`.
/// A worker that does not hold exactly `base` asks for the whole.
#[derive(Debug, Clone, PartialEq)]
pub struct AssignmentChange {
    /// The generation that this leads to; the worker reports it once it works towards it.
    pub generation: Generation,
    /// The generation that it starts from; `None`: from nothing, all that is not in `set` goes.
    pub base: Option<Generation>,
    /// The limits in force from then on: in every change, the whole of them.
    pub limits: WorkerLimits,
    /// Replicas that are new or changed.
    pub set: Vec<Placed>,
    /// Replicas that should go.
    pub unset: Vec<RevisionId>,
}

/// The most that models may take on a worker, where the registry says so. A worker keeps to its own limits too; what is
/// `None` is limited by those alone.
///
/// There is no number of GPUs: what is assigned together has its GPUs, so a worker keeps to them by letting go of those of
/// what leaves before it loads what comes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkerLimits {
    /// Memory of all models together.
    pub memory: Option<ByteSize>,
    /// The number of models at once.
    pub models: Option<u32>,
}

/// A message of the controller to a worker.
#[derive(Debug, Clone, PartialEq)]
pub enum FromController {
    /// The worker is connected, perhaps to another controller than before: it reports everything again.
    Attached,
    /// Replicas or limits changed: the worker loads what is new and drains what is gone.
    Assigned(AssignmentChange),
    /// The worker's credentials: the whole set, which replaces the one before. Kept in memory alone, and
    /// never logged.
    Credentials(Arc<CredentialSet>),
}

/// Name of one command in the logs of the controller and of the worker: a replica that changes with one assignment.
///
/// Made of facts that both know, so that it need not be sent: `w-1-7-3f2a9c41d07b`.
#[must_use]
pub fn correlation_id(worker: &WorkerId, generation: Generation, revision: &RevisionId) -> String {
    format!("{worker}-{generation}-{}", revision.hash())
}

impl From<AssignmentChange> for FromController {
    fn from(change: AssignmentChange) -> Self {
        Self::Assigned(change)
    }
}
