//! Wrong predictions and what a process takes beside its models: the plan makes room, and refuses only what no eviction
//! would help.

use std::time::Duration;

use berth_plan::{
    Policy,
    fixture::{Fixture, digest_of, gib, name, ready, world, world_with},
    report::{self, WorkerVerdict},
};
use berth_spec::{ByteSize, Replicas, Residency, routes::OnMiss};

/// A worker of 10 GiB; `a` to `f` are on demand, nothing is known of their sizes but what was predicted: 2 GiB.
fn predicted() -> Fixture {
    let mut w = world_with(Policy::default()).worker("w", gib(10));
    for called in ["a", "b", "c", "d", "e", "f"] {
        w = w.deploy(called, |spec| {
            spec.memory = None;
            spec.replicas = Replicas { min: 0, max: 1 };
        });
    }
    w
}

fn says(w: &mut Fixture, called: &str, residency: Residency) {
    let revision = w.revision(called);
    w.report("w", false, vec![(revision, Some(residency))]);
}

/// Requests wait for it, its size is predicted, and it is on its way.
fn comes(w: &mut Fixture, called: &str) {
    w.after(Duration::from_millis(10));
    w.demand(called, 1);
    // Its artifact: 130 % of it, and a MiB, are 2 GiB.
    let artifact = ByteSize((gib(2).0 - ByteSize::mib(1).0) * 100 / 130);
    w.advance();
    if !w.placed(called).is_empty() {
        says(w, called, Residency::Fetching { done: ByteSize::ZERO, total: Some(artifact) });
        w.advance();
    }
}

fn loads(w: &mut Fixture, called: &str, memory: ByteSize) {
    let revision = w.revision(called);
    says(w, called, ready(memory, digest_of(&revision), w.now));
    w.demand(called, 0);
}

fn where_they_are(w: &Fixture) -> String {
    ["a", "b", "c", "d", "e", "f"].into_iter().filter(|called| !w.placed(called).is_empty()).collect()
}

fn parks(w: &Fixture, called: &str) -> bool {
    let routes = w.world.whole_routes(w.now).set;
    routes.iter().any(|route| route.deployment.as_str() == called && route.on_miss == OnMiss::Park)
}

#[test]
fn a_model_that_turns_out_larger_has_the_longest_unused_leave_at_once() {
    let mut w = predicted();
    for called in ["a", "b", "c", "d"] {
        comes(&mut w, called);
        loads(&mut w, called, gib(2));
        w.advance();
    }
    w.after(Duration::from_secs(1));
    comes(&mut w, "e");
    assert_eq!(where_they_are(&w), "abcde", "as predicted, they fit");
    loads(&mut w, "e", gib(5));
    w.advance();
    assert_eq!(where_they_are(&w), "cde", "two leave for what it takes beyond that");
    assert!(w.was_told("Evicted"));
}

#[test]
fn what_has_not_begun_to_load_goes_back_rather_than_what_has_just_been_loaded() {
    let mut w = predicted();
    for called in ["a", "b", "c", "d", "e"] {
        comes(&mut w, called);
    }
    assert_eq!(where_they_are(&w), "abcde");
    says(&mut w, "b", Residency::Loading);
    loads(&mut w, "a", gib(5));
    w.advance();
    assert_eq!(where_they_are(&w), "abe", "the room of two that wait is enough");
    for called in ["c", "d", "e"] {
        assert!(parks(&w, called), "{called} waits for room, and is not refused");
    }
    // Once nobody waits for the first any more, the next one has its turn.
    loads(&mut w, "b", gib(5));
    w.advance();
    assert_eq!(where_they_are(&w), "ab", "nor is there room for the last: both have just come");
    w.after(Policy::default().min_residence);
    w.advance();
    assert_eq!(where_they_are(&w).len(), 5 - 1 - 1, "{}", where_they_are(&w));
}

