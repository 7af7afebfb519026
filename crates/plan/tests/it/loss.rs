//! Workers that cannot be reached: one, for a while, many at once, and those that come back.

use std::time::Duration;

use berth_plan::{
    Policy,
    fixture::{Fixture, gib, name, worker, world, world_with},
    report::{WorkerVerdict, explain},
};
use berth_spec::{Replicas, routes::OnMiss};

const SECOND: Duration = Duration::from_secs(1);

/// Workers `w0`…, each of 8 GiB.
fn workers(count: usize) -> Fixture {
    (0..count).fold(world(), |w, i| w.worker(&format!("w{i}"), gib(8)))
}

fn with_two(w: Fixture, called: &str) -> Fixture {
    w.deploy(called, |spec| {
        spec.memory = Some(gib(1));
        spec.replicas = Replicas { min: 2, max: 2 };
    })
}

#[test]
fn a_detached_worker_is_routed_to_and_gets_nothing_new() {
    let mut w = workers(1).resident("iris", gib(1));
    w.settle();
    w.detach("w0");
    let mut w = w.resident("wine", gib(1));
    let planned = w.plan();
    assert!(planned.routes.iter().all(|route| route.deployment.as_str() == "wine"), "{:#?}", planned.routes);
    assert_eq!(w.answers("iris"), ["w0"]);
    assert!(w.placed("wine").is_empty());
    w.attach("w0");
    w.settle();
    assert_eq!((w.answers("iris"), w.answers("wine")), (vec!["w0".to_owned()], vec!["w0".to_owned()]));
}

#[test]
fn what_is_detached_for_too_long_gets_successors_and_answers_until_they_do() {
    let mut w = workers(2).resident("iris", gib(1));
    w.settle();
    let first = w.placed("iris");
    w.detach(&first[0]);
    w.run(Policy::default().detached_grace - SECOND);
    assert_eq!(w.placed("iris"), first);
    w.after(SECOND);
    w.advance();
    assert_eq!(w.placed("iris").len(), 2, "a successor is on its way");
    assert_eq!(w.answers("iris"), first, "and until then it answers");
    w.settle();
    assert_ne!(w.placed("iris"), first);
    assert_eq!(w.answers("iris"), w.placed("iris"));
}

#[test]
fn what_nothing_answers_for_is_placed_anew_at_once_the_rest_after_a_grace() {
    let mut w = with_two(workers(3).resident("one", gib(1)), "two");
    w.settle();
    let (one, two) = (w.placed("one"), w.placed("two"));
    let mut lone = w.clone();
    lone.lose(&one[0]);
    lone.advance();
    assert_ne!(lone.placed("one"), one, "an outage does not wait");
    w.lose(&two[0]);
    w.advance();
    assert_eq!(w.placed("two"), two);
    let told = explain(&w.world, &name("two"), w.now).expect("a deployment");
    assert!(told.summary.contains("its replica counts as lost unless it is back soon"), "{}", told.summary);
    let there = told.workers.iter().find(|view| view.worker.as_str() == two[0]).expect("it is known");
    let unknown = Some("Unknown".to_owned());
    assert!(matches!(&there.verdict, WorkerVerdict::Holds { residency, .. } if *residency == unknown), "{there:?}");
    w.run(Policy::default().lost_grace - SECOND);
    assert_eq!(w.placed("two"), two);
    w.run(SECOND);
    assert!(!w.placed("two").contains(&two[0]));
    assert_eq!(w.answers("two").len(), 2);
}

#[test]
fn a_worker_that_returns_within_the_grace_keeps_what_was_not_moved() {
    let mut w = with_two(workers(3), "two");
    w.settle();
    let two = w.placed("two");
    w.lose(&two[0]);
    w.run(Duration::from_secs(5));
    w.restart(&two[0]);
    w.settle();
    assert_eq!(w.placed("two"), two, "it was waited for");
    assert_eq!(w.answers("two").len(), 2);
}

#[test]
fn what_was_moved_is_not_moved_back_but_taken_back_while_nothing_else_answers() {
    let mut w = workers(2).resident("iris", gib(1));
    w.settle();
    let first = w.placed("iris");
    w.lose(&first[0]);
    w.advance();
    assert_ne!(w.placed("iris"), first);
    let mut late = w.clone();
    w.attach(&first[0]);
    w.advance();
    assert_eq!(w.placed("iris"), first, "what loads elsewhere is not waited for");
    assert_eq!(w.answers("iris"), first);
    late.settle();
    let second = late.placed("iris");
    late.attach(&first[0]);
    late.settle();
    assert_eq!(late.placed("iris"), second);
}

