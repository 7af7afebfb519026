//! The plan, step by step.

use berth_spec::Time;

use crate::{Planned, Scope, World, draft::Draft, finish, open, place, readopt};

/// Decides what should be where. The same world, scope and time always give the same plan, and planning again after
/// [`World::commit`] decides nothing.
pub fn plan(world: &World, scope: &Scope, now: Time) -> Planned {
    let mut draft = Draft::new(world, now);
    take_up(&mut draft, scope); // lost, rollout, scale, drain: what each deployment wants and lets go
    place::step(&mut draft); // filter, score, choose; evict where it must
    // What is found ready where it was put, or was left, may let a rollout go on at once.
    while readopt::step(&mut draft) | open::advance(&mut draft) {
        place::step(&mut draft);
    }
    finish::finish(draft) // routes, what differs from the last plan, when to look again
}

/// Deployments in scope, and those that want more than they have: anything may have made room for them. Where those are a crowd,
/// [`World::due`] says when.
fn take_up(draft: &mut Draft<'_>, scope: &Scope) {
    let world = draft.world;
    match scope {
        Scope::All => open::open_all(draft),
        Scope::Only(names) if world.is_crowded() => names.iter().for_each(|name| open::open(draft, name)),
        Scope::Only(names) => names.union(&world.unplaced).for_each(|name| open::open(draft, name)),
    }
}
