//! Loads that a store refused, and credentials that change.

use std::time::Duration;

use berth_plan::{
    Rollout,
    fixture::{Fixture, digest_of, gib, name, ready, worker_id, world},
    plan,
};
use berth_spec::{FailureCategory, status::Phase};

#[test]
fn another_worker_may_have_the_key_and_nobody_else_is_tried_after_two() {
    let mut w = world().worker("a", gib(4)).worker("b", gib(3)).worker("c", gib(2)).resident("iris", gib(1));
    w.advance();
    for (refuses, next) in [("a", vec!["b"]), ("b", vec![])] {
        w.fail("iris", refuses, FailureCategory::Auth, None);
        w.settle();
        assert_eq!(w.placed("iris"), next, "{refuses} refused");
    }
    assert_eq!(w.status("iris").conditions[0].reason, "LoadFailed");
}

#[test]
fn what_was_refused_is_tried_again_with_other_credentials() {
    let mut w = world().worker("a", gib(4)).resident("iris", gib(1));
    w.load_all();
    w.advance();
    w.fail("iris", "a", FailureCategory::Auth, None);
    w.settle();
    assert!(w.placed("iris").is_empty());
    w.load_all();
    w.renew("a", 1);
    w.settle();
    assert_eq!((w.placed("iris"), w.status("iris").phase), (vec!["a".to_owned()], Phase::Available));
}

#[test]
fn a_refusal_that_is_still_where_it_failed_is_taken_away_and_tried_again() {
    let mut w = world().worker("a", gib(4)).resident("iris", gib(1));
    w.load_all();
    w.advance();
    w.fail("iris", "a", FailureCategory::Auth, None);
    w.renew("a", 1);
    w.advance();
    assert!(w.placed("iris").is_empty());
    w.load_all();
    w.after(Duration::from_secs(30));
    w.settle();
    assert_eq!(w.placed("iris"), ["a"]);
    // A worker that says the same again has nothing new, and other failures are not about keys.
    w.fail("iris", "a", FailureCategory::Runtime, None);
    w.settle();
    for number in [1, 2] {
        w.load_all();
        w.renew("a", number);
        w.settle();
        assert!(w.placed("iris").is_empty());
    }
}

/// `iris` serves, and its next revision is placed.
fn rolling_out() -> Fixture {
    let mut w = world().worker("a", gib(4)).resident("iris", gib(1));
    w.settle();
    w.update("iris", "2");
    w.after(Duration::from_secs(1));
    w.advance();
    w
}

fn refuse(w: &mut Fixture) {
    w.fail("iris", "a", FailureCategory::Auth, None);
}

fn is_stuck(w: &Fixture) -> bool {
    w.world.record(&name("iris")).is_some_and(|record| matches!(record.rollout, Rollout::Stuck { .. }))
}

fn serves_the_new_one(w: &Fixture) -> bool {
    w.status("iris").serving == Some(w.revision("iris"))
}

#[test]
fn a_rollout_that_meets_other_credentials_is_tried_again_by_itself() {
    type Story = fn(&mut Fixture);
    let stories: [(&str, Story); 4] = [
        ("they come while it loads", |w| {
            w.renew("a", 1);
            refuse(w);
        }),
        ("they come long before it fails", |w| {
            w.renew("a", 1);
            w.after(Duration::from_secs(300));
            refuse(w);
        }),
        ("they come after it failed", |w| {
            refuse(w);
            w.renew("a", 1);
        }),
        ("they come while the plan that gives it up is being stored", |w| {
            refuse(w);
            let scope = w.world.due(w.now);
            let planned = plan(&w.world, &scope, w.now);
            w.renew("a", 1);
            w.world.commit(&planned);
            assert!(is_stuck(w));
        }),
    ];
    for (told, story) in stories {
        let mut w = rolling_out();
        story(&mut w);
        w.advance();
        assert!(!is_stuck(&w), "{told}");
        let status = w.status("iris");
        assert_eq!((status.phase, status.ready), (Phase::Degraded, 1), "{told}");
        assert_eq!(status.conditions[1].reason, "RollingOut", "{told}: {:#?}", status.conditions);
        assert!(status.conditions[1].message.contains("it broke"), "{told}: {:#?}", status.conditions);
        w.load_all();
        w.run(Duration::from_secs(30));
        assert!(serves_the_new_one(&w), "{told}: {:#?}", w.status("iris"));
    }
}

#[test]
fn a_rollout_that_other_credentials_do_not_help_is_stuck() {
    let mut w = rolling_out();
    w.renew("a", 1);
    refuse(&mut w);
    w.advance();
    w.load_all();
    w.after(Duration::from_secs(30));
    w.advance();
    refuse(&mut w);
    w.advance();
    assert!(is_stuck(&w));
    let said = w.status("iris").conditions.swap_remove(1);
    assert!(said.message.contains("change the credentials of its worker, or the spec,"), "{said:?}");
    w.load_all();
    w.run(Duration::from_secs(3_600));
    assert!(is_stuck(&w), "not tried again by itself");
}

/// People take longer to mend a key than a failure is remembered, and the controller need not be the same any more.
#[test]
fn a_stuck_rollout_is_tried_again_with_other_credentials_however_late() {
    for (told, story) in [("soon", None), ("late", Some(false)), ("another controller", Some(true))] {
        let mut w = rolling_out();
        let good =
            w.world.record(&name("iris")).and_then(|record| record.rollout.serving().cloned()).expect("it serves");
        refuse(&mut w);
        w.advance();
        assert!(is_stuck(&w), "{told}");
        w.load_all();
        if let Some(takes_over) = story {
            w.after(Duration::from_secs(3_600));
            assert!(!w.plan_for(&berth_plan::Scope::All).decided());
            if takes_over {
                let info = w.world.worker(&worker_id("a")).and_then(|tracked| tracked.said.clone()).expect("a worker");
                w.take_over();
                w.world.set_worker(info);
                let held = ready(gib(1), digest_of(&good), w.now);
                w.report("a", true, vec![(good, Some(held))]);
                w.settle();
            }
        }
        w.renew("a", 1);
        w.settle();
        assert!(serves_the_new_one(&w), "{told}: {:#?}", w.status("iris"));
    }
}
