//! Why a deployment is where it is, or why it is nowhere: every worker, with numbers.

use berth_spec::{ByteSize, DeploymentName, RevisionId, Time, WorkerId};

pub use crate::claim::Basis;
use crate::{Rejection, Score, World};

/// Why a deployment is where it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// Whose.
    pub deployment: DeploymentName,
    /// The revision that a new replica would have.
    pub revision: RevisionId,
    /// Replicas that are wanted now.
    pub desired: u32,
    /// The memory that one replica takes.
    pub need: ByteSize,
    /// Where `need` comes from.
    pub basis: Basis,
    /// The answer in a sentence.
    pub summary: String,
    /// Every worker, by name.
    pub workers: Vec<WorkerView>,
}

/// One worker from a deployment's point of view.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerView {
    /// Which.
    pub worker: WorkerId,
    /// Memory that models may take there.
    pub memory: ByteSize,
    /// What of it is claimed.
    pub used: ByteSize,
    /// What it is to the deployment.
    pub verdict: WorkerVerdict,
}

/// What a worker is to a deployment.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkerVerdict {
    /// It has a replica.
    Holds {
        /// Which revision.
        revision: RevisionId,
        /// The memory set aside for it.
        claim: ByteSize,
        /// What the worker says of it; `None`: nothing yet.
        residency: Option<String>,
    },
    /// It could hold one.
    Fits {
        /// How good it would be; smaller is better.
        score: Score,
        /// What would have to leave.
        evicts: Vec<RevisionId>,
    },
    /// It cannot.
    Rejected(Rejection),
}

/// Explains.
#[must_use]
pub fn explain(_world: &World, _name: &DeploymentName, _now: Time) -> Option<Explanation> {
    None
}
