//! The laws, on random worlds with random histories. Every plan is linted (capacity, true routes, explained lacks).

use std::time::Duration;

use berth_plan::{
    Scope,
    fixture::{Fixture, digest_of, name, ready, worker, worker_id, world},
    plan,
};
use berth_spec::{ByteSize, FailureCategory, Replicas, Residency, deployment::WhenFull};
use proptest::prelude::*;

/// Something that happens.
#[derive(Debug, Clone)]
enum Happening {
    Apply { which: u8, min: u32, max: u32, priority: u8, memory: Option<u8>, version: u8, recreate: bool },
    Delete(u8),
    Demand { which: u8, waiting: u32 },
    PageOut(u8),
    Progress { worker: u8, nth: u8, how: Progress },
    Lose(u8),
    Join { worker: u8, memory: u8, fresh: bool },
    Cordon { worker: u8, cordoned: bool },
    Pass(u16),
}

#[derive(Debug, Clone, Copy)]
enum Progress {
    Ready(u8),
    Failed { permanent: bool, everywhere: bool },
    OutOfMemory,
    Sized(u8),
    Gone,
}

fn happening() -> impl Strategy<Value = Happening> {
    let progress = prop_oneof![
        6 => (1_u8..12).prop_map(Progress::Ready),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(permanent, everywhere)| Progress::Failed { permanent, everywhere }),
        1 => Just(Progress::OutOfMemory),
        1 => (1_u8..12).prop_map(Progress::Sized),
        2 => Just(Progress::Gone),
    ];
    let apply = (0_u8..8, 0_u32..3, 0_u32..3, 1_u8..4, prop::option::of(1_u8..12), 0_u8..3, any::<bool>());
    prop_oneof![
        4 => apply.prop_map(|(which, min, extra, priority, memory, version, recreate)| Happening::Apply {
            which, min, max: min + extra, priority, memory, version, recreate
        }),
        1 => (0_u8..8).prop_map(Happening::Delete),
        4 => (0_u8..8, 0_u32..3).prop_map(|(which, waiting)| Happening::Demand { which, waiting }),
        1 => (0_u8..8).prop_map(Happening::PageOut),
        8 => (0_u8..4, any::<u8>(), progress).prop_map(|(worker, nth, how)| Happening::Progress { worker, nth, how }),
        1 => (0_u8..4).prop_map(Happening::Lose),
        2 => (0_u8..4, 4_u8..24, any::<bool>()).prop_map(|(worker, memory, fresh)| Happening::Join { worker, memory, fresh }),
        1 => (0_u8..4, any::<bool>()).prop_map(|(worker, cordoned)| Happening::Cordon { worker, cordoned }),
        2 => (0_u16..900).prop_map(Happening::Pass),
    ]
}

fn size(n: u8) -> ByteSize {
    ByteSize::mib(64 * u64::from(n))
}

fn happen(w: &mut Fixture, what: &Happening) {
    match what {
        Happening::Apply { which, min, max, priority, memory, version, recreate } => {
            let called = format!("m{which}");
            w.change(&called, |spec| {
                spec.replicas = Replicas { min: *min, max: *max };
                spec.priority = *priority;
                spec.memory = memory.map(size);
                spec.idle_after = (which % 2 == 0).then(|| Duration::from_secs(300));
                spec.rollout.when_full = if *recreate { WhenFull::Recreate } else { WhenFull::Wait };
                spec.model.uri = format!("file:///{which}/{version}");
            });
        }
        Happening::Delete(which) => w.world.remove_deployment(&name(&format!("m{which}"))),
        Happening::Demand { which, waiting } => w.demand(&format!("m{which}"), *waiting),
        Happening::PageOut(which) => w.world.page_out(&name(&format!("m{which}"))),
        Happening::Progress { worker, nth, how } => progress(w, &format!("w{worker}"), *nth, *how),
        Happening::Lose(worker) => w.world.lose_worker(&worker_id(&format!("w{worker}")), w.now),
        Happening::Join { worker: which, memory, fresh } => {
            let called = format!("w{which}");
            let known = w.world.worker(&worker_id(&called)).and_then(|seats| seats.info.clone());
            let mut info = worker(&called, size(*memory));
            info.incarnation = known.map_or(1, |known| known.incarnation + u64::from(*fresh));
            w.world.set_worker(info);
            if *fresh {
                w.report(&called, true, Vec::new());
            }
        }
        Happening::Cordon { worker, cordoned } => {
            let cordon = if *cordoned { berth_spec::Cordon::Cordoned } else { berth_spec::Cordon::Open };
            w.world.set_cordon(&worker_id(&format!("w{worker}")), cordon);
        }
        Happening::Pass(seconds) => w.after(Duration::from_secs((*seconds).into())),
    }
}

