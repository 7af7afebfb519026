//! Two revisions share the requests until the new one is promoted.

use std::time::Duration;

use berth_plan::{
    Policy, Rollout, Scope,
    fixture::{Fixture, digest_of, gib, name, ready, worker, world},
    plan,
};
use berth_spec::{
    FailureCategory, Replicas, RevisionId,
    deployment::{Percent, WhenFull},
    status::{Condition, Phase, Truth},
};

const MINUTE: Duration = Duration::from_secs(60);

/// Another version with a share of the requests. Gives the old revision and the new one.
fn update(w: &mut Fixture, version: &str, percent: u32) -> (RevisionId, RevisionId) {
    let old = w.revision("iris");
    w.change("iris", |spec| {
        spec.rollout.canary = Percent::new(percent);
        spec.model.uri = format!("file:///models/iris/{version}").into();
    });
    (old, w.revision("iris"))
}

/// The same, once both revisions answer.
fn canary(w: &mut Fixture, percent: u32) -> (RevisionId, RevisionId) {
    w.settle();
    let both = update(w, "2", percent);
    w.settle();
    both
}

fn share(w: &mut Fixture, percent: u32) {
    w.change("iris", |spec| spec.rollout.canary = Percent::new(percent));
}

/// One worker with room for several revisions, and a resident model.
fn resident() -> Fixture {
    world().worker("a", gib(4)).resident("iris", gib(1))
}

/// The same with a model that was loaded by a request, and leaves a minute after its last use.
fn on_demand() -> Fixture {
    let mut w = world().worker("a", gib(4)).on_demand("iris", gib(1));
    w.change("iris", |spec| spec.idle_after = Some(MINUTE));
    w.demand("iris", 1);
    w.settle();
    w.demand("iris", 0);
    w
}

fn shares(w: &Fixture) -> Vec<(RevisionId, u32)> {
    let mut routes = w.world.whole_routes(w.now).set.into_iter();
    routes.find(|route| route.deployment.as_str() == "iris").expect("a route").split
}

/// The workers that are to hold a revision.
fn on(w: &Fixture, revision: &RevisionId) -> Vec<String> {
    let record = w.world.record(&name("iris"));
    record.iter().flat_map(|record| record.of(revision)).map(|replica| replica.worker.to_string()).collect()
}

fn is_canary(w: &Fixture) -> bool {
    w.world.record(&name("iris")).is_some_and(|record| matches!(record.rollout, Rollout::Canary { .. }))
}

fn progressing(w: &Fixture) -> Condition {
    let mut conditions = w.status("iris").conditions.into_iter();
    conditions.find(|condition| condition.kind == "Progressing").expect("there always is one")
}

#[test]
fn a_canary_shares_requests_until_it_is_promoted() {
    let mut w = resident();
    let (old, new) = canary(&mut w, 10);
    assert_eq!(shares(&w), [(old.clone(), 90), (new.clone(), 10)]);
    assert!(w.was_told("RolloutCanary") && !w.was_told("RolloutCompleted"), "{:?}", w.told);
    let (status, condition) = (w.status("iris"), progressing(&w));
    assert_eq!((status.phase, status.ready, status.serving), (Phase::Progressing, 1, Some(old.clone())));
    assert_eq!((condition.reason.as_str(), condition.status), ("Canary", Truth::False));
    for part in ["gets 10 % of requests", "`berth rollout promote iris`", "`berth rollout undo iris --to-generation N`"]
    {
        assert!(condition.message.contains(part), "{condition:?}");
    }
    w.run(Duration::from_secs(86_400));
    assert_eq!(shares(&w), [(old.clone(), 90), (new.clone(), 10)], "there is no deadline");
    w.change("iris", |spec| spec.rollout.canary = None);
    let planned = w.plan();
    let change = planned.assignments.values().next().expect("an assignment");
    assert_eq!((change.set.len(), &change.unset), (0, &vec![old]), "only the old one leaves");
    assert_eq!(planned.routes[0].split, [(new.clone(), 100)]);
    w.settle();
    assert!(w.was_told("RolloutCompleted"));
    assert_eq!((w.status("iris").phase, w.status("iris").serving), (Phase::Available, Some(new)));
}

