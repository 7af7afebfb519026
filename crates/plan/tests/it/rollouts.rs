//! A new revision replaces an old one.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use berth_plan::{
    Planned, Policy, Rollout,
    fixture::{Fixture, deployment, digest_of, gib, name, ready, world},
};
use berth_spec::{
    Cordon, Failure, FailureCategory, Replicas, Residency, RevisionId,
    deployment::{Warmup, WhenFull},
    routes::OnMiss,
    status::Phase,
};

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

/// Its two loads have told of it already.
#[test]
fn a_checksum_that_fails_on_two_workers_is_one_event_of_the_planner() {
    let mut w = world().worker("a", gib(4)).worker("b", gib(4)).deploy("iris", |spec| {
        spec.memory = Some(gib(1));
        spec.replicas = Replicas { min: 2, max: 2 };
    });
    w.settle();
    w.update("iris", "2");
    w.advance();
    let revision = w.revision("iris");
    let message = format!("the artifact has another digest: {}", "0123456789abcdef ".repeat(20));
    for worker in ["a", "b"] {
        let failure = Failure {
            category: FailureCategory::Checksum,
            message: message.clone(),
            attempts: 1,
            at: w.now,
            retry_at: None,
            trace: None,
            history: Vec::new(),
            needs: None,
        };
        w.report(worker, false, vec![(revision.clone(), Some(Residency::Failed(Arc::new(failure))))]);
    }
    w.told.clear();
    w.settle();
    let [(reason, told)] = w.told.as_slice() else { panic!("{:#?}", w.told) };
    assert_eq!(*reason, "RolloutStuck");
    assert!(told.contains("checksum: the artifact has another digest") && !told.contains(&message), "{told}");
    let conditions = w.status("iris").conditions;
    assert!(conditions[1].message.contains(&message), "the status has all of it: {conditions:#?}");
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
    assert_eq!(planned.wake_at, Some(w.now + Duration::from_secs(600)), "at its deadline");
    assert_eq!(berth_plan::report::failing(&w.world).count(), 0, "it may wait for as long as the author allows");
    w.after(Duration::from_secs(600));
    w.settle();
    assert_eq!(w.status("iris").conditions[1].reason, "RolloutOverdue");
    assert_eq!(berth_plan::report::failing(&w.world).count(), 1);
    assert!(w.was_told("RolloutOverdue") && !w.was_told("RolloutStuck"), "it is not given up");
    let mut w = w.worker("b", gib(3));
    w.settle();
    assert_eq!(w.status("iris").phase, Phase::Available, "there is room now");
    assert_eq!(berth_plan::report::failing(&w.world).count(), 0);

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
fn nothing_leaves_for_a_revision_that_would_not_fit_then_either() {
    let mut w = world().worker("a", gib(3)).resident("other", gib(2)).on_demand("iris", gib(1));
    w.change("iris", |spec| {
        spec.priority += 1;
        spec.rollout.when_full = WhenFull::Recreate;
    });
    w.demand("iris", 1);
    w.settle();
    w.demand("iris", 0);
    // What nobody waits for takes no place of a resident one, whatever its priority.
    w.change("iris", |spec| {
        spec.model.uri = "file:///models/iris/2".into();
        spec.memory = Some(gib(2));
    });
    w.advance();
    assert_eq!(w.answers("iris"), ["a"]);
    assert!(w.was_told("RolloutStarted") && !w.was_told("RolloutRecreates"));
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

/// Five workers; `before` copies of 1 GiB each, of which each worker holds one.
fn copies(before: u32, memory: u64) -> Fixture {
    let mut w = ["a", "b", "c", "d", "e"].iter().fold(world(), |w, worker| w.worker(worker, gib(memory)));
    w.change("iris", |spec| {
        spec.memory = Some(gib(1));
        spec.replicas = Replicas { min: before, max: before };
    });
    w.settle();
    w
}

/// Another version and another number of copies, in one change.
fn update_and_scale(w: &mut Fixture, version: &str, to: u32) {
    w.change("iris", |spec| {
        spec.model.uri = format!("file:///models/iris/{version}").into();
        spec.replicas = Replicas { min: to, max: to };
    });
}

/// Workers that are to hold a revision.
fn on(w: &Fixture, revision: &RevisionId) -> Vec<String> {
    let record = w.world.record(&name("iris"));
    record.iter().flat_map(|record| record.of(revision)).map(|replica| replica.worker.to_string()).collect()
}

/// Workers that a plan tells to load a revision.
fn told_to_load(planned: &Planned, revision: &RevisionId) -> BTreeSet<String> {
    let told = planned
        .assignments
        .iter()
        .filter(|(_, change)| change.set.iter().any(|placed| placed.revision.id == *revision));
    told.map(|(worker, _)| worker.to_string()).collect()
}

#[test]
fn what_an_update_adds_is_of_the_new_revision() {
    // Copies before, copies afterwards, and those of the old one that stay until the new one takes over.
    for (before, after, stay) in [(1, 3, 1), (1, 2, 1), (2, 5, 2), (3, 3, 3), (3, 1, 1)] {
        let mut w = copies(before, 4);
        let (old, held) = (w.revision("iris"), w.placed("iris"));
        update_and_scale(&mut w, "2", after);
        let planned = w.plan();
        let new = w.revision("iris");
        let case = format!("{before} to {after}: {planned:#?}");
        assert!(told_to_load(&planned, &old).is_empty(), "{case}");
        assert_eq!(told_to_load(&planned, &new).len(), after as usize, "{case}");
        let still = on(&w, &old);
        assert!(still.len() == stay && still.iter().all(|worker| held.contains(worker)), "{still:?} of {case}");
        assert_eq!(w.answers("iris").len(), stay, "{case}");
        assert!(!w.plan_for(&berth_plan::Scope::All).decided(), "{case}");
        w.load_all();
        w.advance();
        let status = w.status("iris");
        assert_eq!((status.serving, status.ready, on(&w, &old).len()), (Some(new), after, 0), "{case}");
    }
}

#[test]
fn more_copies_in_the_midst_of_an_update_are_of_the_new_revision() {
    let mut w = copies(1, 4);
    let old = w.revision("iris");
    w.update("iris", "2");
    w.advance();
    let new = w.revision("iris");
    update_and_scale(&mut w, "2", 3);
    w.advance();
    assert_eq!((on(&w, &old).len(), on(&w, &new).len()), (1, 3));
    // And so is what comes after that.
    update_and_scale(&mut w, "3", 4);
    w.advance();
    assert_eq!((on(&w, &old).len(), on(&w, &new).len(), on(&w, &w.revision("iris")).len()), (1, 0, 4));
}

#[test]
fn what_serves_during_an_update_is_never_less_than_before_it() {
    // A copy is lost with its worker, or its worker is to be emptied: another one of the old revision, no more than that.
    let lost: fn(&mut Fixture, &str) = |w, worker| w.lose(worker);
    let drained: fn(&mut Fixture, &str) = |w, worker| w.cordon(worker, Cordon::Draining);
    for goes in [lost, drained] {
        let mut w = copies(2, 4);
        let old = w.revision("iris");
        update_and_scale(&mut w, "2", 4);
        w.advance();
        let held = on(&w, &old);
        goes(&mut w, &held[0]);
        w.after(Policy::default().lost_grace);
        let planned = w.plan();
        assert_eq!(told_to_load(&planned, &old).len(), 1, "{planned:#?}");
        assert!(w.answers("iris").contains(&held[1]));
        w.settle();
        assert_eq!((on(&w, &old).len(), on(&w, &w.revision("iris")).len()), (0, 4));
    }
}

#[test]
fn an_added_copy_of_an_update_that_fails_is_of_the_old_revision() {
    let mut w = copies(1, 4);
    let good = w.revision("iris");
    update_and_scale(&mut w, "bad", 2);
    w.advance();
    for worker in on(&w, &w.revision("iris")) {
        w.fail("iris", &worker, FailureCategory::InvalidModel, None);
    }
    w.settle();
    assert_eq!((w.status("iris").serving, w.status("iris").ready), (Some(good), 2));
}

#[test]
fn what_has_no_room_beside_the_old_revision_waits_for_the_rest_to_take_over() {
    for when_full in [WhenFull::Wait, WhenFull::Recreate] {
        let mut w = world().worker("a", gib(1)).worker("b", gib(1)).resident("iris", gib(1));
        w.change("iris", |spec| spec.rollout.when_full = when_full);
        w.settle();
        let (old, serves) = (w.revision("iris"), w.placed("iris"));
        update_and_scale(&mut w, "2", 2);
        let planned = w.plan();
        let new = w.revision("iris");
        assert_eq!((on(&w, &old), on(&w, &new).len()), (serves.clone(), 1), "{planned:#?}");
        assert_eq!(w.answers("iris"), serves);
        w.settle();
        assert_eq!((on(&w, &old).len(), w.status("iris").ready), (0, 2));
    }
}

#[test]
fn a_region_that_an_update_adds_gets_the_new_revision() {
    let mut w = world().worker_in("asia1", gib(4), "asia", "1").worker_in("eu1", gib(4), "eu", "1").worker_in(
        "us1",
        gib(4),
        "us",
        "1",
    );
    let regions = |w: &mut Fixture, version: &str, regions: &[&str]| {
        let one = Replicas { min: 1, max: 1 };
        let each: std::collections::BTreeMap<_, _> = regions.iter().map(|region| ((*region).to_owned(), one)).collect();
        let all = u32::try_from(each.len()).expect("a few");
        w.change("iris", |spec| {
            spec.model.uri = format!("file:///models/iris/{version}").into();
            spec.memory = Some(gib(1));
            (spec.regions, spec.replicas) = (each, Replicas { min: all, max: all });
        });
    };
    regions(&mut w, "1", &["eu"]);
    w.settle();
    // Before the one that it is in by name, after it, and instead of it.
    for (version, wanted) in [("2", &["asia", "eu", "us"][..]), ("3", &["asia", "us"]), ("4", &["eu"])] {
        let (old, held) = (w.revision("iris"), w.placed("iris"));
        regions(&mut w, version, wanted);
        let planned = w.plan();
        assert!(told_to_load(&planned, &old).is_empty(), "{version}: {planned:#?}");
        assert_eq!(told_to_load(&planned, &w.revision("iris")).len(), wanted.len(), "{version}: {planned:#?}");
        assert!(on(&w, &old).iter().all(|worker| held.contains(worker)) && !w.answers("iris").is_empty());
        w.settle();
        assert_eq!(w.status("iris").ready as usize, wanted.len(), "{version}");
    }
}

#[test]
fn a_stored_rollout_that_does_not_say_how_many_copies_it_began_with_goes_on() {
    let (from, to) = (deployment("iris").revision_id(), deployment("rose").revision_id());
    let stored = format!(r#"{{"state":"surging","from":"{from}","to":"{to}","since":7}}"#);
    let rollout: Rollout = serde_json::from_str(&stored).expect("a rollout");
    assert!(matches!(rollout, Rollout::Surging { copies: u32::MAX, .. }), "{rollout:?}");
}

#[test]
fn an_update_has_to_answer_what_its_predecessor_answers() {
    let warmup = |planned: &Planned| {
        let change = planned.assignments.values().next().expect("an assignment");
        change.set[0].serving.warmup.clone()
    };
    let mut w = world().worker("a", gib(4)).resident("iris", gib(1));
    assert_eq!(warmup(&w.plan()), Warmup::Generated, "the first one need not");
    w.load_all();
    w.settle();
    w.update("iris", "2");
    assert_eq!(warmup(&w.plan()), Warmup::Required);
    w.load_all();
    let planned = w.plan();
    let change = planned.assignments.values().next().expect("an assignment");
    assert_eq!((change.set.len(), change.unset.len()), (0, 1), "that its trial is over is no news");
}

#[test]
fn what_proved_nothing_itself_asks_its_successor_for_no_proof() {
    let mut w = world().worker("a", gib(4)).resident("iris", gib(1));
    w.settle();
    let revision = w.revision("iris");
    let mut replica = ready(gib(1), digest_of(&revision), w.now);
    if let Residency::Ready(ready) = &mut replica {
        Arc::make_mut(ready).unvalidated = Some("the generated request was refused".to_owned());
    }
    w.report("a", false, vec![(revision, Some(replica))]);
    w.advance();
    let status = w.status("iris");
    let condition = status.conditions.iter().find(|condition| condition.kind == "Validated").expect("it says so");
    assert_eq!((status.phase, condition.reason.as_str()), (Phase::Available, "Inconclusive"));
    w.update("iris", "2");
    let planned = w.plan();
    let change = planned.assignments.values().next().expect("an assignment");
    assert_eq!(change.set[0].serving.warmup, Warmup::Generated);
}
