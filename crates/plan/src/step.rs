//! The plan, step by step.

use std::collections::BTreeSet;

use berth_spec::{DeploymentName, Time};

use crate::{Planned, Scope, World, draft::Draft, finish, place, take_back};

/// Decides what should be where. The same world, scope and time always give the same plan, and planning again after
/// [`World::commit`] decides nothing.
pub fn plan(world: &World, scope: &Scope, now: Time) -> Planned {
    let mut draft = Draft::new(world, now);
    for name in names(world, scope) {
        draft.open(&name); // lost, rollout, scale, drain: what each deployment wants and lets go
    }
    place::step(&mut draft); // filter, score, choose; evict where it must
    // What is found ready where it was put, or was left, may let a rollout go on at once.
    while take_back::step(&mut draft) | draft.advance() {
        place::step(&mut draft);
    }
    finish::finish(draft) // routes, what differs from the last plan, when to look again
}

/// Those in scope, and those that want more than they have: anything may have made room for them. Where those are a crowd,
/// [`World::due`] says when.
fn names(world: &World, scope: &Scope) -> BTreeSet<DeploymentName> {
    match scope {
        Scope::All => world.entries.keys().chain(world.orphans.keys()).cloned().collect(),
        Scope::Only(names) if world.is_crowded() => names.clone(),
        Scope::Only(names) => names.union(&world.unplaced).cloned().collect(),
    }
}
