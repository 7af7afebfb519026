//! Workers that ended together with the controller before: the next one has never heard them, and knows that they are gone.

use std::collections::{BTreeMap, BTreeSet};

use berth_control::controller::{AbsentWorker, SETTLE_CLUSTER};
use berth_spec::{Health, UnknownWorkers, WorkerTerms, worker::Eviction};

use super::{
    cluster::{Legacy, first_term, health, workers},
    *,
};

/// The second term, in which `w-1` says nothing; the others say what they hold.
fn without_the_first(legacy: &Legacy, restored: Restored, before: &[Health], after: &[Health]) -> Bench {
    let mut bench = Bench::new(restored);
    let [first, second, third] = workers();
    before.iter().for_each(|word| drop(bench.on(health(&first, *word))));
    for info in [&second, &third] {
        bench.on(health(info, Health::Alive));
        bench.on(Event::WorkerAttached(info.clone()));
        let report = legacy.report(info);
        bench.on(Event::Reported(report));
    }
    bench.wait(SETTLE_CLUSTER);
    bench.settle();
    after.iter().for_each(|word| drop(bench.on(health(&first, *word))));
    bench.settle();
    bench
}

/// Everything is placed elsewhere in the meantime.
fn wait(bench: &mut Bench, time: Duration) {
    for _ in 0..time.as_secs() {
        bench.wait(Duration::from_secs(1));
        bench.settle();
    }
}

fn absent(bench: &Bench) -> Vec<AbsentWorker> {
    bench.brain.absent(bench.now)
}

#[test]
fn who_died_with_the_controller_before_is_absent_with_what_it_held() {
    let legacy = first_term();
    let [first, ..] = workers();
    let held: BTreeSet<_> = legacy.held[&first.id].1.keys().map(|revision| revision.deployment().clone()).collect();
    let expected = [AbsentWorker { id: first.id.clone(), held }];
    assert!(!expected[0].held.is_empty());
    let (failed, left) = (Health::Failed, Health::Left);
    for (before, after, is_absent) in [
        // The members know it before the first plan, or only after it.
        (&[failed][..], &[][..], true),
        (&[Health::Alive], &[failed], true),
        (&[Health::Alive, Health::Suspect], &[failed], true),
        // They forget it after an hour.
        (&[failed], &[left], true),
        // It said that it goes.
        (&[Health::Alive], &[left], false),
        (&[left], &[], false),
        // They see it: it is late.
        (&[Health::Alive], &[], false),
    ] {
        let mut bench = without_the_first(&legacy, legacy.restored(), before, after);
        wait(&mut bench, Duration::from_secs(120));
        let told = absent(&bench);
        assert_eq!(told, if is_absent { &expected[..] } else { &[] }, "{before:?} {after:?}");
        if is_absent {
            let nowhere = bench.brain.world().worker(&first.id).is_none_or(|tracked| tracked.assigned.is_empty());
            assert!(nowhere, "what it held is elsewhere: {before:?} {after:?}");
        }
        bench.on(health(&first, Health::Alive));
        bench.on(Event::WorkerAttached(first.clone()));
        assert_eq!(absent(&bench), [], "it is back");
        bench.on(health(&first, Health::Failed));
        assert_eq!(absent(&bench), [], "from now on it is a worker that was lost");
    }
}

#[test]
fn whom_nobody_has_ever_seen_is_waited_for() {
    let legacy = first_term();
    let mut bench = without_the_first(&legacy, legacy.restored(), &[], &[]);
    assert_eq!(absent(&bench), [], "it may be on its way");
    wait(&mut bench, Policy::default().lost_grace);
    assert_eq!(absent(&bench).len(), 1);
}

#[test]
fn who_held_nothing_is_absent_too_and_whom_the_registry_turns_away_is_not() {
    let legacy = first_term();
    let [first, ..] = workers();
    let idle = worker("w-idle", 1);
    let terms = Arc::new(WorkerTerms {
        labels: BTreeMap::new(),
        memory: None,
        cpus: None,
        max_models: None,
        max_gpus: None,
        schema_versions: Vec::new(),
        eviction: Eviction::default(),
    });
    let others = workers().into_iter().skip(1).map(|info| (info.id, Arc::clone(&terms))).collect();
    let restored = Restored { unknown: UnknownWorkers::Refuse, terms: others, ..legacy.restored() };
    for (restored, expected) in [(legacy.restored(), vec![first.id.clone(), idle.id.clone()]), (restored, Vec::new())] {
        let mut bench = without_the_first(&legacy, restored, &[Health::Failed], &[]);
        bench.on(health(&idle, Health::Failed));
        wait(&mut bench, Duration::from_secs(120));
        let ids: Vec<_> = absent(&bench).into_iter().map(|absent| absent.id).collect();
        assert_eq!(ids, expected);
    }
}

#[test]
fn a_named_worker_is_expected_until_it_comes() {
    let legacy = first_term();
    let [first, second, ..] = workers();
    let named = [first.clone(), second.clone()].map(|info| (info.id, Arc::default()));
    let restored = Restored { terms: named.into(), ..legacy.restored() };
    // The second one attaches, the first never does.
    let mut bench = without_the_first(&legacy, restored, &[], &[]);
    let began = bench.now;
    let expected = |bench: &Bench| -> Vec<_> {
        bench.brain.expected().into_iter().map(|expected| (expected.id, expected.since)).collect()
    };
    assert_eq!(expected(&bench).iter().map(|(id, _)| id).collect::<Vec<_>>(), [&first.id]);
    let since = expected(&bench)[0].1;
    assert!(since <= began);
    wait(&mut bench, Duration::from_secs(120));
    assert_eq!(expected(&bench), [(first.id.clone(), since)], "for as long as it does not come");
    bench.on(Event::Terms { worker: first.id, terms: None });
    assert_eq!(expected(&bench), [], "nobody names it any more");
}
