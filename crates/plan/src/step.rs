//! The plan, step by step.

use berth_spec::Time;

use crate::{Planned, Scope, World, draft::Draft, finish, place, readopt};

/// Decides what should be where. The same world, scope and time always give the same plan, and planning again after
/// [`World::commit`] decides nothing.
pub fn plan(world: &World, scope: &Scope, now: Time) -> Planned {
    let mut draft = Draft::new(world, now);
    open(&mut draft, scope); // lost, rollout, scale, drain: what each deployment wants and lets go
    place::step(&mut draft); // filter, score, choose; evict where it must
    // What is found ready where it was put, or was left, may let a rollout go on at once.
    while readopt::step(&mut draft) | draft.advance() {
        place::step(&mut draft);
    }
    finish::finish(draft) // routes, what differs from the last plan, when to look again
}

/// Those in scope, and those that want more than they have: anything may have made room for them. Where those are a crowd,
/// [`World::due`] says when.
fn open(draft: &mut Draft<'_>, scope: &Scope) {
    let world = draft.world;
    match scope {
        Scope::All => draft.open_all(),
        Scope::Only(names) if world.is_crowded() => names.iter().for_each(|name| draft.open(name)),
        Scope::Only(names) => names.union(&world.unplaced).for_each(|name| draft.open(name)),
    }
}
