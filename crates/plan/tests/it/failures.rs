//! Loads that fail, memory that was guessed wrong, workers that go.

use std::{sync::Arc, time::Duration};

use berth_plan::fixture::{deployment, digest_of, gib, ready, worker_id, world};
use berth_spec::{
    ByteSize, Digest, FailureCategory, Generation, Origin, Replicas, Residency, deployment::WhenFull, routes::OnMiss,
    status::Phase,
};

#[test]
fn a_transient_failure_is_waited_out() {
    let mut w = world().worker("a", gib(4)).worker("b", gib(4)).resident("iris", gib(1));
    w.advance();
    w.fail("iris", "a", FailureCategory::Network, Some(Duration::from_secs(30)));
    assert!(!w.plan().decided());
    let status = w.status("iris");
    assert_eq!((status.phase, status.conditions[0].reason.as_str()), (Phase::Progressing, "LoadFailed"));
}

#[test]
fn requests_are_told_of_a_load_that_is_tried_again_much_later() {
    let mut w = world().worker("a", gib(4)).worker("b", gib(4)).deploy("iris", |spec| {
        spec.memory = Some(gib(1));
        spec.replicas = Replicas { min: 2, max: 2 };
    });
    w.advance();
    w.fail("iris", "a", FailureCategory::Network, Some(Duration::from_secs(30)));
    assert!(w.plan().routes.is_empty(), "the other one may yet be ready");
    w.fail("iris", "b", FailureCategory::Network, Some(Duration::from_secs(60)));
    let planned = w.plan();
    let soonest = w.now + Duration::from_secs(30);
    assert!(
        matches!(&planned.routes[0].on_miss, OnMiss::Failed { message, retry_at }
            if message.contains("it broke") && *retry_at == Some(soonest)),
        "{planned:#?}"
    );
    w.report("a", false, vec![(w.revision("iris"), Some(Residency::Queued))]);
    assert_eq!(w.plan().routes[0].on_miss, OnMiss::Park, "it is being tried again");
}

#[test]
fn a_changed_file_is_tried_where_its_source_looks_at_it() {
    let (folder, digest) = (Origin::directory("/models"), Some(Digest([1; 32])));
    for (origin, digest, told) in [
        (Origin::API, digest, "when the spec changes, or after"),
        (folder.clone(), None, "when the spec changes, or after"),
        (folder, digest, "when the spec or the file changes, or after"),
    ] {
        let mut w = world().worker("a", gib(4));
        let mut iris = deployment("iris");
        iris.spec.memory = Some(gib(1));
        (iris.origin, iris.digest) = (origin, digest);
        w.world.set_deployment(Arc::new(iris));
        w.advance();
        w.fail("iris", "a", FailureCategory::InvalidModel, None);
        w.advance();
        let said = w.status("iris").conditions;
        assert!(said[0].message.contains(told), "{said:#?}");
    }
}

#[test]
fn the_cause_is_said_once() {
    let mut placed = world().worker("a", gib(4)).resident("iris", gib(1));
    placed.advance();
    let mut given_up = placed.clone();
    placed.fail("iris", "a", FailureCategory::Network, Some(Duration::from_secs(30)));
    placed.advance();
    given_up.fail("iris", "a", FailureCategory::InvalidModel, None);
    given_up.advance();
    let mut huge = world().worker("a", gib(4)).resident("iris", gib(20));
    huge.advance();
    for (w, cause, scheduled) in
        [(placed, "it broke", "Placed"), (given_up, "it broke", "Withheld"), (huge, "needs 20GiB", "NoCapacity")]
    {
        let said = w.status("iris").conditions;
        let times = said.iter().filter(|condition| condition.message.contains(cause)).count();
        assert_eq!((times, said[2].reason.as_str()), (1, scheduled), "{said:#?}");
        assert!(said[0].message.contains(cause), "{said:#?}");
    }
}

#[test]
fn a_permanent_failure_of_the_worker_moves_on() {
    let mut w = world().worker("a", gib(4)).worker("b", gib(4)).resident("iris", gib(1));
    w.advance();
    w.fail("iris", "a", FailureCategory::Runtime, None);
    w.settle();
    assert_eq!(w.placed("iris"), ["b"]);
}

