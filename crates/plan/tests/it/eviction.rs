//! Choice of victims.

use std::time::Duration;

use berth_plan::{
    Policy,
    fixture::{Fixture, digest_of, gib, loaded_in, world, world_with},
};
use berth_spec::{routes::OnMiss, status::Phase};

/// A worker of 4 GiB with two on-demand models of 2 GiB that were used a second apart, `old` first.
fn full() -> Fixture {
    let mut w = world().worker("a", gib(4)).on_demand("old", gib(2)).on_demand("new", gib(2));
    for called in ["old", "new"] {
        w.after(Duration::from_secs(1));
        w.demand(called, 1);
        w.settle();
        w.demand(called, 0);
        w.settle();
    }
    w
}

#[test]
fn the_longest_unused_leaves() {
    let mut w = full().on_demand("third", gib(1));
    w.after(Duration::from_secs(1));
    w.demand("third", 1);
    w.settle();
    assert_eq!((w.placed("old").len(), w.placed("new").len(), w.placed("third").len()), (0, 1, 1));
    assert!(w.was_told("Evicted"));
    assert_eq!(w.status("old").phase, Phase::ScaledDown);
}

#[test]
fn no_more_leave_than_must() {
    // old (1 GiB) is the least recently used, but the next one alone is enough: old stays.
    let mut w =
        world().worker("a", gib(4)).on_demand("old", gib(1)).on_demand("new", gib(3)).on_demand("third", gib(3));
    for called in ["old", "new", "third"] {
        w.after(Duration::from_secs(1));
        w.demand(called, 1);
        w.settle();
        w.demand(called, 0);
    }
    assert_eq!((w.placed("old").len(), w.placed("new").len(), w.placed("third").len()), (1, 0, 1));
}

#[test]
fn a_resident_evicts_what_is_on_demand_but_not_its_equal() {
    let mut w = full().resident("third", gib(4));
    w.settle();
    assert_eq!((w.placed("old").len(), w.placed("new").len(), w.placed("third").len()), (0, 0, 1));
    let mut w = w.resident("fourth", gib(4));
    w.settle();
    assert_eq!(w.placed("third").len(), 1);
    assert_eq!(w.status("fourth").phase, Phase::ScheduleFailed);
    w.change("fourth", |spec| spec.priority = 51);
    w.settle();
    assert_eq!((w.placed("third").len(), w.placed("fourth").len()), (0, 1));
    assert_eq!(w.status("third").phase, Phase::ScheduleFailed);
    assert!(w.status("third").conditions[0].message.contains("needs 4GiB"), "{:?}", w.status("third").conditions);
}

#[test]
fn what_is_waited_for_or_loading_stays_until_its_waiters_are_in() {
    let mut w = full().on_demand("third", gib(2));
    w.demand("old", 1);
    w.demand("new", 1);
    w.demand("third", 1);
    let planned = w.plan();
    // Room will be made, so requests go on waiting for it.
    assert!(planned.routes.iter().all(|route| route.on_miss == OnMiss::Park), "{:#?}", planned.routes);
    w.settle();
    assert_eq!(w.placed("third").len(), 0);
    assert_eq!(w.status("third").phase, Phase::Progressing);
    assert_eq!(w.status("third").conditions[0].reason, "WaitsForRoom");
    w.demand("old", 0);
    w.settle();
    assert_eq!((w.placed("old").len(), w.placed("third").len()), (0, 1));
}

#[test]
fn among_equals_who_has_just_come_stays_for_a_while() {
    let mut w = world_with(Policy::default()).worker("a", gib(1)).on_demand("one", gib(1)).on_demand("two", gib(1));
    w.demand("one", 1);
    w.settle();
    w.demand("one", 0);
    w.demand("two", 1);
    w.settle();
    assert_eq!((w.placed("one").len(), w.status("two").conditions[0].reason.as_str()), (1, "WaitsForRoom"));
    w.after(Policy::default().min_residence);
    w.settle();
    assert_eq!((w.placed("one").len(), w.placed("two").len()), (0, 1));
}

