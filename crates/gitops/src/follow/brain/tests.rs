//! Stories of the brain, as tables of what happens and what it wants.

use berth_control::source::SourceState;
use berth_spec::worker::BreakerState;

use super::*;

const POLL_INTERVAL: Duration = Duration::from_secs(30);

fn oid(digit: char) -> Oid {
    Oid::parse(&digit.to_string().repeat(40)).expect("forty digits")
}

fn at(seconds: u64) -> Time {
    Time(1_000_000_000_000) + Duration::from_secs(seconds)
}

fn fault(passing: bool) -> FollowError {
    FollowError { message: "no".to_owned(), passing }
}

fn commit(digit: char) -> CommitInfo {
    let person = berth_git::Person { name: "Ops".to_owned(), email: "ops@example.com".to_owned(), time: 0 };
    CommitInfo {
        oid: oid(digit),
        parents: Vec::new(),
        author: person.clone(),
        committer: person,
        subject: String::new(),
        body: String::new(),
        trailers: Vec::new(),
    }
}

fn candidate() -> Candidate {
    let desired = berth_registry::Desired {
        commit: None,
        author: String::new(),
        signer: None,
        time: 0,
        subject: String::new(),
        deployments: Vec::new(),
        aliases: Vec::new(),
        functions: Vec::new(),
        workers: Vec::new(),
        secret_files: Vec::new(),
        settings: berth_registry::Settings::default(),
    };
    Candidate { info: commit('a'), desired: std::sync::Arc::new(desired) }
}

fn good() -> Verdict {
    Verdict::Good(Box::new(candidate()))
}

fn refused(passing: bool) -> Verdict {
    refused_with(passing, None)
}

/// A refusal of a commit that disables these.
fn refused_with(passing: bool, idle: Option<&[&str]>) -> Verdict {
    let refusal = Refusal {
        commit: "b".repeat(40),
        author: "Ops".to_owned(),
        outcome: berth_registry::Outcome::UnpinnedRef,
        problems: vec!["it is wrong".to_owned()],
        audience: BTreeSet::new(),
        passing,
        at: at(0),
        again: None,
    };
    let idle = idle.map(|ids| ids.iter().map(|id| (*id).to_owned()).collect());
    Verdict::Refused(Box::new(RefusedCommit { info: commit('b'), refusal, idle }))
}

/// A source that has `a` in force.
fn synced() -> Brain {
    let (mut brain, effects) = Brain::new(POLL_INTERVAL, None, None, false, 7, at(0));
    assert_eq!(effects, [Effect::PollTip]);
    assert_eq!(brain.on(Event::Polled(Ok(oid('a'))), at(0)), [Effect::Validate(oid('a'))]);
    assert_eq!(brain.on(Event::Validated(good()), at(0)), [Effect::Apply(oid('a'))]);
    assert_eq!(brain.on(Event::Applied(Ok(())), at(0)), []);
    assert_eq!((brain.applied(), brain.state()), (Some(&oid('a')), SourceState::Synced));
    brain
}

/// Asks where the branch is at the next poll, and is told.
fn poll(brain: &mut Brain, tip: char) -> (Vec<Effect>, Time) {
    let now = brain.wake_at().expect("it polls");
    assert_eq!(brain.on(Event::Tick, now), [Effect::PollTip]);
    (brain.on(Event::Polled(Ok(oid(tip))), now), now)
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
    assert_eq!(effects, [Effect::Validate(oid('b'))]);
    assert_eq!(brain.on(Event::Validated(refused(false)), now), []);
    assert_eq!((brain.applied(), brain.state()), (Some(&oid('a')), SourceState::Refused));
    for _ in 0..5 {
        assert_eq!(poll(&mut brain, 'b').0, [], "not again");
    }
    let now = brain.wake_at().expect("it polls");
    assert_eq!(brain.on(Event::Sync, now), [Effect::PollTip]);
    assert_eq!(brain.on(Event::Polled(Ok(oid('b'))), now), [Effect::Validate(oid('b'))], "a person insists");
    assert_eq!(brain.on(Event::Validated(refused(false)), now), []);
    assert_eq!(poll(&mut brain, 'c').0, [Effect::Validate(oid('c'))], "another one");
}

#[test]
fn going_back_to_the_last_good_commit_settles_it() {
    let mut brain = synced();
    let (_, now) = poll(&mut brain, 'b');
    brain.on(Event::Validated(refused(false)), now);
    assert_eq!(poll(&mut brain, 'a').0, [Effect::Settled]);
    assert_eq!(brain.state(), SourceState::Synced);
}

