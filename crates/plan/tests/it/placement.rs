//! Choice of a worker, and the reasons against the others.

use berth_plan::{
    Rejection, Scope, TypeRules,
    fixture::{Fixture, digest_of, gib, name, ready, worker, worker_id, world},
    report::{WorkerVerdict, explain},
};
use berth_spec::{Replicas, Residency, Time, WorkerInfo, deployment::Selector, status::Phase};

fn verdict(w: &Fixture, called: &str, on: &str) -> WorkerVerdict {
    let explained = explain(&w.world, &name(called), w.now).expect("a deployment");
    explained.workers.into_iter().find(|view| view.worker == worker_id(on)).expect("a worker").verdict
}

#[test]
fn the_emptiest_worker_is_chosen_and_replicas_spread() {
    let mut w = world().worker("a", gib(4)).worker("b", gib(8)).resident("x", gib(3)).resident("y", gib(2));
    w.settle();
    assert_eq!((w.placed("x"), w.placed("y")), (vec!["b".to_owned()], vec!["b".to_owned()]));
    w.change("z", |spec| {
        spec.memory = Some(gib(1));
        spec.replicas = Replicas { min: 2, max: 2 };
    });
    w.settle();
    assert_eq!(w.placed("z"), ["a", "b"]);
}

#[test]
fn labels_are_required_or_preferred() {
    let mut w = world().worker("a", gib(8)).worker("b", gib(4));
    let mut info = worker("b", gib(4));
    info.labels.insert("zone".to_owned(), "x".to_owned());
    w.world.set_worker(info);
    w.change("must", |spec| {
        spec.memory = Some(gib(1));
        spec.selector.required.insert("zone".to_owned(), "x".to_owned());
    });
    w.change("may", |spec| {
        spec.memory = Some(gib(1));
        spec.selector.preferred.insert("zone".to_owned(), "x".to_owned());
    });
    w.change("never", |spec| {
        spec.selector.required.insert("zone".to_owned(), "y".to_owned());
    });
    w.settle();
    assert_eq!((w.placed("must"), w.placed("may")), (vec!["b".to_owned()], vec!["b".to_owned()]));
    assert!(matches!(verdict(&w, "must", "a"), WorkerVerdict::Rejected(Rejection::Label { .. })));
    let status = w.status("never");
    assert_eq!(status.phase, Phase::ScheduleFailed);
    assert!(status.conditions[0].message.contains("lacks the label zone=y"), "{:?}", status.conditions);
}

#[test]
fn labels_that_a_type_requires_may_change_while_models_are_held() {
    let mut w = world().worker("a", gib(8)).worker_with("b", gib(4), |info| {
        info.labels.insert("gpu".to_owned(), "true".to_owned());
    });
    w.change("held", |spec| spec.memory = Some(gib(1)));
    w.change("never", |spec| {
        spec.memory = Some(gib(1));
        spec.model_type = Some("rare".into());
    });
    let selector =
        |label: &str| Selector { required: [(label.to_owned(), "true".to_owned())].into(), ..Selector::default() };
    let rules = |kind: &str, label| TypeRules { types: [(kind.to_owned(), selector(label))].into(), others: None };
    w.world.set_type_rules(rules("rare", "tpu"));
    w.settle();
    assert_eq!((w.placed("held"), w.placed("never").len()), (vec!["a".to_owned()], 0));

    w.world.set_type_rules(TypeRules { others: Some(selector("gpu")), ..rules("rare", "gpu") });
    w.settle();
    assert_eq!((w.placed("held"), w.placed("never")), (vec!["b".to_owned()], vec!["b".to_owned()]));
    w.world.set_type_rules(TypeRules { others: Some(selector("gpu")), ..rules("rare", "gpu") });
    assert!(w.world.due(w.now).is_empty(), "the same again is nothing to plan for");
}

#[test]
fn explanations_carry_numbers() {
    let mut w = world().worker("a", gib(4)).worker("b", gib(2)).on_demand("old", gib(3)).on_demand("big", gib(4));
    w.demand("old", 1);
    w.settle();
    w.demand("old", 0);
    match verdict(&w, "big", "a") {
        WorkerVerdict::Fits { evicts, .. } => assert_eq!(evicts, [w.revision("old")]),
        other => panic!("{other:?}"),
    }
    let rejected = Rejection::Memory {
        need: gib(4),
        free: gib(2),
        evictable: gib(0),
        busy: gib(0),
        again: Time(u64::MAX),
        total: gib(2),
    };
    assert_eq!(verdict(&w, "big", "b"), WorkerVerdict::Rejected(rejected));
    assert!(matches!(verdict(&w, "old", "a"), WorkerVerdict::Holds { residency: Some(_), .. }));
    w.world.set_cordon(&worker_id("a"), berth_spec::Cordon::Cordoned);
    assert_eq!(verdict(&w, "big", "a"), WorkerVerdict::Rejected(Rejection::Cordoned));
}