/// A worker of 4 GiB with on-demand models of 1 GiB, which took so long to load, used in this order a second apart.
fn loaded(models: &[(&str, u64)]) -> Fixture {
    let mut w = models.iter().fold(world().worker("a", gib(4)), |w, (called, _)| w.on_demand(called, gib(1)));
    for (called, seconds) in models {
        w.after(Duration::from_secs(1));
        w.demand(called, 1);
        w.advance();
        let revision = w.revision(called);
        let ready = loaded_in(Duration::from_secs(*seconds), gib(1), digest_of(&revision), w.now);
        w.report("a", false, vec![(revision, Some(ready))]);
        w.demand(called, 0);
        w.settle();
    }
    w
}

#[test]
fn of_those_idle_for_about_as_long_the_cheapest_to_load_back_leaves() {
    let mut w = loaded(&[("slow", 20), ("slower", 30), ("quick", 1), ("recent", 1)]).on_demand("next", gib(1));
    // All were used within the last minute or so; `recent` once more just now.
    w.after(Duration::from_secs(70));
    w.used(1, "recent", 0, 0, 1);
    w.after(Duration::from_secs(5));
    w.demand("next", 1);
    w.settle();
    let left = |w: &Fixture| ["slow", "slower", "quick", "recent"].map(|called| w.placed(called).len());
    assert_eq!(left(&w), [1, 1, 0, 1], "{:?}", w.told);
    // Where idle times differ by more than a factor of two, they decide.
    let mut w = loaded(&[("slow", 20), ("quick", 1)]).on_demand("next", gib(3));
    w.after(Duration::from_secs(60));
    w.used(1, "quick", 0, 0, 1);
    w.after(Duration::from_secs(10));
    w.demand("next", 1);
    w.settle();
    assert_eq!((w.placed("slow").len(), w.placed("quick").len()), (0, 1), "{:?}", w.told);
}

#[test]
fn the_longer_a_load_took_the_longer_it_serves() {
    let mut w = loaded(&[("b", 1), ("c", 1), ("d", 1), ("slow", 20)]).on_demand("next", gib(4));
    w.after(Duration::from_secs(3));
    w.demand("next", 1);
    w.settle();
    assert_eq!(w.status("next").conditions[0].reason, "WaitsForRoom", "a quarter of 20 s is not over");
    assert!(parks(&mut w), "requests wait for their turn, and are not refused");
    w.run(Duration::from_secs(3));
    assert_eq!((w.placed("slow").len(), w.placed("next").len()), (0, 1), "{:?}", w.told);
    // However long a load took, who waits behind it has a turn within the usual deadline.
    let mut w = loaded(&[("b", 1), ("c", 1), ("d", 1), ("slow", 900)]).on_demand("next", gib(4));
    w.demand("next", 1);
    w.run(Policy::default().max_residence + Duration::from_secs(1));
    assert_eq!(w.placed("next").len(), 1, "{:?}", w.told);
}

fn parks(w: &mut Fixture) -> bool {
    let now = w.now;
    w.world.whole_routes(now).set.iter().all(|route| route.on_miss == OnMiss::Park)
}

#[test]
fn what_can_never_fit_is_known_when_it_is_declared_and_until_a_worker_can_hold_it() {
    let mut w = full().on_demand("third", gib(20));
    let planned = w.plan();
    let planned_never = matches!(&planned.routes[0].on_miss, OnMiss::NoCapacity { message, retry_at: None } if message.contains("needs 20GiB"));
    assert!(planned_never, "{:#?}", planned.routes);
    w.after(Duration::from_secs(60));
    w.settle();
    assert_eq!(w.status("third").phase, Phase::ScheduleFailed);
    let mut w = w.worker("b", gib(32));
    let planned = w.plan();
    assert_eq!(planned.routes[0].on_miss, OnMiss::Park);
    assert_eq!(w.status("third").phase, Phase::ScaledDown);
    w.change("third", |spec| spec.memory = Some(gib(33)));
    assert!(never_route(&mut w), "a changed spec counts as well");
}