#[test]
fn what_may_pass_is_validated_again_more_and_more_slowly() {
    let mut brain = synced();
    let (_, mut now) = poll(&mut brain, 'b');
    let mut gaps = Vec::new();
    for _ in 0..8 {
        assert_eq!(brain.on(Event::Validated(refused(true)), now), []);
        let due = brain.validated_again().expect("again");
        gaps.push(due.since(now).as_secs());
        while now < due {
            now = brain.wake_at().expect("something");
            let effects = brain.on(Event::Tick, now);
            if effects == [Effect::PollTip] {
                let effects = brain.on(Event::Polled(Ok(oid('b'))), now);
                if now < due {
                    assert_eq!(effects, []);
                } else {
                    assert_eq!(effects, [Effect::Validate(oid('b'))]);
                }
            } else if effects == [Effect::Apply(oid('a'))] {
                // Every ten minutes the last good one is compared with what is declared.
                brain.on(Event::Applied(Ok(())), now);
            } else {
                assert_eq!(effects, [Effect::Validate(oid('b'))]);
            }
        }
    }
    assert_eq!(gaps, [15, 30, 60, 120, 240, 300, 300, 300]);
}

#[test]
fn what_controllers_wrote_is_looked_at_once() {
    let mut brain = synced();
    let (effects, now) = poll(&mut brain, 'b');
    assert_eq!(effects, [Effect::Validate(oid('b'))]);
    assert_eq!(brain.on(Event::Validated(Verdict::OwnOnly), now), [Effect::Settled]);
    assert_eq!(poll(&mut brain, 'b').0, []);
    assert_eq!((brain.applied(), brain.state()), (Some(&oid('a')), SourceState::Synced));
}

#[test]
fn a_host_that_is_away_is_asked_less_and_then_left_alone() {
    let mut brain = synced();
    let mut gaps = Vec::new();
    for _ in 0..8 {
        let now = brain.wake_at().expect("it polls");
        assert_eq!(brain.on(Event::Tick, now), [Effect::PollTip]);
        assert_eq!(brain.on(Event::Polled(Err(fault(true))), now), []);
        gaps.push(brain.wake_at().expect("again").since(now).as_secs());
    }
    assert_eq!(gaps, [2, 4, 8, 16, 60, 64, 128, 256]);
    assert_eq!((brain.breaker(), brain.state()), (BreakerState::Open, SourceState::Retrying));
    let now = at(0) + Duration::from_secs(1);
    assert_eq!(brain.on(Event::Webhook, now), [], "a webhook does not get through an open breaker");
    let now = brain.wake_at().expect("a probe");
    assert_eq!(brain.on(Event::Tick, now), [Effect::PollTip]);
    assert_eq!(brain.breaker(), BreakerState::HalfOpen);
    brain.on(Event::Polled(Ok(oid('a'))), now);
    assert_eq!((brain.breaker(), brain.state()), (BreakerState::Closed, SourceState::Synced));
}

#[test]
fn a_person_who_asks_while_the_host_is_away_is_answered_when_it_is_back() {
    let mut brain = synced();
    let (_, now) = poll(&mut brain, 'b');
    brain.on(Event::Validated(refused(false)), now);
    assert_eq!(brain.on(Event::Sync, now), [Effect::PollTip]);
    assert_eq!(brain.on(Event::Polled(Err(fault(true))), now), []);
    let (effects, now) = poll(&mut brain, 'b');
    assert_eq!(effects, [Effect::Validate(oid('b'))], "it was refused, and is validated again all the same");
    brain.on(Event::Validated(Verdict::Failed(fault(true))), now);
    let (effects, now) = poll(&mut brain, 'b');
    assert_eq!(effects, [Effect::Validate(oid('b'))], "that could not be done either");
    brain.on(Event::Validated(refused(false)), now);
    assert_eq!(poll(&mut brain, 'b').0, [], "answered");
    // Asked once more while the answer is on its way: that may not be in it.
    let now = brain.wake_at().expect("it polls");
    assert_eq!(brain.on(Event::Sync, now), [Effect::PollTip]);
    assert_eq!(brain.on(Event::Sync, now), []);
    assert_eq!(brain.on(Event::Polled(Err(fault(true))), now), [Effect::PollTip]);
    assert_eq!(brain.on(Event::Polled(Err(fault(true))), now), [], "and no more often");
}

