//! Deployments that a person has to look at.

use berth_spec::{DeploymentName, residency::Residency};

use crate::{
    Record, Rollout, World,
    world::{Prospect, TrackedDeployment, Verdict},
};

/// Deployments with a failed replica, with a rollout that was given up or waits for room beyond its deadline, and those
/// that must be resident and have no place.
pub fn failing(world: &World) -> impl Iterator<Item = &DeploymentName> {
    world.entries.iter().filter(|(_, entry)| is_failing(world, entry)).map(|(name, _)| name)
}

fn is_failing(world: &World, entry: &TrackedDeployment) -> bool {
    let has_no_place = match entry.verdict() {
        Some(Verdict::NoCapacity { .. } | Verdict::Failed { .. }) => entry.deployment.spec.replicas.min > 0,
        Some(Verdict::SurgeWaits { prospect, .. }) => *prospect == Prospect::Overdue,
        _ => false,
    };
    has_no_place
        || entry
            .record()
            .is_some_and(|record| matches!(record.rollout, Rollout::Stuck { .. }) || has_failed_replica(world, record))
}

fn has_failed_replica(world: &World, record: &Record) -> bool {
    record.replicas.iter().any(|replica| {
        let tracked = world.workers.get(&replica.worker);
        matches!(tracked.and_then(|tracked| tracked.inventory.get(&replica.revision)), Some(Residency::Failed(_)))
    })
}
