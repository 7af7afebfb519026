//! From declared to gone.

use std::time::Duration;

use berth_plan::{
    Record, Scope,
    fixture::{Fixture, gib, name, world},
    plan,
    world::EXPLICIT_LOADS,
};
use berth_spec::{Demand, GatewayId, deployment::Spec, routes::OnMiss, status::Phase};

fn on_demand(spec: &mut Spec) {
    spec.replicas.min = 0;
    spec.memory = Some(gib(1));
}

#[test]
fn a_resident_is_placed_loaded_and_available() {
    let mut w = world().worker("a", gib(4)).resident("iris", gib(1));
    let planned = w.plan();
    assert_eq!(planned.assignments.len(), 1);
    assert_eq!((planned.readiness.expected, planned.readiness.ready), (1, 0));
    assert_eq!(w.status("iris").phase, Phase::Progressing);
    w.load_all();
    let planned = w.plan();
    assert_eq!(planned.readiness.ready, 1);
    assert_eq!(planned.routes.len(), 1);
    assert_eq!(planned.routes[0].versions[0].ready.len(), 1);
    assert_eq!(w.status("iris").phase, Phase::Available);
    let again = w.plan_for(&Scope::All);
    assert!(!again.decided() && again.routes.is_empty(), "{again:#?}");
}

#[test]
fn the_use_of_a_replica_is_shown_and_ends_with_it() {
    let mut w = world().worker("a", gib(4)).resident("iris", gib(1)).resident("rose", gib(9));
    w.advance();
    w.load_all();
    w.advance();
    w.counted("a", "iris", 7);
    let usage = |w: &Fixture| w.status("iris").replicas[0].usage.map(|usage| usage.requests);
    assert_eq!(usage(&w), Some(7));
    w.counted("a", "rose", 1);
    assert_eq!(usage(&w), Some(7), "of what is not there nothing is kept");
    let held = w.status("iris").replicas[0].residency.clone();
    let revision = w.revision("iris");
    w.report("a", true, vec![(revision, held)]);
    assert_eq!(usage(&w), None, "a whole report says it again, or it is not so");
}

#[test]
fn an_explicit_load_becomes_urgent_with_the_first_request() {
    let mut w = world().worker("a", gib(4)).on_demand("iris", gib(1));
    let load = Demand { deployment: name("iris"), waiting: 1, in_flight: 0, last_used: w.now, requests: 0 };
    w.world.demand(EXPLICIT_LOADS, &load, w.now);
    let urgent = |planned: &berth_plan::Planned| planned.assignments.values().next().expect("news").set[0].urgent;
    assert!(!urgent(&w.plan()), "it is loaded, after what requests wait for");
    w.demand("iris", 1);
    assert!(urgent(&w.plan()));
    w.demand("iris", 0);
    assert!(w.plan().assignments.is_empty(), "that nobody waits any more is no news");
}

#[test]
fn who_waits_for_what_is_on_its_way_needs_no_further_plan() {
    let mut w = world().worker("a", gib(4)).on_demand("iris", gib(1)).on_demand("huge", gib(9));
    w.demand("iris", 1);
    w.advance();
    w.demand("iris", 2);
    assert!(w.world.due(w.now).is_empty(), "it has a place");
    w.used(2, "iris", 1, 0, 1);
    assert!(!w.world.due(w.now).is_empty(), "another gateway waits, too");
    w.demand("huge", 1);
    w.advance();
    w.demand("huge", 1);
    assert!(!w.world.due(w.now).is_empty(), "what has no place is tried again");
}

#[test]
fn an_on_demand_deployment_is_loaded_by_a_request_and_paged_out_when_idle() {
    let mut w = world().worker("a", gib(4)).deploy("iris", |spec| {
        on_demand(spec);
        spec.idle_after = Some(Duration::from_secs(60));
    });
    let planned = w.plan();
    assert_eq!(planned.routes[0].on_miss, OnMiss::Park);
    assert!(!planned.decided());
    assert_eq!(w.status("iris").phase, Phase::ScaledDown);
    w.demand("iris", 3);
    let planned = w.plan();
    assert!(planned.assignments.values().next().expect("an assignment").set[0].urgent);
    w.load_all();
    w.advance();
    w.demand("iris", 0);
    let planned = w.plan();
    assert_eq!(w.status("iris").phase, Phase::Available);
    assert_eq!(planned.wake_at, Some(w.now + Duration::from_secs(60)));
    w.after(Duration::from_secs(59));
    assert!(!w.plan().decided());
    w.after(Duration::from_secs(1));
    assert!(w.plan().decided());
    assert!(w.placed("iris").is_empty());
    assert!(w.was_told("ScaledToZero"));
    w.load_all();
    w.advance();
    assert!(w.world.record(&name("iris")).is_none(), "cold again");
}

#[test]
fn paging_out_on_request_keeps_it_out_until_somebody_asks() {
    let mut w = world().worker("a", gib(4)).on_demand("iris", gib(1));
    w.demand("iris", 1);
    w.settle();
    w.demand("iris", 0);
    w.world.page_out(&name("iris"), w.now);
    w.settle();
    assert!(w.placed("iris").is_empty());
    w.after(Duration::from_secs(1));
    w.demand("iris", 1);
    w.settle();
    assert_eq!(w.placed("iris"), ["a"]);
}