#[test]
fn what_needs_a_person_stalls() {
    let (mut brain, _) = Brain::new(POLL_INTERVAL, None, None, false, 7, at(0));
    brain.on(Event::Polled(Err(fault(false))), at(0));
    assert_eq!((brain.state(), brain.wake_at()), (SourceState::Stalled, Some(at(30))));
}

#[test]
fn webhooks_while_something_is_under_way_are_one() {
    let mut brain = synced();
    assert_eq!(brain.on(Event::Webhook, at(1)), [Effect::PollTip]);
    for _ in 0..10 {
        assert_eq!(brain.on(Event::Webhook, at(1)), []);
    }
    // The answer may be older than what they told of: looked at once more, when this one is done.
    assert_eq!(brain.on(Event::Polled(Ok(oid('b'))), at(1)), [Effect::Validate(oid('b'))]);
    assert_eq!(brain.on(Event::Webhook, at(2)), []);
    assert_eq!(brain.on(Event::Validated(good()), at(2)), [Effect::Apply(oid('b'))]);
    assert_eq!(brain.on(Event::Applied(Ok(())), at(3)), [Effect::PollTip]);
}

#[test]
fn the_next_leader_reads_the_last_good_commit_and_then_looks() {
    let (mut brain, effects) = Brain::new(POLL_INTERVAL, Some(oid('a')), None, false, 7, at(0));
    assert_eq!(effects, [Effect::Restore(oid('a'))]);
    assert_eq!(brain.on(Event::Restored(Ok(())), at(1)), [Effect::PollTip]);
    // The same commit is validated once by everybody: what was applied by halves is made whole.
    assert_eq!(brain.on(Event::Polled(Ok(oid('a'))), at(1)), [Effect::Validate(oid('a'))]);
    assert_eq!(brain.on(Event::Validated(good()), at(1)), [Effect::Apply(oid('a'))]);
    assert_eq!(brain.on(Event::Applied(Ok(())), at(1)), []);
}

#[test]
fn under_a_bad_commit_the_next_leader_declares_the_last_good_one() {
    let is_refused = |brain: &mut Brain, now| {
        assert_eq!(brain.on(Event::Polled(Ok(oid('b'))), now), [Effect::Validate(oid('b'))]);
        brain.on(Event::Validated(refused(false)), now)
    };
    // The leader before may have ended in the midst of declaring another one.
    let (mut brain, _) = Brain::new(POLL_INTERVAL, Some(oid('a')), None, false, 7, at(0));
    brain.on(Event::Restored(Ok(())), at(1));
    assert_eq!(is_refused(&mut brain, at(1)), [Effect::Revalidate(oid('a'))]);
    assert_eq!(brain.on(Event::Revalidated(Ok(Box::new(candidate()))), at(2)), [Effect::Apply(oid('a'))]);
    brain.on(Event::Applied(Ok(())), at(3));
    assert_eq!((brain.applied(), brain.state()), (Some(&oid('a')), SourceState::Refused));

    // It can neither be read nor validated for a while: workers need its credentials, so it is tried again.
    let (mut brain, _) = Brain::new(POLL_INTERVAL, Some(oid('a')), None, false, 7, at(0));
    brain.on(Event::Restored(Err(fault(true))), at(1));
    is_refused(&mut brain, at(1));
    assert_eq!((brain.applied(), brain.state()), (Some(&oid('a')), SourceState::Refused));
    assert_eq!(poll(&mut brain, 'b').0, [], "not yet");
    assert_eq!(brain.on(Event::Tick, at(61)), [Effect::PollTip]);
    assert_eq!(brain.on(Event::Polled(Ok(oid('b'))), at(61)), [Effect::Restore(oid('a'))]);
    assert_eq!(brain.on(Event::Restored(Ok(())), at(62)), [Effect::Revalidate(oid('a'))]);
    assert_eq!(brain.on(Event::Revalidated(Err(fault(true))), at(63)), []);
    assert_eq!(brain.on(Event::Tick, at(123)), [Effect::PollTip]);
    assert_eq!(brain.on(Event::Polled(Ok(oid('c'))), at(123)), [Effect::Validate(oid('c'))]);
    assert_eq!(brain.on(Event::Validated(good()), at(123)), [Effect::Apply(oid('c'))], "a good one is better");

    // The host is away: what is known of the last good one is enough.
    let (mut brain, _) = Brain::new(POLL_INTERVAL, Some(oid('a')), None, false, 7, at(0));
    brain.on(Event::Restored(Ok(())), at(1));
    assert_eq!(brain.on(Event::Polled(Err(fault(true))), at(1)), [Effect::Revalidate(oid('a'))]);
}

