//! Dry runs.

use std::{collections::BTreeMap, sync::Arc};

use berth_plan::{
    fixture::{gib, name, worker_id, world},
    preview::{Action, Change, preview},
};
use berth_spec::{ByteSize, Deployment, UnknownWorkers, WorkerTerms};

/// Settings of workers that give each of them at most so much memory.
fn registered(workers: &[(&str, ByteSize)], unknown: UnknownWorkers) -> Change {
    let terms = |memory| Arc::new(WorkerTerms { memory: Some(memory), ..WorkerTerms::default() });
    let terms: BTreeMap<_, _> = workers.iter().map(|(worker, memory)| (worker_id(worker), terms(*memory))).collect();
    Change::Workers { terms, unknown }
}

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

#[test]
fn settings_of_workers_are_reckoned_with() {
    let mut w = world().worker("a", gib(4)).resident("iris", gib(2));
    w.settle();
    w = w.worker("b", gib(4));
    w.settle();
    assert_eq!(w.placed("iris"), ["a"]);
    let before = w.world.generation();

    let seen = preview(&w.world, &[registered(&[("a", gib(1)), ("b", gib(4))], UnknownWorkers::Allow)], w.now);
    let steps: Vec<_> = seen.steps.iter().map(|step| (&step.action, step.worker.as_str())).collect();
    assert!(steps.contains(&(&Action::Load, "b")) && !steps.contains(&(&Action::Load, "a")), "{seen:#?}");
    let lines: Vec<_> = seen.memory.iter().map(|line| (line.total, line.before, line.after)).collect();
    assert_eq!(lines, [(gib(1), gib(2), gib(0)), (gib(4), gib(0), gib(2))]);
    assert!(seen.unplaced.is_empty(), "{seen:#?}");

    // Models that come are planned with the workers as they will be, in one preview.
    let next = world().resident("big", gib(4));
    let big = Change::Apply(Arc::clone(next.world.deployment(&name("big")).expect("it")));
    let small = registered(&[("a", gib(3)), ("b", gib(3))], UnknownWorkers::Allow);
    let seen = preview(&w.world, &[big.clone(), small], w.now);
    assert!(seen.steps.is_empty() && seen.unplaced[0].1.contains("needs 4GiB"), "{seen:#?}");
    assert_eq!(preview(&w.world, &[big], w.now).steps.len(), 1);

    // Nobody names a any more, and what is not named gets no models.
    let seen = preview(&w.world, &[registered(&[("b", gib(4))], UnknownWorkers::Ignore)], w.now);
    assert_eq!(seen.memory[0].after, gib(0), "{seen:#?}");
    assert_eq!(w.world.generation(), before, "the world stays as it is");

    // What is so already changes nothing.
    w.world.set_terms(&worker_id("a"), Some(Arc::new(WorkerTerms { memory: Some(gib(4)), ..WorkerTerms::default() })));
    w.settle();
    let seen = preview(&w.world, &[registered(&[("a", gib(4))], UnknownWorkers::Allow)], w.now);
    assert!(seen.steps.is_empty(), "{seen:#?}");
    // Without its file a worker is as it says of itself.
    w.world.set_terms(&worker_id("b"), Some(Arc::new(WorkerTerms { memory: Some(gib(1)), ..WorkerTerms::default() })));
    let seen = preview(&w.world, &[registered(&[], UnknownWorkers::Allow)], w.now);
    assert_eq!(seen.memory[1].total, gib(4), "{seen:#?}");
}
