//! Workers that leave: told to by people (drain), or by themselves (SIGTERM).

use std::time::Duration;

use berth_plan::fixture::{Fixture, gib, name, world};
use berth_spec::{Cordon, Replicas};

fn two() -> Fixture {
    world().worker("a", gib(8)).worker("b", gib(8))
}

/// A resident on `a`, which then drains.
fn draining() -> Fixture {
    let mut w = world().worker("a", gib(8)).resident("iris", gib(1));
    w.settle();
    w = w.worker("b", gib(8));
    w.settle();
    w.cordon("a", Cordon::Draining);
    w
}

#[test]
fn the_successor_is_ready_before_the_old_one_goes() {
    let mut w = draining();
    w.advance();
    assert_eq!((w.placed("iris"), w.answers("iris")), (vec!["a".to_owned(), "b".to_owned()], vec!["a".to_owned()]));
    let progress = w.leaving("a");
    assert_eq!((progress.left, progress.waiting_for.len(), progress.blocked.len()), (1, 1, 0));
    w.load_all();
    w.advance();
    assert_eq!((w.placed("iris"), w.answers("iris")), (vec!["b".to_owned()], vec!["b".to_owned()]));
    assert_eq!((w.leaving("a").left, w.leaving("a").draining), (0, 1));
    w.load_all();
    assert!(w.leaving("a").is_done());
    assert!(w.was_told("HandedOver"));
}

#[test]
fn a_worker_that_leaves_by_itself_is_drained_the_same() {
    let mut w = two().resident("iris", gib(1));
    w.settle();
    let on = w.placed("iris");
    w.leave(&on[0]);
    w.advance();
    assert_eq!((w.placed("iris").len(), w.answers("iris")), (2, on.clone()));
    w.settle();
    assert_ne!(w.placed("iris"), on);
}

/// Whoever leaves is none of those that could take it.
#[test]
fn a_drain_without_another_worker_counts_those_that_stay() {
    let mut w = two().deploy("iris", |spec| spec.replicas = Replicas { min: 2, max: 2 });
    w.settle();
    assert_eq!(w.answers("iris").len(), 2);
    w.cordon("a", Cordon::Draining);
    w.settle();
    let blocked = w.leaving("a").blocked;
    let why = "and there is 1 worker besides 1 that leave or are lost: add a worker or lower replicas";
    assert!(blocked.len() == 1 && blocked[0].1.ends_with(why), "{blocked:?}");
}

#[test]
fn a_drain_that_is_taken_back_keeps_what_is_there() {
    let mut w = draining();
    w.advance();
    w.cordon("a", Cordon::Open);
    w.settle();
    assert_eq!(w.answers("iris"), ["a"], "it answers, the other one is only loading");
}

#[test]
fn a_cordoned_worker_keeps_what_it_has() {
    let mut w = two().resident("iris", gib(1));
    w.settle();
    let on = w.placed("iris");
    w.cordon(&on[0], Cordon::Cordoned);
    w.settle();
    assert_eq!(w.placed("iris"), on);
    assert_eq!(w.world.leaving(&berth_plan::fixture::worker_id(&on[0]), w.now), None);
}

#[test]
fn what_nobody_else_has_room_for_stays_and_says_why() {
    let mut w = two().resident("big", gib(8)).resident("other", gib(6));
    w.settle();
    let on = w.placed("big");
    w.cordon(&on[0], Cordon::Draining);
    w.settle();
    assert_eq!((w.placed("big"), w.answers("big")), (on.clone(), on.clone()));
    let progress = w.leaving(&on[0]);
    assert_eq!(progress.blocked.len(), 1, "{progress:?}");
    assert!(progress.blocked[0].1.contains("needs 8GiB"), "{progress:?}");
    assert!(w.was_told("LeaveWaits"));
    assert_eq!(w.status("big").conditions[1].reason, "LeaveWaits");
    assert_eq!(w.status("big").conditions[0].reason, "Ready", "it answers all the same");
    let mut w = w.worker("c", gib(8));
    w.settle();
    assert_eq!(w.answers("big"), ["c"]);
}

#[test]
fn an_on_demand_model_moves_if_it_was_used_and_leaves_if_not() {
    for (minutes, in_flight, room, on_b) in
        [(5, 0, true, true), (61, 0, true, false), (61, 1, true, true), (5, 0, false, false)]
    {
        let mut w = world().worker("a", gib(8)).on_demand("iris", gib(2));
        w.demand("iris", 1);
        w.settle();
        w.demand("iris", 0);
        w.settle();
        w.after(Duration::from_secs(60 * minutes));
        let mut w = w.worker("b", gib(8)).deploy("filler", |spec| {
            spec.memory = Some(gib(if room { 1 } else { 7 }));
            spec.selector.required = [("only".to_owned(), "b".to_owned())].into();
        });
        let mut b = berth_plan::fixture::worker("b", gib(8));
        b.labels = [("only".to_owned(), "b".to_owned())].into();
        w.world.set_worker(b);
        w.settle();
        let last_used = w.status("iris").last_used.expect("it was used");
        let demand = berth_spec::Demand { deployment: name("iris"), waiting: 0, in_flight, last_used, requests: 0 };
        w.world.demand(berth_spec::GatewayId(1), &demand, w.now);
        w.cordon("a", Cordon::Draining);
        w.settle();
        let expected = if on_b { vec!["b".to_owned()] } else { Vec::new() };
        assert_eq!(w.placed("iris"), expected, "{minutes} minutes, {in_flight} in flight, room: {room}");
        assert_eq!(w.leaving("a").left, 0);
    }
}

