//! Claims: the memory set aside for a replica, and its other resources.
//!
//! The author's word counts most, then what was measured, then what is known of the artifact, then a default.
//! Accounting is by assignment: what a worker is assigned never claims more than it has. A replica that was taken off
//! the assignment no longer counts, though the worker may still be draining it; the worker frees before it loads, but for a small reserve.

mod cores;
pub(crate) mod gpus;
mod runtime;

pub use cores::Cores;
pub(crate) use cores::{Hardware, cores};
pub(crate) use runtime::{PlacedClaim, RuntimeClaim, RuntimeTotal};

use berth_spec::{ByteSize, Residency, Revision};

use crate::{
    Replica, World,
    world::{TrackedDeployment, TrackedWorker},
};

/// The origin of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// Declared in the manifest or the card: the author's word.
    Declared,
    /// Measured by a worker when it loaded this content.
    Measured,
    /// From the artifact's size, or from a load that did not fit.
    Predicted,
    /// Nothing is known yet.
    Default,
}

impl Basis {
    /// The word in answers: `declared`, `measured`, `predicted` or `default`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Declared => "declared",
            Self::Measured => "measured",
            Self::Predicted => "predicted",
            Self::Default => "default",
        }
    }
}

/// Predicts the memory of a revision, wherever it is put.
pub(crate) fn need(world: &World, entry: &TrackedDeployment, revision: &Revision) -> (ByteSize, Basis) {
    if let Some(memory) = revision.memory {
        return (memory, Basis::Declared);
    }
    if let Some(memory) = revision.digest.and_then(|digest| world.measured.get(&digest)) {
        return (*memory, Basis::Measured);
    }
    if let Some(learned) = entry.learned(&revision.id) {
        return (learned.memory, learned.basis);
    }
    match entry.deployment.artifact.filter(|_| entry.wants(&revision.id)) {
        Some(size) => (world.policy.memory_of(size), Basis::Predicted),
        None => (world.default_claim(&revision.format), Basis::Default),
    }
}

/// Memory that a new replica claims on a worker: the measured amount if the worker still holds it, else `need`.
pub(crate) fn need_at(tracked: &TrackedWorker, revision: &Revision, need: ByteSize) -> ByteSize {
    match tracked.inventory.get(&revision.id) {
        Some(Residency::Ready(ready)) if ready.measured && revision.memory.is_none() => ready.memory,
        _ => need,
    }
}

/// Memory that a replica should claim where it is: the measured amount once it is ready; until then the first claim,
/// or more if its own load taught so. Lessons from other replicas count only for new ones: planning for one
/// deployment must not change another.
pub(crate) fn of_replica(world: &World, entry: &TrackedDeployment, revision: &Revision, replica: &Replica) -> ByteSize {
    if let Some(declared) = revision.memory {
        return declared;
    }
    let residency = world.workers.get(&replica.worker).and_then(|tracked| tracked.inventory.get(&revision.id));
    match residency {
        Some(Residency::Ready(ready)) if ready.measured => ready.memory,
        // The worker counts its estimate.
        Some(Residency::Ready(ready)) => replica.claim.max(ready.memory),
        _ => entry.learned(&revision.id).map_or(replica.claim, |learned| replica.claim.max(learned.memory)),
    }
}
