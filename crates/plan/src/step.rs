//! The plan, step by step.

use berth_spec::Time;

use crate::{Planned, Scope, World};

/// Decides.
pub fn plan(world: &World, _scope: &Scope, now: Time) -> Planned {
    Planned {
        generation: world.generation,
        at: now,
        records: Default::default(),
        assignments: Default::default(),
        routes: Vec::new(),
        gone: Vec::new(),
        readiness: world.readiness(),
        events: Vec::new(),
        wake_at: world.wake_at(),
        notes: Default::default(),
    }
}
