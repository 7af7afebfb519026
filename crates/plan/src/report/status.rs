//! The state of one deployment.
use berth_spec::{DeploymentName, Time, status::Status};

use crate::World;

/// The status of a deployment.
#[must_use]
pub fn status(_world: &World, _name: &DeploymentName, _now: Time) -> Option<Status> {
    None
}