fn never_route(w: &mut Fixture) -> bool {
    matches!(&w.plan().routes[0].on_miss, OnMiss::NoCapacity { retry_at: None, .. })
}

#[test]
fn what_had_no_room_is_refused_for_a_while_and_says_so_until_there_is_some() {
    let mut w = world().worker("a", gib(4)).resident("big", gib(3)).on_demand("third", gib(2));
    w.settle();
    w.demand("third", 1);
    let planned = w.plan();
    let until = w.now + Policy::default().no_capacity_hold;
    assert!(
        matches!(&planned.routes[0].on_miss, OnMiss::NoCapacity { retry_at: Some(at), .. } if *at == until),
        "{planned:#?}"
    );
    w.demand("third", 0);
    w.advance();
    w.after(Duration::from_secs(3));
    let planned = w.plan();
    assert_eq!(planned.routes[0].on_miss, OnMiss::Park, "the next request may try again");
    let status = w.status("third");
    assert_eq!((status.phase, status.conditions[0].reason.as_str()), (Phase::ScheduleFailed, "NoCapacity"));
    let mut roomy = w.clone().worker("b", gib(4));
    roomy.settle();
    assert_eq!(roomy.status("third").phase, Phase::ScaledDown, "another worker joined");
    w.change("big", |spec| spec.memory = Some(gib(1)));
    w.settle();
    assert_eq!(w.status("third").phase, Phase::ScaledDown, "there is room now");
}

#[test]
fn priority_goes_before_recency() {
    let mut w = full();
    w.change("old", |spec| spec.priority = 60);
    w.settle();
    let mut w = w.deploy("third", |spec| {
        spec.memory = Some(gib(2));
        spec.priority = 60;
    });
    w.settle();
    assert_eq!((w.placed("old").len(), w.placed("new").len()), (1, 0));
}

#[test]
fn deployments_used_in_the_same_instant_are_all_known() {
    // ModelMesh keyed its order of eviction by time alone and lost all but one of a batch.
    let mut w = world().worker("a", gib(8));
    for i in 0..8 {
        w = w.on_demand(&format!("m{i}"), gib(1));
        w.demand(&format!("m{i}"), 1);
    }
    w.settle();
    for i in 0..8 {
        w.demand(&format!("m{i}"), 0);
    }
    let mut w = w.resident("big", gib(8));
    w.settle();
    assert_eq!(w.placed("big"), ["a"]);
}

#[test]
fn use_in_the_past_does_not_make_recent() {
    let mut w = full();
    let long_ago = berth_spec::Demand {
        deployment: berth_plan::fixture::name("old"),
        waiting: 0,
        in_flight: 0,
        last_used: berth_spec::Time(5),
        requests: 1,
    };
    w.world.demand(berth_spec::GatewayId(1), &long_ago, w.now);
    let mut w = w.on_demand("third", gib(2));
    w.demand("third", 1);
    w.settle();
    assert!(w.placed("old").is_empty());
}

#[test]
fn who_was_used_since_does_not_go_in_place_of_who_has_just_come() {
    let mut w = world_with(Policy::default()).worker("a", gib(2));
    for called in ["used", "fresh", "third"] {
        w = w.on_demand(called, gib(1));
    }
    w.demand("used", 1);
    w.settle();
    w.after(Duration::from_secs(1));
    w.demand("fresh", 1);
    w.settle();
    w.demand("fresh", 0);
    w.after(Duration::from_millis(1));
    w.demand("used", 0);
    w.demand("third", 1);
    w.settle();
    assert_eq!((w.placed("used").len(), w.placed("fresh").len(), w.placed("third").len()), (1, 1, 0));
    w.after(Policy::default().min_residence);
    w.settle();
    assert_eq!((w.placed("used").len(), w.placed("fresh").len(), w.placed("third").len()), (1, 0, 1));
}