#[test]
fn all_requests_are_a_plain_update_and_what_is_stable_has_no_canary() {
    let mut w = resident();
    share(&mut w, 10);
    w.settle();
    assert_eq!((shares(&w).len(), w.status("iris").phase), (1, Phase::Available), "nothing is under way");
    let (_, new) = canary(&mut w, 100);
    assert_eq!(shares(&w), [(new, 100)]);
    assert!(!w.was_told("RolloutCanary"));
}

#[test]
fn going_back_ends_a_canary() {
    let mut w = resident();
    let (old, new) = canary(&mut w, 10);
    w.update("iris", "1");
    let planned = w.plan();
    let change = planned.assignments.values().next().expect("an assignment");
    assert_eq!((change.set.len(), &change.unset), (0, &vec![new]), "only the new one leaves");
    assert_eq!(planned.routes[0].split, [(old.clone(), 100)]);
    w.settle();
    assert_eq!((w.status("iris").phase, w.status("iris").serving), (Phase::Available, Some(old)));
}

#[test]
fn a_third_revision_takes_the_place_of_the_new_one() {
    let mut w = resident();
    let (old, second) = canary(&mut w, 10);
    w.update("iris", "3");
    let third = w.revision("iris");
    let planned = w.plan();
    let change = planned.assignments.values().next().expect("an assignment");
    assert_eq!((change.set.len(), &change.unset), (1, &vec![second]));
    assert_eq!(planned.routes[0].split, [(old.clone(), 100)]);
    w.settle();
    assert_eq!(shares(&w), [(old, 90), (third, 10)]);
}

#[test]
fn a_changed_share_changes_the_route_alone() {
    let two = || {
        let mut w = ["a", "b", "c"].iter().fold(world(), |w, worker| w.worker(worker, gib(4)));
        w.change("iris", |spec| {
            spec.memory = Some(gib(1));
            spec.replicas = Replicas { min: 2, max: 2 };
        });
        w
    };
    for mut w in [resident(), on_demand(), two()] {
        let (old, new) = canary(&mut w, 10);
        for percent in [50, 0, 99, 1] {
            share(&mut w, percent);
            let planned = w.plan_for(&Scope::All);
            assert!(!planned.decided() && planned.events.is_empty() && planned.routes.len() == 1, "{planned:#?}");
            let mut expected = vec![(old.clone(), 100 - percent), (new.clone(), percent)];
            expected.retain(|(_, share)| *share > 0);
            assert_eq!(planned.routes[0].split, expected);
            assert!(planned.routes[0].versions.iter().all(|version| !version.ready.is_empty()), "both stay");
        }
    }
}

#[test]
fn a_new_revision_that_is_lost_gets_nothing_until_it_is_back() {
    let mut w = ["a", "b", "c"].iter().fold(world(), |w, worker| w.worker(worker, gib(1))).resident("iris", gib(1));
    let (old, new) = canary(&mut w, 10);
    let held = on(&w, &new).remove(0);
    w.lose(&held);
    w.advance();
    assert_eq!(shares(&w), [(old.clone(), 100)]);
    assert_eq!(progressing(&w).reason, "RollingOut");
    let (mut back, mut promoted) = (w.clone(), w.clone());

    back.attach(&held);
    back.settle();
    assert_eq!(shares(&back), [(old.clone(), 90), (new.clone(), 10)]);

    promoted.change("iris", |spec| spec.rollout.canary = None);
    promoted.advance();
    assert_eq!(
        (shares(&promoted), is_canary(&promoted)),
        (vec![(old.clone(), 100)], false),
        "an update like any other"
    );
    promoted.attach(&held);
    promoted.settle();
    assert_eq!((shares(&promoted), on(&promoted, &old).len()), (vec![(new.clone(), 100)], 0));

    w.after(Policy::default().lost_grace);
    w.settle();
    assert_eq!(shares(&w), [(old, 90), (new.clone(), 10)], "another worker has room");
    assert_ne!(on(&w, &new), [held]);
}