#[test]
fn the_record_of_a_lost_replica_stays_until_it_has_a_place_elsewhere() {
    let mut w = workers(2).resident("big", gib(8)).resident("other", gib(6));
    w.settle();
    let big = w.placed("big");
    w.lose(&big[0]);
    w.run(Duration::from_secs(600));
    assert_eq!(w.placed("big"), big, "nobody else has room");
    assert_eq!(w.status("big").conditions[0].reason, "NoCapacity");
    w.attach(&big[0]);
    w.settle();
    assert_eq!(w.answers("big"), big, "and it need not load again");
}

/// Ten workers with a resident each, six of which are lost.
fn mass_loss() -> Fixture {
    let mut w = workers(10);
    for i in 0..10 {
        w = w.resident(&format!("m{i}"), gib(1));
        w.settle();
    }
    for i in 0..10 {
        w = w.on_demand(&format!("d{i}"), gib(1));
        w.demand(&format!("d{i}"), 1);
        w.settle();
        w.demand(&format!("d{i}"), 0);
    }
    w.settle();
    for i in 0..6 {
        w.lose(&format!("w{i}"));
    }
    w
}

#[test]
fn a_mass_loss_holds_all_but_what_requests_wait_for() {
    let mut w = mass_loss();
    let before: Vec<_> = (0..10).map(|i| w.placed(&format!("m{i}"))).collect();
    let planned = w.plan();
    assert!(w.was_told("MassLoss"), "{:?}", w.told);
    assert!(planned.assignments.is_empty(), "{:#?}", planned.assignments);
    assert_eq!((planned.readiness.expected, planned.readiness.ready), (10, 4));
    let loss = w.world.mass_loss(w.now).expect("it is held");
    assert_eq!((loss.lost, loss.known), (6, 10));
    let m = (0..10).find(|i| w.answers(&format!("m{i}")).is_empty()).expect("a lost one");
    let said = w.status(&format!("m{m}")).conditions.remove(0);
    assert!(said.reason == "MassLoss" && said.message.contains("6 of 10 workers"), "{said:?}");
    // Somebody asks.
    let asked = (0..10).find(|i| w.answers(&format!("d{i}")).is_empty()).expect("a lost one");
    w.demand(&format!("d{asked}"), 1);
    let sent = w.plan().assignments;
    assert_eq!(sent.values().filter(|change| !change.set.is_empty()).count(), 1, "{sent:#?}");
    w.settle();
    assert_eq!(w.answers(&format!("d{asked}")).len(), 1);
    w.demand(&format!("d{asked}"), 0);
    w.run(Policy::default().mass_loss_hold - SECOND);
    assert_eq!((0..10).map(|i| w.placed(&format!("m{i}"))).collect::<Vec<_>>(), before);
    w.run(SECOND);
    assert!(w.was_told("MassLossOver"));
    assert!((0..10).all(|i| w.answers(&format!("m{i}")).len() == 1));
}

#[test]
fn workers_that_return_in_time_end_a_mass_loss_and_nothing_has_moved() {
    let mut w = mass_loss();
    let before: Vec<_> = (0..10).map(|i| w.placed(&format!("m{i}"))).collect();
    w.advance();
    w.run(Duration::from_secs(10));
    for i in 0..5 {
        w.attach(&format!("w{i}"));
    }
    w.settle();
    assert_eq!(w.world.mass_loss(w.now), None);
    let after: Vec<_> = (0..10).map(|i| w.placed(&format!("m{i}"))).collect();
    let moved = before.iter().zip(&after).filter(|(before, after)| before != after).count();
    assert_eq!(moved, 1, "only that of the one that is still lost: {before:?} {after:?}");
}

#[test]
fn workers_lost_within_a_minute_count_together_and_are_held_together() {
    let mut w = workers(5);
    for i in 0..5 {
        w = with_two(w, &format!("m{i}"));
    }
    w.settle();
    for (i, held) in [(0, false), (1, false), (2, true), (3, true)] {
        w.lose(&format!("w{i}"));
        w.advance();
        assert_eq!(w.world.mass_loss(w.now).is_some(), held, "{i}");
        w.run(SECOND * 3);
    }
    let all = w.world.mass_loss(w.now).expect("still held");
    assert_eq!((all.lost, all.known), (4, 5));
    for i in [0, 3] {
        w.attach(&format!("w{i}"));
        w.settle();
    }
    assert_eq!(w.world.mass_loss(w.now), None, "two of five is not many");
}