#[test]
fn what_could_not_be_declared_is_tried_again_whatever_git_does() {
    let mut brain = synced();
    let (_, mut now) = poll(&mut brain, 'b');
    brain.on(Event::Validated(good()), now);
    let mut gaps = Vec::new();
    for _ in 0..6 {
        assert_eq!(brain.on(Event::Applied(Err(fault(true))), now), []);
        assert_eq!((brain.applied(), brain.state()), (Some(&oid('a')), SourceState::Retrying));
        assert_eq!(brain.breaker(), BreakerState::Closed, "the store is not the host");
        let failed = now;
        loop {
            now = brain.wake_at().expect("something");
            match brain.on(Event::Tick, now).as_slice() {
                // The branch goes back and forth, or cannot be asked: what has passed is owed all the same.
                [Effect::PollTip] if gaps.len() == 5 => {
                    if brain.on(Event::Polled(Ok(oid('c'))), now) == [Effect::Validate(oid('c'))] {
                        brain.on(Event::Validated(refused(false)), now);
                    }
                }
                [Effect::PollTip] => drop(brain.on(Event::Polled(Ok(oid('b'))), now)),
                [Effect::Apply(commit)] => break assert_eq!(*commit, oid('b')),
                other => panic!("{other:?}"),
            }
        }
        gaps.push(now.since(failed).as_secs());
    }
    assert_eq!(gaps, [2, 4, 8, 16, 32, 64]);
    brain.on(Event::Applied(Ok(())), now);
    assert_eq!((brain.applied(), brain.state()), (Some(&oid('b')), SourceState::Refused), "c is no better for it");
}

#[test]
fn going_back_while_a_commit_is_owed_undoes_what_was_declared_of_it() {
    let mut brain = synced();
    let (_, now) = poll(&mut brain, 'b');
    brain.on(Event::Validated(good()), now);
    brain.on(Event::Applied(Err(fault(true))), now);
    assert_eq!(brain.on(Event::Sync, now), [Effect::PollTip]);
    assert_eq!(brain.on(Event::Polled(Ok(oid('a'))), now), [Effect::Validate(oid('a'))], "it may be there by halves");
    assert_eq!(brain.on(Event::Validated(good()), now), [Effect::Apply(oid('a'))]);
}

#[test]
fn a_commit_that_cannot_be_read_is_tried_more_and_more_slowly_though_the_branch_answers() {
    let mut brain = synced();
    let (mut now, mut gaps) = (at(0), Vec::new());
    for _ in 0..6 {
        let (effects, polled) = poll(&mut brain, 'b');
        gaps.push(polled.since(now).as_secs());
        now = polled;
        assert_eq!(effects, [Effect::Validate(oid('b'))]);
        brain.on(Event::Validated(Verdict::Failed(fault(true))), now);
        assert_eq!(brain.state(), SourceState::Retrying);
    }
    assert_eq!(gaps[1..], [2, 4, 8, 16, 60]);
    assert_eq!(brain.breaker(), BreakerState::Open);
    let (_, now) = poll(&mut brain, 'b');
    brain.on(Event::Validated(good()), now);
    assert_eq!(brain.breaker(), BreakerState::Closed);
}

#[test]
fn a_storm_of_webhooks_asks_once_a_second_and_none_is_lost() {
    let mut brain = synced();
    let (mut looks, mut now) = (0, at(1));
    while now < at(11) {
        now = now + Duration::from_millis(10);
        if brain.on(Event::Webhook, now) == [Effect::PollTip] {
            looks += 1;
            brain.on(Event::Polled(Ok(oid('a'))), now);
        }
    }
    assert!((9..=11).contains(&looks), "{looks}");
    // One that comes while the branch is asked may tell of what the answer does not have.
    let now = at(20);
    assert_eq!(brain.on(Event::Webhook, now), [Effect::PollTip]);
    brain.on(Event::Webhook, now);
    brain.on(Event::Polled(Ok(oid('a'))), now);
    let due = brain.wake_at().expect("soon");
    assert_eq!((due, brain.on(Event::Tick, due)), (at(21), vec![Effect::PollTip]));
}

