//! Dry runs.

use std::sync::Arc;

use berth_plan::{
    fixture::{gib, name, world},
    preview::{Action, Change, preview},
};
use berth_spec::Deployment;

#[test]
fn an_update_is_a_reload_with_a_peak() {
    let mut w = world().worker("a", gib(4)).resident("iris", gib(1));
    w.settle();
    let before = w.world.generation();
    let old = w.revision("iris");
    let mut next: Deployment = w.world.deployment(&name("iris")).expect("it").as_ref().clone();
    next.generation = next.generation.next();
    next.spec.model.uri = "file:///models/iris/2".into();
    let seen = preview(&w.world, &[Change::Apply(Arc::new(next))], w.now);
    let actions: Vec<&Action> = seen.steps.iter().map(|step| &step.action).collect();
    assert_eq!(actions, [&Action::Reload { from: old }, &Action::Unload]);
    let line = &seen.memory[0];
    assert_eq!((line.before, line.peak, line.after), (gib(1), gib(2), gib(1)));
    assert_eq!(w.world.generation(), before);
}

#[test]
fn evictions_and_lacks_are_named() {
    let mut w = world().worker("a", gib(4)).on_demand("old", gib(3));
    w.demand("old", 1);
    w.settle();
    w.demand("old", 0);
    let next = world().resident("big", gib(4));
    let big = Arc::clone(next.world.deployment(&name("big")).expect("it"));
    let seen = preview(&w.world, &[Change::Apply(big)], w.now);
    let actions: Vec<&Action> = seen.steps.iter().map(|step| &step.action).collect();
    assert_eq!(actions, [&Action::Evict, &Action::Load]);
    let next = world().resident("huge", gib(5));
    let huge = Arc::clone(next.world.deployment(&name("huge")).expect("it"));
    let seen = preview(&w.world, &[Change::Apply(huge)], w.now);
    assert!(seen.steps.is_empty());
    assert!(seen.unplaced[0].1.contains("needs 5GiB"), "{seen:#?}");
    let seen = preview(&w.world, &[Change::Delete(name("old"))], w.now);
    assert_eq!(seen.steps[0].action, Action::Unload);
    assert_eq!(seen.memory[0].after, gib(0));
}