#[test]
fn a_lost_copy_of_the_old_revision_comes_back_and_the_new_one_answers_meanwhile() {
    let mut w = ["a", "b", "c"].iter().fold(world(), |w, worker| w.worker(worker, gib(1))).resident("iris", gib(1));
    let (old, new) = canary(&mut w, 10);
    let held = on(&w, &old).remove(0);
    w.lose(&held);
    w.advance();
    // Gateways pick among what is ready: the new one answers all requests, at no other shares.
    assert_eq!(shares(&w), [(old.clone(), 90), (new.clone(), 10)]);
    w.after(Policy::default().lost_grace);
    w.settle();
    assert!(is_canary(&w) && on(&w, &old) != [held] && on(&w, &new).len() == 1);
    assert_eq!(w.status("iris").ready, 1);
}

#[test]
fn a_new_revision_that_fails_everywhere_is_given_up() {
    let mut w = resident();
    let (old, new) = canary(&mut w, 10);
    w.fail("iris", "a", FailureCategory::InvalidModel, None);
    w.advance();
    let record = w.world.record(&name("iris")).expect("a record");
    assert!(matches!(&record.rollout, Rollout::Stuck { serving, .. } if *serving == old), "{record:#?}");
    assert_eq!((shares(&w), on(&w, &new).len()), (vec![(old.clone(), 100)], 0));
    assert!(w.was_told("RolloutStuck"));
    w.update("iris", "3");
    w.settle();
    assert_eq!(shares(&w), [(old, 90), (w.revision("iris"), 10)]);
}

#[test]
fn without_room_for_both_there_is_no_canary() {
    let small = |when_full: WhenFull| {
        let mut w = world().worker("a", gib(3)).resident("iris", gib(2));
        w.change("iris", |spec| spec.rollout.when_full = when_full);
        w
    };
    let mut w = small(WhenFull::Wait);
    let (old, new) = canary(&mut w, 10);
    assert_eq!((shares(&w), progressing(&w).reason.as_str()), (vec![(old.clone(), 100)], "SurgeWaits"));
    let mut w = w.worker("b", gib(3));
    w.settle();
    assert_eq!(shares(&w), [(old.clone(), 90), (new.clone(), 10)], "there is room now");

    let mut w = small(WhenFull::Recreate);
    let (_, new) = canary(&mut w, 10);
    assert_eq!(shares(&w), [(new, 100)], "nothing was left to share with");
    assert!(w.was_told("RolloutRecreates") && !w.was_told("RolloutCanary"));
}

#[test]
fn a_canary_that_loses_its_room_takes_none_from_the_old_revision() {
    for when_full in [WhenFull::Wait, WhenFull::Recreate] {
        let mut w = ["a", "b", "c"].iter().fold(world(), |w, worker| w.worker(worker, gib(3)));
        w.change("rose", |spec| spec.memory = Some(gib(3)));
        w.change("iris", |spec| {
            spec.memory = Some(gib(2));
            spec.rollout.when_full = when_full;
        });
        let (old, new) = canary(&mut w, 10);
        let lost = on(&w, &new).remove(0);
        w.lose(&lost);
        w.after(Policy::default().lost_grace);
        w.advance();
        let condition = progressing(&w);
        assert_eq!((condition.reason.as_str(), condition.status), ("SurgeWaits", Truth::False), "{condition:?}");
        assert_eq!((shares(&w), w.status("iris").ready), (vec![(old, 100)], 1));
        w.run(Duration::from_secs(3600));
        assert!(is_canary(&w) && !w.was_told("RolloutRecreates") && !w.was_told("RolloutOverdue"), "{:?}", w.told);
    }
}