#[test]
fn what_was_taken_away_by_hand_comes_back() {
    let mut brain = synced();
    let mut applied = 0;
    let mut now = at(0);
    while now < at(1_300) {
        now = brain.wake_at().expect("something");
        match brain.on(Event::Tick, now).as_slice() {
            [Effect::PollTip] => {
                brain.on(Event::Polled(Ok(oid('a'))), now);
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
    let (mut brain, _) = Brain::new(POLL_INTERVAL, None, None, false, 7, at(0));
    let mut now = at(0);
    brain.on(Event::Polled(Err(fault(false))), now);
    for _ in 0..200 {
        let due = brain.wake_at().expect("it polls");
        assert!(due > now, "a tick that does nothing");
        now = due;
        assert_eq!(brain.on(Event::Tick, now), [Effect::PollTip]);
        brain.on(Event::Polled(Err(fault(false))), now);
    }
}

#[test]
fn a_paused_source_reads_what_workers_need_and_nothing_else() {
    let (mut brain, effects) = Brain::new(POLL_INTERVAL, Some(oid('a')), None, true, 7, at(0));
    assert_eq!(effects, [Effect::Restore(oid('a'))]);
    assert_eq!(brain.on(Event::Restored(Err(fault(true))), at(1)), []);
    assert_eq!(brain.wake_at(), Some(at(61)));
    assert_eq!(brain.on(Event::Tick, at(61)), [Effect::Restore(oid('a'))]);
    assert_eq!(brain.on(Event::Restored(Ok(())), at(62)), []);
    assert_eq!((brain.wake_at(), brain.on(Event::Webhook, at(63))), (None, vec![]));
    assert_eq!(brain.on(Event::Sync, at(64)), [], "a person has to resume it first");
    assert_eq!(brain.on(Event::Resume, at(65)), [Effect::PollTip]);
    assert_eq!(brain.on(Event::Polled(Ok(oid('b'))), at(65)), [Effect::Validate(oid('b'))]);
    // Paused while a commit is validated: it is declared when the source is resumed.
    assert_eq!(brain.on(Event::Pause, at(66)), []);
    assert_eq!(brain.on(Event::Validated(good()), at(67)), []);
    assert_eq!(brain.on(Event::Tick, at(7_000)), []);
    assert_eq!(brain.on(Event::Resume, at(7_001)), [Effect::PollTip]);
    assert_eq!(brain.on(Event::Polled(Ok(oid('b'))), at(7_001)), [Effect::Validate(oid('b'))], "it may be long ago");
    assert_eq!(brain.on(Event::Validated(good()), at(7_002)), [Effect::Apply(oid('b'))]);
}

#[test]
fn what_a_refused_commit_disables_stops_at_once_until_that_is_taken_back() {
    let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<String>>();
    let disable = |of: char, them: &[&str]| Effect::Disable(Box::new(commit(of)), ids(them));
    let mut brain = synced();
    let (_, now) = poll(&mut brain, 'b');
    let effects = brain.on(Event::Validated(refused_with(false, Some(&["bug"]))), now);
    assert_eq!(effects, [disable('b', &["bug"])]);
    assert_eq!(brain.stop_beside(&oid('a')).map(|stop| stop.ids.clone()), Some(ids(&["bug"])));
    assert_eq!(brain.refusal().map(|refusal| refusal.author.as_str()), Some("Ops"));
    // What controllers write on top of it makes it no better.
    let (_, now) = poll(&mut brain, 'c');
    assert_eq!(brain.on(Event::Validated(Verdict::OwnOnly), now), []);
    assert_eq!((brain.state(), brain.examined()), (SourceState::Refused, Some(&oid('c'))));
    // Back at the commit in force: declared again, as it says.
    let (effects, _) = poll(&mut brain, 'a');
    assert_eq!(effects, [Effect::Settled, Effect::Apply(oid('a'))]);
    assert_eq!((brain.stop_beside(&oid('a')), brain.refusal()), (None, None));
}

#[test]
fn an_emergency_found_while_a_commit_is_validated_outlives_it() {
    let mut brain = synced();
    let (_, now) = poll(&mut brain, 'b');
    let head =
        |behind: char| HeadReport { info: Box::new(commit('c')), behind: oid(behind), idle: vec!["bug".to_owned()] };
    assert_eq!(brain.on(Event::HeadRead(head('a')), now), [], "it comes late");
    let disabled = brain.on(Event::HeadRead(head('b')), now);
    assert!(matches!(disabled.as_slice(), [Effect::Disable(info, _)] if info.oid == oid('c')), "{disabled:?}");
    assert_eq!(brain.on(Event::Validated(good()), now), [Effect::Apply(oid('b'))]);
    assert!(brain.stop_beside(&oid('b')).is_some(), "b is older than what c disables");
    brain.on(Event::Applied(Ok(())), now);
    let (_, now) = poll(&mut brain, 'c');
    brain.on(Event::Validated(good()), now);
    assert!(brain.stop_beside(&oid('b')).is_none(), "c has its own say");
}