#[test]
fn a_new_leader_holds_when_most_workers_do_not_come() {
    let mut before = (0..10).fold(workers(4), |w, i| w.resident(&format!("m{i}"), gib(1)));
    before.settle();
    let mut after = world();
    after.now = before.now;
    for i in 0..10 {
        let called = name(&format!("m{i}"));
        after.world.set_deployment(before.world.deployment(&called).expect("known").clone());
        after.world.set_record(called.clone(), before.world.record(&called).cloned());
    }
    let tracked = before.world.worker(&berth_plan::fixture::worker_id("w0")).expect("a worker");
    after.world.set_worker(tracked.info.clone().expect("known"));
    let held = tracked.inventory.iter().map(|(id, residency)| (id.clone(), Some(residency.clone()))).collect();
    after.report("w0", true, held);
    let placed: Vec<_> = (0..10).map(|i| before.placed(&format!("m{i}"))).collect();
    after.advance();
    after.run(Policy::default().mass_loss_hold - SECOND);
    assert_eq!((0..10).map(|i| after.placed(&format!("m{i}"))).collect::<Vec<_>>(), placed);
    after.run(SECOND * 2);
    assert_eq!((0..10).filter(|i| after.placed(&format!("m{i}")) == ["w0"]).count(), 8, "as many as fit");
}

#[test]
fn losses_one_after_the_other_are_no_mass_loss() {
    let mut w = workers(4).resident("iris", gib(1));
    w.settle();
    for i in 0..3 {
        w.lose(&format!("w{i}"));
        w.run(Duration::from_secs(90));
    }
    assert!(!w.was_told("MassLoss"));
    assert_eq!(w.answers("iris"), ["w3"]);
}

#[test]
fn two_of_two_is_a_mass_loss_one_of_one_is_not() {
    let mut w = workers(2);
    w.advance();
    w.lose("w0");
    assert_eq!(w.world.mass_loss(w.now), None);
    w.lose("w1");
    assert!(w.world.mass_loss(w.now).is_some());
}

#[test]
fn many_replicas_are_placed_anew_in_waves_what_matters_most_first() {
    let policy = Policy { wave: 2, min_residence: Duration::ZERO, ..Policy::default() };
    let mut w = world_with(policy.clone()).worker("old", gib(20));
    for i in 0..6 {
        w = w.resident(&format!("m{i}"), gib(1));
        w.change(&format!("m{i}"), |spec| spec.priority = 50 + i);
    }
    w.settle();
    w = w.worker("new", gib(20));
    w.settle();
    w.lose("old");
    let moved = |w: &Fixture| (0..6).filter(|i| w.placed(&format!("m{i}")) == ["new"]).collect::<Vec<_>>();
    w.advance();
    assert_eq!(moved(&w), [4, 5]);
    w.run(policy.wave_interval);
    assert_eq!(moved(&w), [2, 3, 4, 5]);
    w.attach("old");
    w.run(policy.wave_interval * 3);
    assert_eq!(moved(&w), [2, 3, 4, 5], "those of the last wave found their worker back");
    assert!((0..6).all(|i| w.answers(&format!("m{i}")).len() == 1));
}

#[test]
fn a_worker_that_is_back_gets_little_at_a_time() {
    let mut w = workers(1);
    w.settle();
    w.lose("w0");
    for i in 0..20 {
        w = w.deploy(&format!("m{i}"), |spec| spec.memory = Some(berth_spec::ByteSize::mib(64)));
    }
    w.advance();
    w.restart("w0");
    w.advance();
    let placed = |w: &Fixture| (0..20).filter(|i| !w.placed(&format!("m{i}")).is_empty()).count();
    let at_once = Policy::default().recovering_loads as usize;
    assert_eq!(placed(&w), at_once);
    w.load_all();
    w.advance();
    assert_eq!(placed(&w), 2 * at_once);
    let mut idle = w.clone();
    idle.after(Policy::default().recovering);
    idle.advance();
    assert_eq!(placed(&idle), 20, "it has recovered");
    w.settle();
    assert_eq!(placed(&w), 20);
}

#[test]
fn an_on_demand_model_that_nobody_used_for_an_hour_goes_with_its_worker() {
    for (minutes, moved) in [(59, 1), (61, 0)] {
        let mut w = workers(2).on_demand("iris", gib(1));
        w.demand("iris", 1);
        w.settle();
        w.demand("iris", 0);
        w.settle();
        w.after(Duration::from_secs(60 * minutes));
        let on = w.placed("iris");
        w.lose(&on[0]);
        w.run(Duration::from_secs(30));
        assert_eq!(w.answers("iris").len(), moved, "{minutes} minutes");
        assert_eq!(w.placed("iris").len(), moved, "{minutes} minutes");
    }
}