/// Callers of ModelMesh's API have models loaded whose last use was long ago: such a one was dropped with its worker in the moment
/// before its first call.
#[test]
fn an_on_demand_model_that_was_just_loaded_moves_though_its_last_use_was_long_ago() {
    let drained: fn(&mut Fixture) = |w| w.cordon("a", Cordon::Draining);
    let lost: fn(&mut Fixture) = |w| w.lose("a");
    for (goes, minutes, moves) in [(drained, 5, true), (drained, 61, false), (lost, 5, true), (lost, 61, false)] {
        let mut w = world().worker("a", gib(8)).on_demand("iris", gib(2));
        w.after(Duration::from_secs(7_200));
        for waiting in [1, 0] {
            let (deployment, last_used) = (name("iris"), berth_spec::Time(1));
            let demand = berth_spec::Demand { deployment, waiting, in_flight: 0, last_used, requests: 0 };
            w.world.demand(berth_spec::GatewayId(1), &demand, w.now);
            w.settle();
        }
        w.after(Duration::from_secs(60 * minutes));
        let mut w = w.worker("b", gib(8));
        goes(&mut w);
        w.run(Duration::from_secs(30));
        let expected = if moves { vec!["b".to_owned()] } else { Vec::new() };
        assert_eq!((w.placed("iris"), w.was_told("LetGo")), (expected, !moves), "{minutes} minutes");
    }
}

#[test]
fn what_is_in_use_and_has_no_room_elsewhere_goes_on_answering() {
    let mut w = two().resident("other", gib(7));
    w.settle();
    let full = w.placed("other");
    let mut w = w.on_demand("iris", gib(2));
    w.demand("iris", 1);
    w.settle();
    w.used(1, "iris", 0, 3, 3);
    let on = w.placed("iris");
    assert_ne!(on, full);
    w.cordon(&on[0], Cordon::Draining);
    w.settle();
    assert_eq!(w.answers("iris"), on);
    w.used(1, "iris", 0, 0, 0);
    w.cordon(&on[0], Cordon::Draining);
    w.settle();
    assert!(w.placed("iris").is_empty(), "now nobody would notice");
}

#[test]
fn the_hot_ones_go_first() {
    // b has room for one of them only.
    let mut w = world().worker("a", gib(8));
    for (at, called) in ["cold", "hot", "warm"].into_iter().enumerate() {
        w = w.on_demand(called, gib(2));
        w.demand(called, 1);
        w.settle();
        w.demand(called, 0);
        w.after(Duration::from_secs(at as u64));
    }
    w.used(1, "warm", 0, 0, 1);
    w.after(Duration::from_secs(1));
    w.used(1, "hot", 0, 0, 1);
    w.settle();
    let mut w = w.worker("b", gib(3));
    w.settle();
    w.cordon("a", Cordon::Draining);
    w.settle();
    assert_eq!((w.placed("hot"), w.placed("warm").len(), w.placed("cold").len()), (vec!["b".to_owned()], 0, 0));
}

#[test]
fn the_assignment_names_first_what_was_used_last() {
    let mut w = world().worker("a", gib(8));
    for called in ["cold", "hot", "warm"] {
        w = w.on_demand(called, gib(1));
        w.demand(called, 1);
        w.settle();
        w.demand(called, 0);
    }
    for called in ["warm", "hot"] {
        w.after(Duration::from_secs(1));
        w.used(1, called, 0, 0, 1);
    }
    w.settle();
    let mut w = w.worker("b", gib(8));
    w.settle();
    w.cordon("a", Cordon::Draining);
    let planned = w.plan();
    let change = planned.assignments.values().find(|change| !change.set.is_empty()).expect("an assignment");
    let order: Vec<_> = change.set.iter().map(|placed| placed.revision.id.deployment().to_string()).collect();
    assert_eq!(order, ["hot", "warm", "cold"]);
    let whole = w.world.whole_assignment(&berth_plan::fixture::worker_id("b"));
    let order: Vec<_> = whole.set.iter().map(|placed| placed.revision.id.deployment().to_string()).collect();
    assert_eq!(order, ["hot", "warm", "cold"]);
}

#[test]
fn copies_hand_over_one_by_one_and_never_all_leave() {
    let mut w = world().worker("a", gib(8)).worker("b", gib(8)).worker("c", gib(8)).deploy("iris", |spec| {
        spec.memory = Some(gib(1));
        spec.replicas = Replicas { min: 2, max: 2 };
    });
    w.settle();
    for on in w.placed("iris") {
        w.cordon(&on, Cordon::Draining);
    }
    for _ in 0..6 {
        w.advance();
        assert!(w.answers("iris").len() >= 2, "{:?}", w.told);
        w.load_all();
    }
    w.settle();
    // There is only one worker left for two copies: one of the old ones stays.
    assert_eq!(w.answers("iris").len(), 2);
    let mut w = w.worker("d", gib(8));
    w.settle();
    assert_eq!(w.answers("iris"), ["c", "d"]);
}

#[test]
fn a_rolling_restart_of_all_loses_no_answer() {
    let mut w = (0..3).fold(world(), |w, i| w.worker(&format!("w{i}"), gib(8)));
    for i in 0..6 {
        w = w.resident(&format!("m{i}"), gib(1));
    }
    w.settle();
    for i in 0..3 {
        let node = format!("w{i}");
        w.leave(&node);
        for _ in 0..4 {
            w.advance();
            assert!((0..6).all(|m| !w.answers(&format!("m{m}")).is_empty()));
            w.load_all();
        }
        assert!(w.leaving(&node).is_done());
        w.lose(&node);
        w.run(Duration::from_secs(5));
        w.restart(&node);
        w.settle();
        assert!((0..6).all(|m| w.answers(&format!("m{m}")).len() == 1));
    }
    assert!(!w.was_told("MassLoss"));
}