#[test]
fn without_workers_it_waits_and_says_so() {
    let mut w = world().resident("iris", gib(1));
    w.advance();
    assert_eq!(w.status("iris").phase, Phase::ScheduleFailed);
    assert!(w.status("iris").conditions[0].message.contains("no worker can be reached"));
    let mut w = w.worker("a", gib(4));
    w.settle();
    assert_eq!(w.status("iris").phase, Phase::Available);
}

#[test]
fn more_replicas_than_workers_serve_with_what_there_is() {
    let mut w = world().worker("a", gib(8)).resident("iris", gib(1));
    w.change("iris", |spec| spec.replicas = Replicas { min: 2, max: 2 });
    w.settle();
    let status = w.status("iris");
    assert_eq!((status.phase, status.ready, status.desired), (Phase::Degraded, 1, 2));
    w.update("iris", "2");
    w.settle();
    assert_eq!(w.status("iris").serving, Some(w.revision("iris")), "an update goes through all the same");
}

#[test]
fn what_a_worker_still_holds_is_taken_back() {
    let mut w = world().worker("a", gib(4)).worker("b", gib(4)).on_demand("iris", gib(1));
    let iris = w.revision("iris");
    let held = berth_plan::fixture::ready(gib(1), berth_plan::fixture::digest_of(&iris), w.now);
    w.report("b", false, vec![(iris, Some(held))]);
    w.demand("iris", 1);
    w.advance();
    assert_eq!(w.placed("iris"), ["b"]);
    assert!(!w.plan_for(&Scope::All).decided());
}

#[test]
fn what_hinders_says_what_to_do() {
    let mut w = world().worker("a", gib(4));
    w.change("two", |spec| spec.replicas = Replicas { min: 2, max: 2 });
    w.settle();
    let status = w.status("two");
    assert_eq!((status.phase, status.ready, status.desired), (Phase::Degraded, 1, 2));
    let said = explain(&w.world, &name("two"), w.now).expect("a deployment").summary;
    assert!(said.contains("at most one replica of a deployment, and there is 1 worker"), "{said}");

    let mut w = world();
    w.world.set_worker(WorkerInfo { runtimes: Vec::new(), ..worker("bare", gib(4)) });
    w.change("iris", |_| {});
    w.settle();
    assert_eq!(w.status("iris").phase, Phase::ScheduleFailed);
    let said = explain(&w.world, &name("iris"), w.now).expect("a deployment").summary;
    assert!(said.contains(berth_spec::format::ONNX_ENGINE_REMEDY) && said.contains("`berth doctor`"), "{said}");
}

#[test]
fn what_a_queued_replica_waits_for_is_said() {
    let names = ["a", "b", "c", "d", "e"];
    let mut w = names.iter().fold(world().worker("w", gib(8)), |w, called| w.resident(called, gib(1)));
    w.advance();
    let says = |w: &Fixture| w.status("a").replicas[0].waits.clone();
    let hears = |w: &mut Fixture, called: &str, residency: Residency| {
        w.report("w", false, vec![(w.revision(called), Some(residency))]);
    };
    assert_eq!(says(&w), None, "its worker has not said that it is queued");
    for called in names {
        hears(&mut w, called, Residency::Queued);
    }
    assert_eq!(says(&w), None, "nothing is in its way");
    hears(&mut w, "b", Residency::Loading);
    let since = w.now;
    hears(&mut w, "c", Residency::Draining { since, in_flight: 1 });
    let [b, c, d] = ["b", "c", "d"].map(|called| w.revision(called));
    assert_eq!(says(&w), Some(format!("waits for its turn; on its worker {b} is being loaded, {c} leaves")));
    hears(&mut w, "d", Residency::Fetching { done: gib(0), total: None });
    hears(&mut w, "e", Residency::Validating);
    let said =
        format!("waits for its turn; on its worker {b} is being loaded, {c} leaves, {d} is being fetched, and 1 more");
    assert_eq!(says(&w), Some(said));
    hears(&mut w, "a", Residency::Loading);
    assert_eq!(says(&w), None);
    hears(&mut w, "a", Residency::Queued);
    w.lose("w");
    assert_eq!(says(&w), None, "nobody knows what it does");
}

#[test]
fn the_work_of_a_worker_is_found_among_all_its_models() {
    let names: Vec<String> = (0..1_100).map(|number| format!("m{number:04}")).collect();
    let mut w = names.iter().fold(world().worker("w", gib(2_000)), |w, called| w.resident(called, gib(1)));
    w.advance();
    let there = names.iter().map(|called| {
        let revision = w.revision(called);
        let residency = match called.as_str() {
            "m1098" => Residency::Loading,
            "m1099" => Residency::Queued,
            _ => ready(gib(1), digest_of(&revision), w.now),
        };
        (revision, Some(residency))
    });
    let there: Vec<_> = there.collect();
    w.report("w", true, there);
    let loading = w.revision("m1098");
    let says = |w: &Fixture| w.status("m1099").replicas[0].waits.clone();
    assert_eq!(says(&w), Some(format!("waits for its turn; on its worker {loading} is being loaded")));
    w.report("w", false, vec![(loading.clone(), Some(ready(gib(1), digest_of(&loading), w.now)))]);
    assert_eq!(says(&w), None, "it is about to begin");
}