#[test]
fn a_size_that_was_measured_holds_for_every_deployment_of_the_content() {
    let mut w = predicted();
    comes(&mut w, "a");
    loads(&mut w, "a", gib(7));
    w.advance();
    w.after(Duration::from_secs(1));
    let digest = digest_of(&w.revision("a"));
    let deployment = w.world.deployment(&berth_plan::fixture::name("b")).expect("known").as_ref().clone();
    w.world.set_deployment(berth_spec::Deployment { digest: Some(digest), ..deployment }.into());
    w.demand("b", 1);
    w.advance();
    assert_eq!(where_they_are(&w), "b", "the first has to leave for it");
    let claim = w.world.workers().flat_map(|(_, tracked)| tracked.assigned.values()).map(|placed| placed.claim).next();
    assert_eq!(claim, Some(gib(7)));
}

#[test]
fn an_estimate_of_the_worker_counts_for_the_plan_as_it_counts_for_the_worker() {
    let mut w = predicted();
    comes(&mut w, "a");
    let revision = w.revision("a");
    let Residency::Ready(known) = ready(gib(7), digest_of(&revision), w.now) else { panic!("it is ready") };
    let estimate = berth_spec::residency::Ready { measured: false, ..known.as_ref().clone() };
    says(&mut w, "a", Residency::Ready(estimate.into()));
    w.advance();
    let used: ByteSize = w.world.workers().map(|(_, tracked)| tracked.used).sum();
    assert_eq!(used, gib(7));
}

#[test]
fn what_the_process_takes_beside_its_models_is_kept_free() {
    let mut w = world().worker("w", gib(10));
    for called in ["a", "b", "c"] {
        w = w.on_demand(called, gib(3));
        w.after(Duration::from_secs(1));
        w.demand(called, 1);
        w.settle();
        w.demand(called, 0);
    }
    w.overhead("w", gib(1));
    w.settle();
    assert_eq!(where_they_are(&w), "abc", "9 of 10 GiB are claimed");
    w.overhead("w", gib(2));
    w.settle();
    assert_eq!(where_they_are(&w), "bc", "the longest unused leaves for it");
    let explained = report::explain(&w.world, &name("a"), w.now).expect("known");
    let seen = &explained.workers[0];
    assert_eq!((seen.used, seen.overhead), (gib(6), gib(2)), "people see what is kept free");
    assert!(matches!(&seen.verdict, WorkerVerdict::Fits { evicts, .. } if evicts.len() == 1), "{seen:?}");
    w.demand("a", 1);
    w.settle();
    assert_eq!(where_they_are(&w), "ac", "and another one for the next request");
    w.demand("a", 0);
    let mut w = w.on_demand("d", gib(9));
    w.demand("d", 1);
    w.settle();
    assert_eq!(w.placed("d"), ["w"], "what fits into the worker alone is not kept out");
}

#[test]
fn what_is_free_for_a_replica_goes_by_its_size_on_that_worker() {
    let mut w = world().worker("v", gib(10)).worker("w", gib(10)).deploy("a", |spec| {
        spec.memory = None;
        spec.replicas = Replicas { min: 2, max: 2 };
    });
    w.advance();
    let revision = w.revision("a");
    for (worker, memory) in [("v", gib(8)), ("w", gib(2))] {
        let residency = ready(memory, digest_of(&revision), w.now);
        w.report(worker, false, vec![(revision.clone(), Some(residency))]);
        w.overhead(worker, gib(4));
    }
    let explained = report::explain(&w.world, &name("a"), w.now).expect("known");
    let overheads: Vec<ByteSize> = explained.workers.iter().map(|seen| seen.overhead).collect();
    assert_eq!(overheads, [gib(2), gib(4)]);
}

#[test]
fn no_resident_leaves_for_it_and_what_it_kept_out_comes_when_it_shrinks() {
    let mut w = world().worker("w", gib(10)).resident("a", gib(4)).resident("b", gib(4));
    w.settle();
    w.overhead("w", gib(4));
    w.settle();
    assert_eq!(where_they_are(&w), "ab");
    let mut w = w.on_demand("c", gib(1));
    w.demand("c", 1);
    w.settle();
    assert!(w.placed("c").is_empty() && !parks(&w, "c"), "no eviction helps");
    w.demand("c", 0);
    w.settle();
    w.overhead("w", gib(1));
    w.settle();
    assert!(parks(&w, "c"), "there is room now");
}