#[test]
fn a_use_before_the_wish_that_is_told_after_it_does_not_take_the_wish_back() {
    let mut w = world().worker("a", gib(4)).on_demand("iris", gib(1));
    w.demand("iris", 1);
    w.settle();
    w.demand("iris", 0);
    let used = w.now;
    w.after(Duration::from_secs(1));
    w.world.page_out(&name("iris"), w.now);
    let late = Demand { deployment: name("iris"), waiting: 0, in_flight: 0, last_used: used, requests: 1 };
    w.after(Duration::from_millis(500));
    w.world.demand(GatewayId(2), &late, w.now);
    w.settle();
    assert!(w.placed("iris").is_empty());
}

#[test]
fn a_deleted_deployment_is_gone_when_its_last_replica_is() {
    let mut w = world().worker("a", gib(4)).resident("iris", gib(1));
    w.settle();
    w.world.remove_deployment(&name("iris"));
    let planned = w.plan();
    assert!(planned.gone.is_empty(), "it still drains");
    assert_eq!(planned.withdrawn, [name("iris")], "but nobody is sent there any more");
    assert!(w.world.whole_routes(w.now).set.is_empty(), "nor by a gateway that joins now");
    assert!(w.plan().withdrawn.is_empty(), "said once");
    assert_eq!(w.status("iris").phase, Phase::Terminating);
    w.load_all();
    let planned = w.plan();
    assert_eq!(planned.gone, [name("iris")]);
    assert!(w.world.deployment(&name("iris")).is_none());
}

#[test]
fn scaled_to_nothing_answers_nothing() {
    let mut w = world().worker("a", gib(4)).resident("iris", gib(1));
    w.settle();
    w.change("iris", |spec| spec.replicas = berth_spec::Replicas { min: 0, max: 0 });
    let planned = w.plan();
    assert_eq!(planned.routes[0].on_miss, OnMiss::ScaledDown);
    assert_eq!(planned.readiness.expected, 0);
    assert!(w.placed("iris").is_empty());
    assert_eq!(w.status("iris").phase, Phase::ScaledDown);
}

#[test]
fn settings_that_load_nothing_are_sent_without_loading() {
    let mut w = world().worker("a", gib(4)).resident("iris", gib(1));
    w.settle();
    w.change("iris", |spec| spec.batching.max_rows = 32);
    let planned = w.plan();
    let change = planned.assignments.values().next().expect("an assignment");
    assert_eq!((change.set.len(), change.unset.len()), (1, 0));
    assert_eq!(change.set[0].serving.batching.max_rows, 32);
    assert!(planned.records.is_empty());
    w.change("iris", |spec| spec.timeout = Duration::from_secs(1));
    let planned = w.plan();
    assert!(!planned.decided());
    assert_eq!(planned.routes.len(), 1);
}

#[test]
fn a_restart_goes_on_from_the_records() {
    let mut before = world().worker("a", gib(4)).worker("b", gib(4)).resident("iris", gib(1)).resident("wine", gib(1));
    before.settle();
    let mut after = world();
    after.now = before.now;
    for deployment in before.world.deployments() {
        after.world.set_deployment(deployment.clone());
        let record = before.world.record(&deployment.name).cloned();
        let text = serde_json::to_string(&record).expect("a record can be written");
        let read: Option<Record> = serde_json::from_str(&text).expect("and read");
        assert_eq!(read, record);
        after.world.set_record(deployment.name.clone(), read);
    }
    let planned = after.plan();
    assert!(!planned.decided(), "the workers may still be on their way: {planned:#?}");
    let mut after = after.worker("a", gib(4)).worker("b", gib(4));
    assert!(!after.plan().decided());
    after.settle();
    assert_eq!(after.placed("iris"), before.placed("iris"));
    assert_eq!(after.placed("wine"), before.placed("wine"));
    assert!(after.world.generation() >= before.world.generation());
    let whole = after.world.whole_assignment(&berth_plan::fixture::worker_id("a"));
    assert_eq!((whole.base, whole.set.len()), (None, 1));
}

#[test]
fn what_is_not_decided_has_no_number() {
    let mut w = world().worker("a", gib(4)).resident("iris", gib(1));
    w.settle();
    let generation = w.world.generation();
    let planned = plan(&w.world, &Scope::All, w.now);
    assert_eq!(planned.generation, generation);
}

/// A record as the first version wrote it, with a field of a version to come.
#[test]
fn records_of_an_earlier_version_are_read_and_fields_of_a_later_one_ignored() {
    let text = r#"{"generation":7,"rollout":{"state":"stable","revision":"iris@0123456789ab"},
        "replicas":[{"revision":"iris@0123456789ab","worker":"a","claim":1024,"placed":5,"colour":"blue"}],
        "revisions":{"iris@0123456789ab":{"id":"iris@0123456789ab","format":"onnx","uri":"file:///iris","digest":null,
            "version":"1","signature":null,"runtime":{"execution_provider":"cpu","threads":0},"memory":null}},
        "canary":{"weight":10}}"#;
    let record: Record = serde_json::from_str(text).expect("it is read");
    assert_eq!((record.generation.0, record.replicas.len(), record.revisions.len()), (7, 1, 1));
    assert_eq!(record.rollout.serving().map(ToString::to_string).as_deref(), Some("iris@0123456789ab"));
}