/// A model stayed where its model server had died until that was started again, though another worker's ran.
#[test]
fn a_model_whose_server_cannot_be_reached_moves_on() {
    let of_runtime = |w: berth_plan::fixture::Fixture| {
        w.deploy("iris", |spec| {
            spec.memory = Some(gib(1));
            spec.model.uri = "runtime:m?type=t".into();
        })
    };
    let mut alone = of_runtime(world().worker("a", gib(4)));
    alone.advance();
    alone.fail("iris", "a", FailureCategory::Network, Some(Duration::from_secs(30)));
    assert!(!alone.plan().decided(), "there is no other");
    let mut w = of_runtime(world().worker("a", gib(4)).worker("b", gib(4)));
    w.advance();
    w.fail("iris", "a", FailureCategory::Network, Some(Duration::from_secs(30)));
    w.settle();
    assert_eq!(w.placed("iris"), ["b"]);
    w.fail("iris", "b", FailureCategory::Network, Some(Duration::from_secs(30)));
    w.advance();
    assert_eq!(w.placed("iris"), ["b"], "it is tried again where it failed last");
}

#[test]
fn a_permanent_failure_of_the_model_stalls_until_something_changes() {
    let mut w = world().worker("a", gib(4)).worker("b", gib(4)).on_demand("iris", gib(1));
    w.demand("iris", 2);
    w.advance();
    w.fail("iris", "a", FailureCategory::InvalidModel, None);
    let planned = w.plan();
    assert!(w.placed("iris").is_empty(), "no other worker would do better");
    assert!(
        matches!(&planned.routes[0].on_miss, OnMiss::Failed { message, .. } if message.contains("it broke")),
        "{planned:#?}"
    );
    assert_eq!(w.status("iris").phase, Phase::Failed);
    w.demand("iris", 0);
    w.load_all();
    w.advance();
    assert_eq!(w.status("iris").phase, Phase::Failed, "it is remembered");
    w.after(Duration::from_secs(600));
    let planned = w.plan();
    assert_eq!(planned.routes[0].on_miss, OnMiss::Park, "and forgotten");
    w.demand("iris", 1);
    w.settle();
    assert_eq!(w.placed("iris").len(), 1);
}

#[test]
fn a_resident_that_failed_is_tried_again_when_the_failure_is_forgotten_or_the_spec_changes() {
    let mut w = world().worker("a", gib(4)).resident("iris", gib(1));
    w.advance();
    w.fail("iris", "a", FailureCategory::NotFound, None);
    w.advance();
    w.load_all();
    assert!(!w.plan().decided());
    let mut changed = w.clone();
    changed.change("iris", |spec| spec.timeout = Duration::from_secs(9));
    changed.settle();
    assert_eq!(changed.placed("iris"), ["a"]);
    assert!(w.world.wake_at().is_some());
    w.after(Duration::from_secs(600));
    w.settle();
    assert_eq!(w.placed("iris"), ["a"]);
}

#[test]
fn a_claim_grows_with_what_is_learned_and_evicts_for_it() {
    let mut w = world().worker("a", gib(4)).on_demand("old", gib(3));
    w.demand("old", 1);
    w.settle();
    w.demand("old", 0);
    let mut w = w.deploy("iris", |_| {});
    w.advance();
    let iris = w.revision("iris");
    let fetching = Residency::Fetching { done: ByteSize::ZERO, total: Some(gib(2)) };
    w.report("a", false, vec![(iris.clone(), Some(fetching))]);
    w.advance();
    assert!(w.placed("old").is_empty(), "2 GiB of artifact do not fit beside 3 GiB");
    w.report("a", false, vec![(iris.clone(), Some(ready(gib(1), digest_of(&iris), w.now)))]);
    w.advance();
    let tracked = w.world.worker(&worker_id("a")).expect("a worker");
    assert_eq!(tracked.used, gib(1), "measured");
}

