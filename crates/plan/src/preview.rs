//! What would change if deployments were applied or deleted, without changing it.
use std::sync::Arc;

use berth_spec::{ByteSize, Deployment, DeploymentName, RevisionId, Time, WorkerId};

use crate::World;

/// Something that somebody might do.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Declare or change a deployment.
    Apply(Arc<Deployment>),
    /// Delete one.
    Delete(DeploymentName),
}

/// What would come of it, once everything has settled and every load succeeds.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Preview {
    /// What would be done, in the order in which it would begin.
    pub steps: Vec<Step>,
    /// Every worker, by name.
    pub memory: Vec<MemoryChange>,
    /// Deployments that would not get what they want, with the reason.
    pub unplaced: Vec<(DeploymentName, String)>,
}

/// One thing that would be done.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// What.
    pub action: Action,
    /// Which revision.
    pub revision: RevisionId,
    /// Where.
    pub worker: WorkerId,
    /// The memory that it takes or gives back.
    pub memory: ByteSize,
}

/// What is done to a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Loaded where no other revision of the deployment is.
    Load,
    /// Loaded in place of an older revision.
    Reload {
        /// It.
        from: RevisionId,
    },
    /// Unloaded: not wanted any more.
    Unload,
    /// Unloaded to make room.
    Evict,
}

/// A worker's memory before and after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryChange {
    /// Which.
    pub worker: WorkerId,
    /// All that models may take.
    pub total: ByteSize,
    /// Claimed now.
    pub before: ByteSize,
    /// The most that is claimed on the way, e.g. while old and new are both loaded.
    pub peak: ByteSize,
    /// Claimed in the end.
    pub after: ByteSize,
}

/// What would come of changes.
#[must_use]
pub fn preview(_world: &World, _changes: &[Change], _now: Time) -> Preview {
    Preview::default()
}
