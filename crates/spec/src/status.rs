//! Status of deployments, for people. Computed by `plan::report`, never stored.

use std::sync::Arc;

use crate::{ByteSize, Failure, Generation, Residency, RevisionId, Time, Usage, WorkerId};

/// A deployment in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// On the way to what is wanted, and able to get there.
    Progressing,
    /// All that is wanted is ready.
    Available,
    /// Answers, with fewer replicas than wanted or an older revision than wanted; or the processes of its replicas died
    /// and are started again.
    Degraded,
    /// Does not answer and will not without a change; the conditions say why.
    Failed,
    /// No worker can hold it.
    ScheduleFailed,
    /// On demand and not loaded, or scaled to nothing.
    ScaledDown,
    /// Going away.
    Terminating,
}

impl Phase {
    /// Every phase, in the order in which they are listed.
    pub const ALL: [Self; 7] = [
        Self::Progressing,
        Self::Available,
        Self::Degraded,
        Self::Failed,
        Self::ScheduleFailed,
        Self::ScaledDown,
        Self::Terminating,
    ];

    /// The word in status, metrics and lists.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Progressing => "Progressing",
            Self::Available => "Available",
            Self::Degraded => "Degraded",
            Self::Failed => "Failed",
            Self::ScheduleFailed => "ScheduleFailed",
            Self::ScaledDown => "ScaledDown",
            Self::Terminating => "Terminating",
        }
    }
}

/// A deployment's status.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// The sum of the conditions in one word.
    pub phase: Phase,
    /// The generation of the deployment that this status is of.
    pub observed_generation: Generation,
    /// `Available`, `Progressing`, `Scheduled`, in this order.
    pub conditions: Vec<Condition>,
    /// Replicas that are wanted now.
    pub desired: u32,
    /// Replicas that answer, of any revision that gets traffic.
    pub ready: u32,
    /// The revision of the declared spec.
    pub wanted: RevisionId,
    /// The revision that serves, if any.
    pub serving: Option<RevisionId>,
    /// Every replica, wanted or on its way out.
    pub replicas: Vec<ReplicaStatus>,
    /// Loads that failed for good and are remembered, although the worker holds nothing of them any more.
    pub failures: Vec<FailedLoad>,
    /// When a request last came.
    pub last_used: Option<Time>,
}

/// One replica, for people.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaStatus {
    /// The revision that it is of.
    pub revision: RevisionId,
    /// The worker that it is assigned to.
    pub worker: WorkerId,
    /// The worker's report; `None`: assigned, not yet reported.
    pub residency: Option<Residency>,
    /// The worker is lost: what it said last need not be true any more.
    pub lost: bool,
    /// The memory set aside.
    pub claim: ByteSize,
    /// Use, by the last report of its worker; `None`: no report yet.
    pub usage: Option<Usage>,
    /// For people: what it waits for, where it is queued and that is known.
    pub waits: Option<String>,
}

/// A load that failed for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedLoad {
    /// The revision that could not be loaded.
    pub revision: RevisionId,
    /// The worker on which it failed.
    pub worker: WorkerId,
    /// The worker's report.
    pub failure: Arc<Failure>,
}

/// One aspect of a status, in the form that Kubernetes users know.
#[derive(Debug, Clone, PartialEq)]
pub struct Condition {
    /// The aspect, one CamelCase word: `Available`, `Scheduled`.
    pub kind: &'static str,
    /// Yes, no, or not known.
    pub status: Truth,
    /// One CamelCase word for machines.
    pub reason: String,
    /// A sentence for people that says what to do where something is to be done.
    pub message: String,
}

/// Yes, no, or not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truth {
    /// The condition holds.
    True,
    /// The condition does not hold; the message says why.
    False,
    /// Not known (yet).
    Unknown,
}

impl Truth {
    /// The word that Kubernetes has for it: `True`, `False`, `Unknown`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}