#[test]
fn what_turns_out_not_to_fit_leaves_and_says_so() {
    let mut w = world().worker("a", gib(4)).resident("first", gib(3)).deploy("iris", |_| {});
    w.advance();
    let iris = w.revision("iris");
    w.report("a", false, vec![(iris.clone(), Some(ready(gib(2), digest_of(&iris), w.now)))]);
    w.advance();
    assert_eq!((w.placed("first").len(), w.placed("iris").len()), (1, 0));
    assert!(w.status("iris").conditions[0].message.contains("needs 2GiB"), "{:?}", w.status("iris").conditions);
    w.load_all();
    w.advance();
    w.load_all();
    assert!(!w.plan_for(&berth_plan::Scope::All).decided(), "and is not tried over and over");
}

#[test]
fn a_load_that_runs_out_of_memory_gets_more() {
    let mut w = world().worker("a", gib(4)).deploy("iris", |_| {});
    w.advance();
    w.fail("iris", "a", FailureCategory::Memory, Some(Duration::from_secs(30)));
    w.advance();
    let tracked = w.world.worker(&worker_id("a")).expect("a worker");
    assert_eq!(tracked.used, ByteSize::mib(128));
}

#[test]
fn a_lost_worker_is_waited_for_unless_nothing_answers() {
    let mut w = world().worker("a", gib(4)).worker("b", gib(4)).worker("c", gib(4)).resident("one", gib(1));
    w.change("two", |spec| {
        spec.memory = Some(gib(1));
        spec.replicas = Replicas { min: 2, max: 2 };
    });
    w.settle();
    let (one, two) = (w.placed("one"), w.placed("two"));
    let mut lone = w.clone();
    lone.world.lose_worker(&worker_id(&one[0]), lone.now);
    lone.settle();
    assert_ne!(lone.placed("one"), one, "an outage does not wait");
    assert_eq!(lone.placed("one").len(), 1);

    w.world.lose_worker(&worker_id(&two[0]), w.now);
    let planned = w.plan();
    assert_eq!(w.placed("two"), two, "the other one answers");
    let route = planned.routes.iter().find(|route| route.deployment.as_str() == "two").expect("a route");
    assert_eq!(route.versions[0].ready.len(), 1);
    w.after(Duration::from_secs(10));
    w.settle();
    assert_eq!(w.placed("two").len(), 2);
    assert!(!w.placed("two").contains(&two[0]));
}

#[test]
fn a_worker_that_returns_smaller_gives_up_the_least_important() {
    let mut w = world().worker("a", gib(4)).resident("low", gib(2)).resident("high", gib(2));
    w.change("high", |spec| spec.priority = 90);
    w.settle();
    w = w.worker("a", gib(2));
    w.settle();
    assert_eq!((w.placed("low").len(), w.placed("high").len()), (0, 1));
    assert_eq!(w.status("low").phase, Phase::ScheduleFailed);
}

#[test]
fn a_replica_whose_process_died_is_not_routed_to_and_stays_where_it_is() {
    let mut w = world().worker("a", gib(4)).worker("b", gib(4)).worker("c", gib(4)).deploy("iris", |spec| {
        spec.memory = Some(gib(1));
        spec.replicas = Replicas { min: 2, max: 2 };
    });
    w.settle();
    let (a, b) = ("a", "b");
    assert_eq!(w.placed("iris"), [a, b]);
    for wait in [1, 2, 4, 30] {
        w.die("iris", a, Some(Duration::from_secs(wait)));
        let planned = w.plan();
        assert!(!planned.decided(), "it is not placed anew: {planned:#?}");
        assert_eq!(w.answers("iris"), [b]);
        let status = w.status("iris");
        assert_eq!((status.phase, status.ready), (Phase::Degraded, 1));
        assert_eq!(
            (status.conditions[0].reason.as_str(), status.conditions[1].reason.as_str()),
            ("Degraded", "Restarting")
        );
        assert!(status.conditions[0].message.contains("its process on a died"), "{:?}", status.conditions);
        assert_eq!(planned.readiness.ready, 1, "the gateways stay ready");
        w.die("iris", a, None);
        assert!(!w.plan().decided());
        assert_eq!(w.answers("iris"), [a, b]);
        assert_eq!(w.status("iris").phase, Phase::Available);
    }
    let died = w.told.iter().filter(|(reason, _)| *reason == "Placed").count();
    assert_eq!(died, 2, "{:?}", w.told);
}