/// One of the replicas that a worker is assigned, or still holds, gets somewhere.
fn progress(w: &mut Fixture, on: &str, nth: u8, how: Progress) {
    let Some(seats) = w.world.worker(&worker_id(on)) else { return };
    let about: Vec<_> = seats.assigned.keys().chain(seats.inventory.keys()).cloned().collect();
    let Some(revision) = about.get(usize::from(nth) % about.len().max(1)).cloned() else { return };
    let assigned = seats.assigned.contains_key(&revision);
    let failure = |category, permanent: bool| {
        let retry_at = (!permanent).then(|| w.now + Duration::from_secs(30));
        let message = "chance".to_owned();
        Residency::Failed(berth_spec::Failure { category, message, attempts: 1, at: w.now, retry_at }.into())
    };
    let residency = match how {
        Progress::Gone if assigned => Residency::Queued,
        _ if !assigned => return w.report(on, false, vec![(revision, None)]),
        Progress::Gone => return,
        Progress::Ready(memory) => ready(size(memory), digest_of(&revision), w.now),
        Progress::Sized(total) => Residency::Fetching { done: ByteSize::ZERO, total: Some(size(total)) },
        Progress::OutOfMemory => failure(FailureCategory::Memory, false),
        Progress::Failed { permanent, everywhere } => {
            failure(if everywhere { FailureCategory::InvalidModel } else { FailureCategory::Runtime }, permanent)
        }
    };
    w.report(on, false, vec![(revision, Some(residency))]);
}

/// No replica leaves for one that matters less.
fn priorities_hold(before: &Fixture, planned: &berth_plan::Planned) {
    for event in planned.events.iter().filter(|event| event.reason == "Evicted") {
        let Some((_, whom)) = event.message.split_once("to make room for ") else { continue };
        let priority = |called: &str| before.world.deployment(&name(called)).map(|d| d.spec.priority);
        let victim = event.deployment.as_ref().expect("of a deployment");
        let (victim_has, whom_has) = (priority(victim.as_str()), priority(whom));
        assert!(victim_has <= whom_has, "{}", event.message);
        let victim = before.world.deployment(victim).expect("known");
        assert!(victim_has < whom_has || victim.spec.replicas.min == 0, "{}", event.message);
    }
}

proptest! {
    #[test]
    fn plans_are_lawful(history in prop::collection::vec(happening(), 1..60)) {
        let mut w = world().worker("w0", size(16)).worker("w1", size(12));
        for what in &history {
            happen(&mut w, what);
            let scope = w.world.due(w.now);
            let (some, all) = (plan(&w.world, &scope, w.now), plan(&w.world, &Scope::All, w.now));
            prop_assert_eq!(&some.records, &all.records, "incremental equals full, after {:?}", what);
            prop_assert_eq!(&some.assignments, &all.assignments);
            prop_assert_eq!(&some.routes, &all.routes);
            prop_assert_eq!(&some.gone, &all.gone);
            prop_assert_eq!(&some.withdrawn, &all.withdrawn);
            prop_assert_eq!(&some.readiness, &all.readiness);
            let before = w.clone();
            let planned = w.plan_for(&scope);
            priorities_hold(&before, &planned);
            prop_assert_eq!(w.world.wake_at(), planned.wake_at);
            let again = plan(&w.world, &Scope::All, w.now);
            prop_assert!(!again.decided(), "idempotent, after {:?}: {:#?}", what, again);
            prop_assert!(again.routes.is_empty() && again.events.is_empty(), "{:#?}", again);
        }
    }

    /// Once nothing happens any more and every load succeeds, everything comes to rest, and stays.
    #[test]
    fn everything_settles(history in prop::collection::vec(happening(), 1..40)) {
        let mut w = world().worker("w0", size(16)).worker("w1", size(12));
        for what in &history {
            happen(&mut w, what);
            let _ = w.plan();
        }
        for which in 0..8 {
            w.demand(&format!("m{which}"), 0);
        }
        w.after(Duration::from_secs(3600));
        w.settle();
        let stable = w.world.clone();
        w.settle();
        prop_assert_eq!(stable.generation(), w.world.generation());
        let again = w.plan_for(&Scope::All);
        prop_assert!(!again.decided(), "{:#?}", again);
    }
}