#[test]
fn a_new_controller_goes_on_with_a_canary() {
    let mut w = resident();
    let (old, new) = canary(&mut w, 10);
    let record = w.world.record(&name("iris")).expect("a record").clone();
    let stored = serde_json::to_string(&record).expect("it is written");
    assert!(stored.contains(r#""state":"canary""#), "{stored}");
    assert_eq!(serde_json::from_str::<berth_plan::Record>(&stored).expect("it is read"), record);
    w.take_over();
    w.assume("a");
    assert!(!w.plan().decided());
    assert_eq!(shares(&w), [(old.clone(), 100)], "only what serves for certain is taken to serve still");
    w.world.set_worker(worker("a", gib(4)));
    let held = [&old, &new].map(|id| (id.clone(), Some(ready(gib(1), digest_of(id), w.now))));
    w.report("a", true, held.to_vec());
    w.settle();
    assert_eq!(shares(&w), [(old, 90), (new, 10)]);
    assert_eq!(w.world.record(&name("iris")), Some(&record));
}

#[test]
fn an_idle_canary_wakes_with_both_revisions_and_their_shares() {
    let mut w = on_demand();
    let (old, new) = canary(&mut w, 10);
    w.run(2 * MINUTE);
    assert!(w.placed("iris").is_empty() && is_canary(&w));
    assert_eq!((w.status("iris").phase, progressing(&w).reason.as_str()), (Phase::ScaledDown, "Canary"));
    let (mut third, mut promoted) = (w.clone(), w.clone());

    w.demand("iris", 1);
    w.settle();
    assert_eq!(shares(&w), [(old.clone(), 90), (new.clone(), 10)]);
    // Evicted by another one rather than idle.
    w.demand("iris", 0);
    w.after(Duration::from_secs(1));
    let mut w = w.on_demand("rose", gib(4));
    w.demand("rose", 1);
    w.settle();
    assert!(w.placed("iris").is_empty() && w.placed("rose") == ["a"]);
    w.demand("rose", 0);
    w.after(Duration::from_secs(1));
    w.demand("iris", 1);
    w.settle();
    assert_eq!(shares(&w), [(old.clone(), 90), (new.clone(), 10)]);

    third.update("iris", "3");
    third.demand("iris", 1);
    third.settle();
    assert_eq!(shares(&third), [(old, 90), (third.revision("iris"), 10)]);

    promoted.change("iris", |spec| spec.rollout.canary = None);
    let planned = plan(&promoted.world, &Scope::All, promoted.now);
    assert!(!planned.is_reconstructible(&promoted.world), "a crash must not bring the canary back");
    promoted.advance();
    assert!(promoted.world.record(&name("iris")).is_none(), "the new one is all there is");
    promoted.demand("iris", 1);
    promoted.settle();
    assert_eq!((shares(&promoted), promoted.placed("iris").len()), (vec![(new, 100)], 1));
}

#[test]
fn a_new_revision_of_the_same_version_goes_by_its_hash_meanwhile() {
    let mut w = resident();
    w.change("iris", |spec| spec.model.version = Some("1".to_owned()));
    let (old, new) = canary(&mut w, 10);
    assert_ne!(old, new);
    let names = |w: &Fixture| {
        let mut routes = w.world.whole_routes(w.now).set.into_iter();
        let route = routes.find(|route| route.deployment.as_str() == "iris").expect("a route");
        route.versions.into_iter().map(|version| version.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&w), ["1".to_owned(), new.hash()]);
    w.change("iris", |spec| spec.rollout.canary = None);
    w.settle();
    assert_eq!(names(&w), ["1"]);
}

#[test]
fn both_revisions_have_all_their_copies() {
    let mut w = resident().worker("b", gib(4));
    let (old, new) = canary(&mut w, 10);
    w.change("iris", |spec| spec.replicas = Replicas { min: 2, max: 2 });
    w.settle();
    assert_eq!((on(&w, &old).len(), on(&w, &new).len()), (2, 2));
    assert_eq!(shares(&w), [(old, 90), (new, 10)]);
}