#[test]
fn requests_for_a_model_whose_only_process_died_are_told_when_it_is_started() {
    let mut w = world().worker("a", gib(4)).resident("iris", gib(1));
    w.settle();
    w.die("iris", "a", Some(Duration::from_secs(8)));
    let planned = w.plan();
    let again = w.now + Duration::from_secs(8);
    let miss = &planned.routes[0].on_miss;
    let told = |message: &str| {
        ["on a died once", "it ended with code 3", &format!("started again at {again}")]
            .iter()
            .all(|it| message.contains(it))
    };
    assert!(
        matches!(miss, OnMiss::Restarting { message, again_at } if told(message) && *again_at == again),
        "{miss:?}"
    );
    assert_eq!((planned.readiness.expected, planned.readiness.ready), (1, 1), "the gateways stay ready");
    let status = w.status("iris");
    assert_eq!((status.phase, status.ready, status.conditions[0].reason.as_str()), (Phase::Degraded, 0, "ProcessDied"));
    w.die("iris", "a", None);
    assert_eq!(w.plan().routes[0].on_miss, OnMiss::Park);
    assert_eq!(w.answers("iris"), ["a"]);
}

/// Its revision may take minutes: who asks is told of the restart as if nobody had pushed anything.
#[test]
fn a_revision_on_its_way_is_no_reason_to_wait_for_a_model_whose_process_died() {
    let mut w = world().worker("a", gib(4)).resident("iris", gib(1));
    w.settle();
    w.die("iris", "a", Some(Duration::from_secs(30)));
    w.advance();
    let again = w.now + Duration::from_secs(30);
    w.update("iris", "2");
    let planned = w.plan();
    let miss = &planned.routes[0].on_miss;
    assert!(matches!(miss, OnMiss::Restarting { again_at, .. } if *again_at == again), "{miss:?}");
    assert_eq!(planned.routes[0].versions.len(), 2, "the new one is on its way");
    w.settle();
    let new = w.revision("iris");
    assert_eq!(w.status("iris").serving, Some(new), "it takes over as soon as it answers");
    assert_eq!((w.status("iris").phase, w.answers("iris")), (Phase::Available, vec!["a".to_owned()]));
}

/// Requests wait for a revision on its way where nothing else is coming: a refusal is half a minute away at least.
#[test]
fn requests_wait_for_a_revision_on_its_way_where_nothing_else_is_coming() {
    let mut w = world().worker("a", gib(1)).deploy("iris", |spec| {
        spec.memory = Some(gib(1));
        spec.rollout.when_full = WhenFull::Recreate;
    });
    w.settle();
    w.die("iris", "a", Some(Duration::from_secs(30)));
    w.update("iris", "2");
    while w.plan().decided() {}
    assert_eq!(w.placed("iris"), ["a"], "the new one in place of the old one");
    let route = w.world.whole_routes(w.now).set.remove(0);
    assert_eq!(route.on_miss, OnMiss::Park);
}

/// One worker with a certificate of the cluster must not take the numbers of all plans to come.
#[test]
fn a_number_that_a_worker_made_up_is_not_taken_over() {
    let mut w = world().worker("a", gib(4)).worker("b", gib(4)).resident("iris", gib(1));
    w.settle();
    let before = w.world.generation();
    for made_up in [Generation(u64::MAX), Generation(u64::MAX - 1), Generation::MOST_BELIEVED.next()] {
        w.claim_seen("b", made_up);
        assert_eq!(w.world.generation(), before);
    }
    // As far as it can be true, plans go on from there.
    w.claim_seen("b", Generation::MOST_BELIEVED);
    let mut w = w.resident("wine", gib(1));
    w.settle();
    assert!(w.world.generation() > Generation::MOST_BELIEVED);
    w.claim_seen("a", w.world.generation());
    let mut w = w.resident("more", gib(1));
    w.settle();
    assert_eq!((w.placed("wine").len(), w.placed("more").len()), (1, 1));
}
