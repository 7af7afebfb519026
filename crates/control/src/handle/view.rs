//! Views of the control plane's objects.

use std::{collections::BTreeMap, sync::Arc};

use berth_spec::{
    Breaker, ByteSize, Cordon, Deployment, DeploymentName, Digest, Generation, Load, Namespace, Residency, RevisionId,
    Time, WorkerId, WorkerInfo, WorkerTerms, status::Status,
};
use serde_json::Value;

use crate::store::Rev;

/// A deployment: what was declared, and what is true of it.
#[derive(Debug, Clone, PartialEq)]
pub struct DeploymentView {
    /// Deployment with defaults applied.
    pub deployment: Arc<Deployment>,
    /// The manifest as its author wrote it, without defaults.
    pub manifest: Value,
    /// The folder that relative locations of the manifest start from.
    pub base: Option<String>,
    /// Rev of its last write: its resource version.
    pub rev: Rev,
    /// Current status; `None` if it was declared a moment ago.
    pub status: Option<Status>,
}

/// Request for a page of deployments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListRequest {
    /// Only this namespace.
    pub namespace: Option<Namespace>,
    /// Labels that a deployment must have.
    pub labels: BTreeMap<String, String>,
    /// Only names after this one: what the previous page said.
    pub after: Option<DeploymentName>,
    /// At most so many; 0 means 500, which is also the most.
    pub limit: usize,
}

/// Some deployments, by name.
#[derive(Debug, Clone, PartialEq)]
pub struct DeploymentPage<T = DeploymentView> {
    /// The deployments (or what was asked of them).
    pub items: Vec<T>,
    /// Start of the next page; `None` after the last.
    pub next: Option<DeploymentName>,
    /// The resource version to watch from.
    pub rev: Rev,
}

/// A worker as the controller knows it: its report, its settings, and what is planned for it.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerView {
    /// Description of the worker, with the registry's terms applied.
    pub info: WorkerInfo,
    /// Settings that a source gives it; `None` if no source names it.
    pub terms: Option<Arc<WorkerTerms>>,
    /// The registry does not name it and lets no such worker hold anything.
    pub unlisted: bool,
    /// The number of the credentials that it says it has; 0: none.
    pub credentials: Generation,
    /// Its circuit breakers that are not simply closed.
    pub breakers: Vec<Breaker>,
    /// State of the worker.
    pub state: WorkerState,
    /// Cordon set by operators.
    pub cordon: Cordon,
    /// The memory that the plan has set aside on it.
    pub claimed: ByteSize,
    /// Memory that its process takes beside its models, by its own word: replicas cannot claim it.
    pub overhead: ByteSize,
    /// Last reported load; `at` is 0 before the first report.
    pub load: Load,
    /// True if the worker was told to stop: its models move while it still answers.
    pub leaving: bool,
    /// The replica that leaves first when room is needed, and its last use (0: never).
    pub leaves_first: Option<(RevisionId, Time)>,
    /// Progress of moving its replicas; `None` while it is not drained.
    pub drain: Option<Drain>,
    /// Memory of each of its GPUs that the plan has set aside, in their order.
    pub gpus_claimed: Vec<ByteSize>,
    /// The replica that has each of its GPUs, by the GPU's id, as far as it has said so.
    pub gpus_given: BTreeMap<String, RevisionId>,
    /// Number of replicas that the plan assigns to it.
    pub assigned: u32,
    /// Replicas of them that answer.
    pub ready: u32,
    /// Time of the last report; `None` if it is not attached or has not reported.
    pub reported: Option<Time>,
}

/// Progress of moving a worker's replicas.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drain {
    /// Replicas that are still there.
    pub left: u32,
    /// The first few that wait for something that is under way, and for what.
    pub waiting_for: Vec<(RevisionId, String)>,
    /// The first few that have nowhere to go, and why.
    pub blocked: Vec<(RevisionId, String)>,
}

/// State of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerState {
    /// Attached, has not reported yet.
    Joining,
    /// Attached and reporting.
    Ready,
    /// Its connection is gone, but the other nodes see it: it goes on answering.
    Detached,
    /// Gone: it has no connection, and the other nodes do not see it.
    Lost,
}

impl WorkerState {
    /// Name of the state.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Joining => "Joining",
            Self::Ready => "Ready",
            Self::Detached => "Detached",
            Self::Lost => "Lost",
        }
    }
}

/// A replica, assigned or held.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaView {
    /// Revision of the replica.
    pub revision: RevisionId,
    /// The version name that clients see; `None`: no longer assigned.
    pub version: Option<String>,
    /// Worker that it is assigned to, or that holds it.
    pub worker: WorkerId,
    /// State reported by the worker; `None` if assigned and not yet reported.
    pub residency: Option<Residency>,
    /// The worker is lost: what it said last need not be true any more.
    pub lost: bool,
    /// The memory set aside; `None`: no longer assigned, on its way out.
    pub claim: Option<ByteSize>,
    /// For people: what it waits for, where it is queued and that is known.
    pub waits: Option<String>,
}

/// A revision that a deployment wants or still has replicas of.
#[derive(Debug, Clone, PartialEq)]
pub struct RevisionView {
    /// Name of the deployment and hash of what makes the revision.
    pub id: RevisionId,
    /// The version name that clients see, where it is the wanted one.
    pub version: Option<String>,
    /// Location of the artifact, if this revision is the wanted one.
    pub uri: Option<String>,
    /// The artifact's digest, where known.
    pub digest: Option<Digest>,
    /// True if the deployment's current spec makes this revision; others are on their way out.
    pub wanted: bool,
    /// True if it receives the deployment's traffic.
    pub serving: bool,
    /// Replicas in any state, assigned or held.
    pub replicas: u32,
    /// Number of ready replicas.
    pub ready: u32,
}

/// A deployment as the controller knows it, without its manifest.
#[derive(Debug, Clone)]
pub struct KnownDeployment {
    /// With defaults applied.
    pub deployment: Arc<Deployment>,
    /// Rev of its last write: its resource version.
    pub rev: Rev,
    /// Its status; `None`: it was declared a moment ago and has not been looked at.
    pub status: Option<Status>,
}

/// Part of a walk over all deployments: the driver looks at a bounded number each time.
#[derive(Debug)]
pub(crate) struct Scan {
    pub(crate) namespace: Option<Namespace>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) after: Option<DeploymentName>,
    pub(crate) limit: usize,
}

/// Result of one step of a walk.
#[derive(Debug)]
pub(crate) struct ScannedDeployments {
    pub(crate) found: Vec<KnownDeployment>,
    /// Start of the next step; `None` after the last.
    pub(crate) next: Option<DeploymentName>,
    pub(crate) rev: Rev,
}
