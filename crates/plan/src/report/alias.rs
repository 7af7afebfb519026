//! The state of an alias: of each of its targets.

use berth_spec::{Alias, DeploymentName, Time, alias::TargetStatus, status::Phase};

use super::status;
use crate::World;

/// The state of each target, in declared order. A target that does not exist, or is being deleted, gets no requests: its
/// share goes to the others.
#[must_use]
pub fn targets(world: &World, alias: &Alias, now: Time) -> Vec<TargetStatus> {
    let exists = |name: &DeploymentName| world.deployment(name).is_some_and(|deployment| !deployment.deleting);
    let total: u64 = alias.targets.iter().filter(|(name, _)| exists(name)).map(|(_, weight)| u64::from(*weight)).sum();
    let target = |(deployment, weight): &(DeploymentName, u32)| {
        let share = if exists(deployment) { u64::from(*weight) * 100 / total.max(1) } else { 0 };
        TargetStatus {
            deployment: deployment.clone(),
            weight: *weight,
            share: u32::try_from(share).unwrap_or(100),
            phase: phase(world, deployment, now),
        }
    };
    alias.targets.iter().map(target).collect()
}

fn phase(world: &World, name: &DeploymentName, now: Time) -> Option<Phase> {
    Some(status(world, name, now)?.phase)
}
