//! Stories of the brain, as tables of what happens and what it wants.

use super::*;

const EVERY: Duration = Duration::from_secs(30);

fn oid(digit: char) -> Oid {
    Oid::parse(&digit.to_string().repeat(40)).expect("forty digits")
}

fn at(seconds: u64) -> Time {
    Time(1_000_000_000_000) + Duration::from_secs(seconds)
}

fn fault(passing: bool) -> Fault {
    Fault { message: "no".to_owned(), passing }
}

/// A source that has `a` in force.
fn synced() -> Brain {
    let (mut brain, effects) = Brain::new(EVERY, None, 7, at(0));
    assert_eq!(effects, [Effect::Look]);
    assert_eq!(brain.on(Event::Looked(Ok(oid('a'))), at(0)), [Effect::Check(oid('a'))]);
    assert_eq!(brain.on(Event::Checked(Verdict::Good), at(0)), [Effect::Apply(oid('a'))]);
    assert_eq!(brain.on(Event::Applied(Ok(())), at(0)), []);
    assert_eq!((brain.applied(), brain.standing()), (Some(&oid('a')), Standing::Synced));
    brain
}

/// Asks where the branch is at the next poll, and is told.
fn poll(brain: &mut Brain, tip: char) -> (Vec<Effect>, Time) {
    let now = brain.wake_at().expect("it polls");
    assert_eq!(brain.on(Event::Tick, now), [Effect::Look]);
    (brain.on(Event::Looked(Ok(oid(tip))), now), now)
}

#[test]
fn a_poll_is_one_question_with_a_spread() {
    let mut brain = synced();
    let mut gaps = Vec::new();
    let mut last = at(0);
    // Less than ten minutes: then what is declared is compared, too.
    for _ in 0..15 {
        let (effects, now) = poll(&mut brain, 'a');
        if effects == [Effect::Settled] {
            gaps.push(now.since(last).as_secs_f64());
        }
        last = now;
    }
    assert!(gaps.iter().all(|gap| (28.4..=31.6).contains(gap)), "{gaps:?}");
    assert!(gaps.iter().any(|gap| (gap - 30.0).abs() > 0.5), "spread: {gaps:?}");
}

#[test]
fn a_bad_commit_changes_nothing_and_is_validated_once() {
    let mut brain = synced();
    let (effects, now) = poll(&mut brain, 'b');
    assert_eq!(effects, [Effect::Check(oid('b'))]);
    assert_eq!(brain.on(Event::Checked(Verdict::Refused { passing: false }), now), []);
    assert_eq!((brain.applied(), brain.standing()), (Some(&oid('a')), Standing::Refused));
    for _ in 0..5 {
        assert_eq!(poll(&mut brain, 'b').0, [], "not again");
    }
    let now = brain.wake_at().expect("it polls");
    assert_eq!(brain.on(Event::Asked, now), [Effect::Look]);
    assert_eq!(brain.on(Event::Looked(Ok(oid('b'))), now), [Effect::Check(oid('b'))], "a person insists");
    assert_eq!(brain.on(Event::Checked(Verdict::Refused { passing: false }), now), []);
    assert_eq!(poll(&mut brain, 'c').0, [Effect::Check(oid('c'))], "another one");
}

#[test]
fn going_back_to_the_last_good_commit_settles_it() {
    let mut brain = synced();
    let (_, now) = poll(&mut brain, 'b');
    brain.on(Event::Checked(Verdict::Refused { passing: false }), now);
    assert_eq!(poll(&mut brain, 'a').0, [Effect::Settled]);
    assert_eq!(brain.standing(), Standing::Synced);
}

#[test]
fn what_may_pass_is_validated_again_more_and_more_slowly() {
    let mut brain = synced();
    let (_, mut now) = poll(&mut brain, 'b');
    let mut gaps = Vec::new();
    for _ in 0..8 {
        assert_eq!(brain.on(Event::Checked(Verdict::Refused { passing: true }), now), []);
        let due = brain.validated_again().expect("again");
        gaps.push(due.since(now).as_secs());
        while now < due {
            now = brain.wake_at().expect("something");
            let effects = brain.on(Event::Tick, now);
            if effects == [Effect::Look] {
                let effects = brain.on(Event::Looked(Ok(oid('b'))), now);
                if now < due {
                    assert_eq!(effects, []);
                } else {
                    assert_eq!(effects, [Effect::Check(oid('b'))]);
                }
            } else if effects == [Effect::Apply(oid('a'))] {
                // Every ten minutes the last good one is compared with what is declared.
                brain.on(Event::Applied(Ok(())), now);
            } else {
                assert_eq!(effects, [Effect::Check(oid('b'))]);
            }
        }
    }
    assert_eq!(gaps, [15, 30, 60, 120, 240, 300, 300, 300]);
}

#[test]
fn what_controllers_wrote_is_looked_at_once() {
    let mut brain = synced();
    let (effects, now) = poll(&mut brain, 'b');
    assert_eq!(effects, [Effect::Check(oid('b'))]);
    assert_eq!(brain.on(Event::Checked(Verdict::OwnOnly), now), [Effect::Settled]);
    assert_eq!(poll(&mut brain, 'b').0, []);
    assert_eq!((brain.applied(), brain.standing()), (Some(&oid('a')), Standing::Synced));
}

