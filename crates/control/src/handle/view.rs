//! What the control plane tells of things.

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
    /// With defaults applied.
    pub deployment: Arc<Deployment>,
    /// The manifest as the user wrote it.
    pub manifest: Value,
    /// The resource version.
    pub rev: Rev,
    /// What is true of it. `None`: it was declared a moment ago and has not been looked at.
    pub status: Option<Status>,
}

/// Which deployments to list.
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
    /// Where the next page begins; `None`: that was all.
    pub next: Option<DeploymentName>,
    /// The resource version to watch from.
    pub rev: Rev,
}

/// A worker.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerView {
    /// What it is, under what the registry says of it.
    pub info: WorkerInfo,
    /// What the registry says of it.
    pub terms: Option<Arc<WorkerTerms>>,
    /// The registry does not name it and lets no such worker hold anything.
    pub unlisted: bool,
    /// The number of the credentials that it says it has; 0: none.
    pub credentials: Generation,
    /// Its circuit breakers that are not simply closed.
    pub breakers: Vec<Breaker>,
    /// How it is.
    pub state: WorkerState,
    /// What people say of it.
    pub cordon: Cordon,
    /// The memory that the plan has set aside on it.
    pub claimed: ByteSize,
    /// What it last said of its load; `at` is 0 where it has not said anything.
    pub load: Load,
    /// Whether it was told to stop: its models move elsewhere while it still answers.
    pub leaving: bool,
    /// How far it is, where its replicas move elsewhere.
    pub drain: Option<Drain>,
    /// Memory of each of its GPUs that the plan has set aside, in their order.
    pub gpus_claimed: Vec<ByteSize>,
    /// The replica that has each of its GPUs, by the GPU's id, as far as it has said so.
    pub gpus_given: BTreeMap<String, RevisionId>,
    /// Replicas assigned to it.
    pub assigned: u32,
    /// Replicas of them that answer.
    pub ready: u32,
    /// When it last reported; `None`: not yet, or it is not attached.
    pub reported: Option<Time>,
}

/// How far a worker is whose replicas move elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drain {
    /// Replicas that are still there.
    pub left: u32,
    /// The first few that wait for something that is under way, and for what.
    pub waiting_for: Vec<(RevisionId, String)>,
    /// The first few that have nowhere to go, and why.
    pub blocked: Vec<(RevisionId, String)>,
}

/// How a worker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerState {
    /// Attached, has not reported yet.
    Joining,
    /// Attached and reporting.
    Ready,
    /// Its connection is gone, but the other nodes see it: it goes on answering.
    Detached,
    /// Gone.
    Lost,
}

impl WorkerState {
    /// The word.
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
    /// Which revision.
    pub revision: RevisionId,
    /// The version name that clients see; `None`: no longer assigned.
    pub version: Option<String>,
    /// Where.
    pub worker: WorkerId,
    /// What the worker says; `None`: assigned, not yet reported.
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
    /// Its name.
    pub id: RevisionId,
    /// The version name that clients see, where it is the wanted one.
    pub version: Option<String>,
    /// Where its artifact is, where it is the wanted one.
    pub uri: Option<String>,
    /// The artifact's digest, where known.
    pub digest: Option<Digest>,
    /// The deployment wants it.
    pub wanted: bool,
    /// It gets the deployment's traffic.
    pub serving: bool,
    /// Replicas, in whatever state.
    pub replicas: u32,
    /// Replicas that answer.
    pub ready: u32,
}

/// An alias: a name and the revisions that share its traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AliasView {
    /// The name that clients use.
    pub name: DeploymentName,
    /// Revisions with weights; empty until something was ready once.
    pub targets: Vec<(RevisionId, u32)>,
}

/// A deployment as the controller knows it, without its manifest.
#[derive(Debug, Clone)]
pub struct Known {
    /// With defaults applied.
    pub deployment: Arc<Deployment>,
    /// The resource version.
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

/// What one step of a walk found.
#[derive(Debug)]
pub(crate) struct Scanned {
    pub(crate) found: Vec<Known>,
    /// Where to go on; `None`: that was all.
    pub(crate) next: Option<DeploymentName>,
    pub(crate) rev: Rev,
}
