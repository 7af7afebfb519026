//! A naive second opinion about a plan. It shares no code with the planner.
use crate::{Planned, World};

/// A law that a plan breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(pub String);

/// Checks a plan that was made from `world` and is not committed yet.
#[must_use]
pub fn lint(_world: &World, _planned: &Planned) -> Vec<Violation> {
    Vec::new()
}
