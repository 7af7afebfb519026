//! A new revision replaces an old one.

use std::time::Duration;

use berth_plan::{
    Rollout,
    fixture::{gib, name, world},
};
use berth_spec::{FailureCategory, Replicas, deployment::WhenFull, routes::OnMiss, status::Phase};

#[test]
fn surge_switch_drain() {
    let mut w = world().worker("a", gib(4)).resident("iris", gib(1));
    w.settle();
    let old = w.revision("iris");
    w.update("iris", "2");
    let new = w.revision("iris");
    let planned = w.plan();
    let change = planned.assignments.values().next().expect("an assignment");
    assert_eq!((change.set.len(), change.unset.len()), (1, 0), "make before break");
    assert_eq!(planned.routes[0].split, [(old.clone(), 100)]);
    w.load_all();
    let planned = w.plan();
    assert_eq!(planned.routes[0].split, [(new.clone(), 100)]);
    assert_eq!(planned.assignments.values().next().expect("an assignment").unset, [old]);
    assert!(w.was_told("RolloutStarted") && w.was_told("RolloutCompleted"));
    w.settle();
    assert_eq!(w.status("iris").phase, Phase::Available);
    assert_eq!(w.status("iris").serving, Some(new));
}

#[test]
fn a_bad_revision_leaves_the_old_one_serving_until_the_spec_changes() {
    let mut w = world().worker("a", gib(4)).resident("iris", gib(1));
    w.settle();
    let good = w.revision("iris");
    w.update("iris", "bad");
    w.advance();
    w.fail("iris", "a", FailureCategory::InvalidModel, None);
    w.advance();
    let record = w.world.record(&name("iris")).expect("a record");
    assert!(matches!(&record.rollout, Rollout::Stuck { serving, .. } if *serving == good), "{record:#?}");
    let status = w.status("iris");
    assert_eq!((status.phase, status.ready), (Phase::Degraded, 1));
    assert!(status.conditions[1].message.contains("it broke"), "{:?}", status.conditions);
    w.load_all();
    w.after(Duration::from_secs(3600));
    assert!(!w.plan_for(&berth_plan::Scope::All).decided(), "not tried again by itself");
    w.update("iris", "3");
    w.settle();
    assert_eq!(w.status("iris").phase, Phase::Available);
    assert_eq!(w.status("iris").serving, Some(w.revision("iris")));
}

#[test]
fn going_back_to_the_old_spec_ends_a_rollout() {
    let mut w = world().worker("a", gib(4)).resident("iris", gib(1));
    w.settle();
    w.update("iris", "2");
    w.advance();
    w.update("iris", "1");
    w.settle();
    assert_eq!(w.placed("iris").len(), 1);
    assert_eq!(w.status("iris").phase, Phase::Available);
}

#[test]
fn a_revision_that_is_late_is_given_up() {
    let mut w = world().worker("a", gib(4)).resident("iris", gib(1));
    w.settle();
    w.update("iris", "2");
    let planned = w.plan();
    assert_eq!(planned.wake_at, Some(w.now + Duration::from_secs(600)));
    w.after(Duration::from_secs(600));
    w.advance();
    assert!(w.was_told("RolloutStuck"));
    assert_eq!(w.placed("iris").len(), 1);
}

#[test]
fn where_both_do_not_fit_the_author_decides() {
    let small = || world().worker("a", gib(3)).resident("iris", gib(2));
    let mut w = small();
    w.settle();
    w.update("iris", "2");
    let planned = w.plan();
    assert_eq!(planned.routes.len(), 1, "the coming version is announced");
    let status = w.status("iris");
    assert_eq!((status.phase, status.ready), (Phase::Degraded, 1));
    assert!(status.conditions[1].message.contains("whenFull"), "{:?}", status.conditions);
    w.after(Duration::from_secs(7200));
    w.settle();
    assert!(!w.was_told("RolloutStuck"), "waiting for room has no deadline");

    let mut w = small().deploy("iris", |spec| spec.rollout.when_full = WhenFull::Recreate);
    w.settle();
    w.update("iris", "2");
    let planned = w.plan();
    let change = planned.assignments.values().next().expect("an assignment");
    assert_eq!((change.set.len(), change.unset.len()), (1, 1));
    assert_eq!(planned.routes[0].on_miss, OnMiss::Park);
    w.settle();
    assert_eq!(w.status("iris").phase, Phase::Available);
}

#[test]
fn a_recreated_revision_that_fails_brings_the_old_one_back() {
    let mut w = world().worker("a", gib(3)).resident("iris", gib(2));
    w.change("iris", |spec| spec.rollout.when_full = WhenFull::Recreate);
    w.settle();
    let good = w.revision("iris");
    w.update("iris", "2");
    w.advance();
    w.fail("iris", "a", FailureCategory::InvalidModel, None);
    w.settle();
    assert_eq!(w.status("iris").serving, Some(good));
    assert_eq!((w.status("iris").ready, w.status("iris").phase), (1, Phase::Degraded));
}

#[test]
fn several_replicas_switch_when_as_many_are_ready() {
    let mut w = world().worker("a", gib(4)).worker("b", gib(4));
    w.change("iris", |spec| {
        spec.memory = Some(gib(1));
        spec.replicas = Replicas { min: 2, max: 2 };
    });
    w.settle();
    assert_eq!(w.placed("iris"), ["a", "b"]);
    let old = w.revision("iris");
    w.update("iris", "2");
    w.advance();
    let new = w.revision("iris");
    let one = berth_plan::fixture::ready(gib(1), berth_plan::fixture::digest_of(&new), w.now);
    w.report("a", false, vec![(new.clone(), Some(one))]);
    let planned = w.plan();
    assert!(planned.routes.iter().all(|route| route.split == [(old.clone(), 100)]), "{planned:#?}");
    w.settle();
    assert_eq!((w.status("iris").serving, w.status("iris").ready), (Some(new), 2));
}

#[test]
fn an_on_demand_deployment_that_is_cold_changes_for_free() {
    let mut w = world().worker("a", gib(4)).on_demand("iris", gib(1));
    w.settle();
    w.update("iris", "2");
    let planned = w.plan();
    assert!(!planned.decided());
    assert_eq!(planned.routes[0].versions[0].revision, w.revision("iris"));
}