#[test]
fn requests_wait_for_what_is_lost_rather_than_being_refused() {
    let mut w = workers(1).resident("iris", gib(1));
    w.settle();
    w.lose("w0");
    let planned = w.plan();
    let route = planned.routes.iter().find(|route| route.deployment == name("iris")).expect("a route");
    assert_eq!(route.on_miss, OnMiss::Park);
}

#[test]
fn a_crowd_without_a_place_is_tried_once_a_second_and_holds_up_nobody() {
    let mut w = workers(2);
    for i in 0..316 {
        w = w.deploy(&format!("m{i:03}"), |spec| spec.memory = Some(gib(1)));
    }
    w.settle();
    let placed = |w: &Fixture| (0..316).filter(|i| !w.placed(&format!("m{i:03}")).is_empty()).count();
    assert_eq!(placed(&w), 16);
    let mut w = w.deploy("vip", |spec| {
        spec.memory = Some(gib(1));
        spec.priority = 90;
    });
    w.advance();
    assert_eq!((w.placed("vip").len(), placed(&w)), (1, 15));
    assert!(w.status("m300").conditions[0].reason == "NoCapacity");
    let mut w = w.worker("more", gib(8));
    w.advance();
    w.run(SECOND);
    assert_eq!(placed(&w), 23);
}

/// Three workers under a new controller: all are seen by the members, and all but the one that holds `iris` have said what
/// they hold. Gives that one.
fn all_but_one_report() -> (Fixture, String) {
    let mut w = with_two(workers(3).resident("iris", gib(1)), "two");
    w.settle();
    let (silent, two) = (w.placed("iris").remove(0), w.placed("two"));
    w.take_over();
    for called in ["w0", "w1", "w2"] {
        w.assume(called);
        let held: &[&str] = if two.iter().any(|on| on == called) { &["two"] } else { &[] };
        if called != silent {
            w.first_word(worker(called, gib(8)), held);
        }
    }
    (w, silent)
}

#[test]
fn who_is_late_to_a_new_controller_is_routed_to_and_nothing_takes_its_place() {
    let (mut w, silent) = all_but_one_report();
    let (iris, two) = (w.placed("iris"), w.placed("two"));
    let first = w.plan();
    assert!(!first.decided() && first.readiness.ready == 2, "{first:#?}");
    assert_eq!((w.answers("iris"), w.answers("two")), (vec![silent.clone()], two.clone()));
    let mut w = w.resident("wine", gib(1));
    w.demand("iris", 3);
    w.run(Policy::default().assumed_for - SECOND);
    assert_eq!((w.placed("iris"), w.placed("two")), (iris, two), "nor for requests that wait");
    assert_ne!(w.placed("wine"), [silent.as_str()], "it gets nothing new");
    assert_eq!(w.answers("iris"), [silent.as_str()]);
    w.after(SECOND);
    w.assume(&silent);
    w.advance();
    assert!(w.answers("iris").is_empty(), "and not for ever, whatever the members say");
    w.settle();
    assert_ne!(w.answers("iris"), [silent.as_str()]);
    assert_eq!(w.answers("iris").len(), 1);
}

#[test]
fn what_a_late_worker_says_counts_from_then() {
    let (mut w, silent) = all_but_one_report();
    w.advance();
    let mut lost = w.clone();
    w.first_word(worker(&silent, gib(8)), &[]);
    let planned = w.plan();
    assert!(planned.routes.iter().any(|route| route.deployment.as_str() == "iris"), "{:#?}", planned.routes);
    assert!(w.answers("iris").is_empty(), "it does not hold it");
    lost.lose(&silent);
    lost.advance();
    assert!(lost.answers("iris").is_empty());
    assert_ne!(lost.placed("iris"), [silent.as_str()], "nothing else answers");
}

#[test]
fn many_that_stay_silent_are_a_loss_of_many() {
    let mut w = workers(4);
    for i in 0..4 {
        w = w.resident(&format!("m{i}"), gib(5));
    }
    w.settle();
    w.take_over();
    ["w0", "w1", "w2", "w3"].iter().for_each(|called| w.assume(called));
    w.first_word(worker("w0", gib(8)), &[]);
    w.advance();
    assert!(w.world.mass_loss(w.now).is_none(), "the members see them");
    w.run(Policy::default().assumed_for);
    assert_eq!(w.world.mass_loss(w.now).map(|loss| loss.lost), Some(3));
    assert!(w.was_told("MassLoss"));
}