#[test]
fn a_host_that_is_away_is_asked_less_and_then_left_alone() {
    let mut brain = synced();
    let mut gaps = Vec::new();
    for _ in 0..8 {
        let now = brain.wake_at().expect("it polls");
        assert_eq!(brain.on(Event::Tick, now), [Effect::Look]);
        assert_eq!(brain.on(Event::Looked(Err(fault(true))), now), []);
        gaps.push(brain.wake_at().expect("again").since(now).as_secs());
    }
    assert_eq!(gaps, [2, 4, 8, 16, 60, 64, 128, 256]);
    assert_eq!((brain.breaker(), brain.standing()), (BreakerState::Open, Standing::Retrying));
    let now = at(0) + Duration::from_secs(1);
    assert_eq!(brain.on(Event::Nudged, now), [], "a webhook does not get through an open breaker");
    let now = brain.wake_at().expect("a probe");
    assert_eq!(brain.on(Event::Tick, now), [Effect::Look]);
    assert_eq!(brain.breaker(), BreakerState::HalfOpen);
    brain.on(Event::Looked(Ok(oid('a'))), now);
    assert_eq!((brain.breaker(), brain.standing()), (BreakerState::Closed, Standing::Synced));
}

#[test]
fn what_needs_a_person_stalls() {
    let (mut brain, _) = Brain::new(EVERY, None, 7, at(0));
    brain.on(Event::Looked(Err(fault(false))), at(0));
    assert_eq!((brain.standing(), brain.wake_at()), (Standing::Stalled, Some(at(30))));
}

#[test]
fn webhooks_while_something_is_under_way_are_one() {
    let mut brain = synced();
    assert_eq!(brain.on(Event::Nudged, at(1)), [Effect::Look]);
    for _ in 0..10 {
        assert_eq!(brain.on(Event::Nudged, at(1)), []);
    }
    // The answer may be older than what they told of: looked at once more, when this one is done.
    assert_eq!(brain.on(Event::Looked(Ok(oid('b'))), at(1)), [Effect::Check(oid('b'))]);
    assert_eq!(brain.on(Event::Nudged, at(2)), []);
    assert_eq!(brain.on(Event::Checked(Verdict::Good), at(2)), [Effect::Apply(oid('b'))]);
    assert_eq!(brain.on(Event::Applied(Ok(())), at(3)), [Effect::Look]);
}

#[test]
fn the_next_leader_reads_the_last_good_commit_and_then_looks() {
    let (mut brain, effects) = Brain::new(EVERY, Some(oid('a')), 7, at(0));
    assert_eq!(effects, [Effect::Restore(oid('a'))]);
    assert_eq!(brain.on(Event::Restored(Ok(())), at(1)), [Effect::Look]);
    // The same commit is validated once by everybody: what was applied by halves is made whole.
    assert_eq!(brain.on(Event::Looked(Ok(oid('a'))), at(1)), [Effect::Check(oid('a'))]);
    assert_eq!(brain.on(Event::Checked(Verdict::Good), at(1)), [Effect::Apply(oid('a'))]);
    assert_eq!(brain.on(Event::Applied(Ok(())), at(1)), []);
    // A bad one on top: the old one stays.
    let (mut brain, _) = Brain::new(EVERY, Some(oid('a')), 7, at(0));
    brain.on(Event::Restored(Err(fault(false))), at(1));
    assert_eq!(brain.on(Event::Looked(Ok(oid('b'))), at(1)), [Effect::Check(oid('b'))]);
    assert_eq!(brain.on(Event::Checked(Verdict::Refused { passing: false }), at(1)), []);
    assert_eq!((brain.applied(), brain.standing()), (Some(&oid('a')), Standing::Refused));
}

#[test]
fn what_could_not_be_declared_is_tried_again() {
    let mut brain = synced();
    let (_, now) = poll(&mut brain, 'b');
    brain.on(Event::Checked(Verdict::Good), now);
    assert_eq!(brain.on(Event::Applied(Err(fault(true))), now), []);
    assert_eq!(brain.applied(), Some(&oid('a')));
    assert_eq!(poll(&mut brain, 'b').0, [Effect::Check(oid('b'))]);
}

#[test]
fn what_was_taken_away_by_hand_comes_back() {
    let mut brain = synced();
    let mut applied = 0;
    let mut now = at(0);
    while now < at(1_300) {
        now = brain.wake_at().expect("something");
        match brain.on(Event::Tick, now).as_slice() {
            [Effect::Look] => {
                brain.on(Event::Looked(Ok(oid('a'))), now);
            }
            [Effect::Apply(commit)] => {
                assert_eq!(*commit, oid('a'));
                applied += 1;
                brain.on(Event::Applied(Ok(())), now);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(applied, 2);
}

#[test]
fn it_never_spins() {
    let (mut brain, _) = Brain::new(EVERY, None, 7, at(0));
    let mut now = at(0);
    brain.on(Event::Looked(Err(fault(false))), now);
    for _ in 0..200 {
        let due = brain.wake_at().expect("it polls");
        assert!(due > now, "a tick that does nothing");
        now = due;
        assert_eq!(brain.on(Event::Tick, now), [Effect::Look]);
        brain.on(Event::Looked(Err(fault(false))), now);
    }
}
