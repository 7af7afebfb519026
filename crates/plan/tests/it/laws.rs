//! The laws, on random worlds with random histories. Every plan is linted (capacity, true routes, explained lacks).

pub(crate) mod registered;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use berth_plan::{
    Policy, Scope,
    fixture::{Fixture, died, digest_of, loaded_in, name, worker, worker_id, world, world_with},
    plan,
};
use berth_spec::{
    ByteSize, Cordon, FailureCategory, GatewayId, Gpu, Load, Replicas, Residency, Spec, UnknownWorkers,
    deployment::{GpuNeed, ModelFormat, Percent, Selector, Spread, WhenFull},
    member::{REGION, ZONE},
};
use proptest::prelude::*;

/// Something that happens.
#[derive(Debug, Clone)]
enum Happening {
    Apply {
        which: u8,
        min: u32,
        max: u32,
        priority: u8,
        memory: Option<u8>,
        version: u8,
        recreate: bool,
        canary: Option<u32>,
    },
    /// Another share for the new revision of a canary; `None` promotes it.
    Share {
        which: u8,
        percent: Option<u32>,
    },
    Place {
        which: u8,
        how: Placing,
    },
    Delete(u8),
    Demand {
        which: u8,
        gateway: u8,
        waiting: u32,
        in_flight: u32,
        requests: u16,
    },
    ForgetGateway(u8),
    PageOut(u8),
    Progress {
        worker: u8,
        nth: u8,
        how: Progress,
    },
    Lose(u8),
    Detach(u8),
    Leave(u8),
    /// Another controller takes over; the members see those workers whose bit is set.
    TakeOver(u8),
    Assume(u8),
    Join {
        worker: u8,
        memory: u8,
        fresh: bool,
        hardware: Hardware,
    },
    Load {
        worker: u8,
        queue: u8,
        requests_per_minute: u16,
    },
    /// Its process takes so much beside its models.
    Overhead {
        worker: u8,
        memory: u8,
    },
    Cordon {
        worker: u8,
        cordon: Cordon,
    },
    /// The registry says something of a worker, or nothing any more.
    Terms {
        worker: u8,
        terms: Option<registered::Terms>,
    },
    Unknown(UnknownWorkers),
    Pass(u16),
}

/// The constraints on where a deployment's replicas may be.
#[derive(Debug, Clone)]
enum Placing {
    Cpu(Option<u8>),
    Gpu(Option<(u8, bool, u8)>),
    /// Bounds for `eu` and `us`.
    Regions(Option<[(u32, u32); 2]>),
    Typed(bool),
    Labelled(bool),
    Preferring(bool),
    Pinned(bool),
    Colocation(bool),
    /// The model has a card, of one of two versions.
    Card(Option<bool>),
    /// Another format than ONNX, with a runtime of its own.
    Python(bool),
}

/// The hardware of a worker beside memory.
#[derive(Debug, Clone, Copy)]
struct Hardware {
    cores: u8,
    gpus: u8,
    max_models: Option<u8>,
    newer: bool,
    labelled: bool,
    /// Limits of its runtime for ONNX: memory, device memory, models.
    runtime: Option<(u8, u8, u8)>,
}

#[derive(Debug, Clone, Copy)]
enum Progress {
    Ready(u8),
    Failed {
        permanent: bool,
        everywhere: bool,
    },
    OutOfMemory,
    Sized(u8),
    Gone,
    /// Its process is up again, or dies.
    Up(bool),
}

fn happening() -> impl Strategy<Value = Happening> {
    let progress = prop_oneof![
        6 => (1_u8..12).prop_map(Progress::Ready),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(permanent, everywhere)| Progress::Failed { permanent, everywhere }),
        1 => Just(Progress::OutOfMemory),
        1 => (1_u8..12).prop_map(Progress::Sized),
        2 => Just(Progress::Gone),
        2 => any::<bool>().prop_map(Progress::Up),
    ];
    let memory = || prop::option::of(1_u8..12);
    let percent = || prop::option::of(0_u32..100);
    let apply = (0_u8..8, 0_u32..3, 0_u32..3, 1_u8..4, memory(), 0_u8..3, any::<bool>(), percent());
    let demand = (0_u8..8, 0_u8..3, 0_u32..3, 0_u32..3, 0_u16..2_000);
    prop_oneof![
        4 => apply.prop_map(|(which, min, extra, priority, memory, version, recreate, canary)| Happening::Apply {
            which, min, max: min + extra, priority, memory, version, recreate, canary
        }),
        2 => (0_u8..8, percent()).prop_map(|(which, percent)| Happening::Share { which, percent }),
        3 => (0_u8..8, placing()).prop_map(|(which, how)| Happening::Place { which, how }),
        1 => (0_u8..8).prop_map(Happening::Delete),
        4 => demand.prop_map(|(which, gateway, waiting, in_flight, requests)| Happening::Demand {
            which, gateway, waiting, in_flight, requests
        }),
        1 => (0_u8..3).prop_map(Happening::ForgetGateway),
        1 => (0_u8..8).prop_map(Happening::PageOut),
        8 => (0_u8..4, any::<u8>(), progress).prop_map(|(worker, nth, how)| Happening::Progress { worker, nth, how }),
        1 => (0_u8..4).prop_map(Happening::Lose),
        1 => (0_u8..4).prop_map(Happening::Detach),
        1 => (0_u8..4).prop_map(Happening::Leave),
        1 => (0_u8..16).prop_map(Happening::TakeOver),
        1 => (0_u8..4).prop_map(Happening::Assume),
        2 => (0_u8..4, 4_u8..24, any::<bool>(), hardware()).prop_map(|(worker, memory, fresh, hardware)| {
            Happening::Join { worker, memory, fresh, hardware }
        }),
        1 => (0_u8..4, 0_u8..20, 0_u16..2_000).prop_map(|(worker, queue, requests_per_minute)| {
            Happening::Load { worker, queue, requests_per_minute }
        }),
        2 => (0_u8..4, 0_u8..12).prop_map(|(worker, memory)| Happening::Overhead { worker, memory }),
        1 => (0_u8..4, prop_oneof![Just(Cordon::Open), Just(Cordon::Cordoned), Just(Cordon::Draining)])
            .prop_map(|(worker, cordon)| Happening::Cordon { worker, cordon }),
        2 => (0_u8..4, prop::option::of(registered::terms()))
            .prop_map(|(worker, terms)| Happening::Terms { worker, terms }),
        1 => registered::unknown().prop_map(Happening::Unknown),
        2 => (0_u16..900).prop_map(Happening::Pass),
    ]
}

fn placing() -> impl Strategy<Value = Placing> {
    let bounds = || (0_u32..3, 0_u32..2).prop_map(|(min, more)| (min, min + more));
    prop_oneof![
        prop::option::of(0_u8..5).prop_map(Placing::Cpu),
        prop::option::of((1_u8..3, any::<bool>(), 0_u8..3)).prop_map(Placing::Gpu),
        prop::option::of([bounds(), bounds()]).prop_map(Placing::Regions),
        any::<bool>().prop_map(Placing::Typed),
        any::<bool>().prop_map(Placing::Labelled),
        any::<bool>().prop_map(Placing::Preferring),
        any::<bool>().prop_map(Placing::Pinned),
        any::<bool>().prop_map(Placing::Colocation),
        prop::option::of(any::<bool>()).prop_map(Placing::Card),
        any::<bool>().prop_map(Placing::Python),
    ]
}

fn hardware() -> impl Strategy<Value = Hardware> {
    let runtime = prop::option::of((1_u8..20, 0_u8..6, 1_u8..5));
    (1_u8..5, 0_u8..4, prop::option::of(1_u8..5), any::<bool>(), any::<bool>(), runtime).prop_map(
        |(cores, gpus, max_models, newer, labelled, runtime)| Hardware {
            cores,
            gpus,
            max_models,
            newer,
            labelled,
            runtime,
        },
    )
}

fn size(n: u8) -> ByteSize {
    ByteSize::mib(64 * u64::from(n))
}

fn happen(w: &mut Fixture, what: &Happening) {
    match what {
        Happening::Apply { which, min, max, priority, memory, version, recreate, canary } => {
            let called = format!("m{which}");
            w.change(&called, |spec| {
                spec.regions.clear();
                spec.replicas = Replicas { min: *min, max: *max };
                spec.priority = *priority;
                spec.memory = memory.map(size);
                spec.idle_after = (which % 2 == 0).then(|| Duration::from_secs(300));
                spec.rollout.when_full = if *recreate { WhenFull::Recreate } else { WhenFull::Wait };
                spec.rollout.canary = canary.and_then(Percent::new);
                spec.model.uri = format!("file:///{which}/{version}").into();
            });
        }
        Happening::Share { which, percent } => {
            w.change(&format!("m{which}"), |spec| spec.rollout.canary = percent.and_then(Percent::new));
        }
        Happening::Place { which, how } => w.change(&format!("m{which}"), |spec| place(spec, how)),
        Happening::Delete(which) => w.world.remove_deployment(&name(&format!("m{which}"))),
        Happening::Demand { which, gateway, waiting, in_flight, requests } => {
            let region = [None, Some("eu"), Some("us")][usize::from(*gateway)].map(str::to_owned);
            w.world.set_gateway(GatewayId((*gateway).into()), region);
            w.used((*gateway).into(), &format!("m{which}"), *waiting, *in_flight, (*requests).into());
        }
        Happening::ForgetGateway(gateway) => w.world.forget_gateway(GatewayId((*gateway).into())),
        Happening::PageOut(which) => w.world.page_out(&name(&format!("m{which}")), w.now),
        Happening::Progress { worker, nth, how } => progress(w, &format!("w{worker}"), *nth, *how),
        Happening::Lose(worker) => w.world.lose_worker(&worker_id(&format!("w{worker}")), w.now),
        Happening::Detach(worker) => w.detach(&format!("w{worker}")),
        Happening::Leave(worker) => {
            let called = format!("w{worker}");
            if w.world.worker(&worker_id(&called)).is_some_and(|tracked| tracked.reported) {
                w.leave(&called);
            }
        }
        Happening::TakeOver(seen) => {
            w.take_over();
            for worker in (0..4_u8).filter(|worker| seen & (1 << worker) != 0) {
                w.assume(&format!("w{worker}"));
            }
            w.advance();
        }
        Happening::Assume(worker) => w.assume(&format!("w{worker}")),
        Happening::Join { worker, memory, fresh, hardware } => join(w, *worker, *memory, *fresh, *hardware),
        Happening::Load { worker, queue, requests_per_minute } => {
            let called = format!("w{worker}");
            if w.world.worker(&worker_id(&called)).is_some() {
                let (queue, requests_per_minute) = ((*queue).into(), (*requests_per_minute).into());
                w.loaded(&called, Load { queue, requests_per_minute, ..Load::default() });
            }
        }
        Happening::Overhead { worker, memory } => {
            let called = format!("w{worker}");
            if w.world.worker(&worker_id(&called)).is_some_and(|tracked| tracked.reported) {
                w.overhead(&called, size(*memory));
            }
        }
        Happening::Cordon { worker, cordon } => w.world.set_cordon(&worker_id(&format!("w{worker}")), *cordon),
        Happening::Terms { worker, terms } => {
            let terms = terms.as_ref().map(|terms| Arc::new(terms.of_worker()));
            w.world.set_terms(&worker_id(&format!("w{worker}")), terms);
        }
        Happening::Unknown(unknown) => w.world.set_unknown_workers(*unknown),
        Happening::Pass(seconds) => w.after(Duration::from_secs((*seconds).into())),
    }
}

fn place(spec: &mut Spec, how: &Placing) {
    match how {
        Placing::Cpu(cpu) => spec.cpu = cpu.map(|cpu| f32::from(cpu) * 0.7),
        Placing::Gpu(need) => {
            spec.gpu = need.map(|(count, kind, memory)| GpuNeed {
                count: count.into(),
                kind: kind.then(|| "even".to_owned()),
                memory: (memory > 0).then(|| ByteSize::gib(memory.into())),
            });
        }
        Placing::Regions(None) => spec.regions.clear(),
        Placing::Regions(Some(bounds)) => {
            let regions = ["eu", "us"].into_iter().zip(bounds);
            spec.regions =
                regions.map(|(region, (min, max))| (region.to_owned(), Replicas { min: *min, max: *max })).collect();
            let sum = |of: fn(&Replicas) -> u32| spec.regions.values().map(of).sum();
            spec.replicas = Replicas { min: sum(|each| each.min), max: sum(|each| each.max) };
        }
        Placing::Typed(yes) => spec.model_type = yes.then(|| "special".into()),
        Placing::Labelled(yes) => mark(&mut spec.selector.required, *yes),
        Placing::Preferring(yes) => mark(&mut spec.selector.preferred, *yes),
        Placing::Pinned(yes) => spec.pinned = *yes,
        Placing::Python(yes) => {
            spec.model.format = if *yes { ModelFormat::PYTHON } else { ModelFormat::ONNX };
        }
        Placing::Card(newer) => spec.model.card = newer.map(registered::card),
        Placing::Colocation(yes) => spec.spread = if *yes { Spread::Worker } else { Spread::Zone },
    }
}

fn mark(labels: &mut BTreeMap<String, String>, yes: bool) {
    labels.clear();
    if yes {
        labels.insert("pool".to_owned(), "blue".to_owned());
    }
}

/// Workers 0 and 1 are in `eu`, 2 in `us`, 3 nowhere.
fn join(w: &mut Fixture, which: u8, memory: u8, fresh: bool, hardware: Hardware) {
    let called = format!("w{which}");
    let known = w.world.worker(&worker_id(&called)).and_then(|tracked| tracked.info.clone());
    let mut info = worker(&called, size(memory));
    info.incarnation = known.map_or(1, |known| known.incarnation + u64::from(fresh));
    info.cpus = hardware.cores.into();
    let gpu = |n: u8| Gpu {
        id: n.to_string(),
        kind: if n.is_multiple_of(2) { "even" } else { "odd" }.to_owned(),
        memory: ByteSize::gib(n.into()),
    };
    info.gpus = (0..hardware.gpus).map(gpu).collect();
    info.max_models = hardware.max_models.map(u32::from);
    info.version = if hardware.newer { "0.2.0" } else { "0.1.9" }.to_owned();
    if let Some((memory, device, models)) = hardware.runtime {
        info.runtimes[0].memory = Some(size(memory));
        info.runtimes[0].device_memory = Some(ByteSize::gib(device.into()));
        info.runtimes[0].max_models = Some(models.into());
    }
    mark(&mut info.labels, hardware.labelled);
    if let Some(region) = ["eu", "eu", "us"].get(usize::from(which)) {
        info.labels.insert(REGION.to_owned(), (*region).to_owned());
        info.labels.insert(ZONE.to_owned(), which.to_string());
    }
    w.world.set_worker(info);
    if fresh {
        w.report(&called, true, Vec::new());
    }
}

/// The world that each history begins with.
fn start() -> Fixture {
    let special = Selector { required: [("pool".to_owned(), "blue".to_owned())].into(), ..Selector::default() };
    let types = [("special".to_owned(), special)].into();
    let policy = Policy { min_residence: Duration::ZERO, residence_per_load_percent: 0, ..Policy::default() };
    world_with(Policy { types, ..policy }).worker("w0", size(16)).worker("w1", size(12))
}

/// One of the replicas that a worker is assigned, or still holds, gets somewhere.
fn progress(w: &mut Fixture, on: &str, nth: u8, how: Progress) {
    let Some(tracked) = w.world.worker(&worker_id(on)) else { return };
    let about: Vec<_> = tracked.assigned.keys().chain(tracked.inventory.keys()).cloned().collect();
    let Some(revision) = about.get(usize::from(nth) % about.len().max(1)).cloned() else { return };
    let assigned = tracked.assigned.contains_key(&revision);
    let failure = |category, permanent: bool| {
        let retry_at = (!permanent).then(|| w.now + Duration::from_secs(30));
        let message = "chance".to_owned();
        Residency::Failed(
            berth_spec::Failure {
                category,
                message,
                attempts: 1,
                at: w.now,
                retry_at,
                trace: None,
                history: Vec::new(),
                needs: None,
            }
            .into(),
        )
    };
    let residency = match how {
        Progress::Gone if assigned => Residency::Queued,
        _ if !assigned => return w.report(on, false, vec![(revision, None)]),
        Progress::Gone => return,
        Progress::Up(up) => {
            let again = (!up).then_some(Duration::from_secs(30));
            match tracked.inventory.get(&revision).and_then(|residency| died(residency, again, w.now)) {
                Some(residency) => residency,
                None => return,
            }
        }
        // Loads of all lengths, so that victims are chosen by them; a policy below keeps none of them from leaving.
        Progress::Ready(memory) => {
            loaded_in(Duration::from_millis(1 << (nth % 16)), size(memory), digest_of(&revision), w.now)
        }
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
        // One copy of several may leave for its equal, whatever the deployment is.
        let copies = before.placed(victim.as_str()).len();
        let victim = before.world.deployment(victim).expect("known");
        let least = victim.spec.replicas.min as usize;
        assert!(victim_has < whom_has || least == 0 || copies > least, "{}", event.message);
    }
}

proptest! {
    /// Whatever the shares are, and in whichever order they come: they change routes, and a canary ends with its author alone.
    #[test]
    fn shares_change_routes_alone(
        (copies, on_demand) in (1_u32..4, any::<bool>()),
        shares in prop::collection::vec(0_u32..100, 2..6),
        promotes in any::<bool>(),
    ) {
        let mut w = ["a", "b", "c"].iter().fold(world(), |w, worker| w.worker(worker, ByteSize::gib(4)));
        let version = |w: &mut Fixture, version: u8, share: u32| {
            w.change("iris", |spec| {
                spec.memory = Some(ByteSize::gib(1));
                spec.replicas = Replicas { min: if on_demand { 0 } else { copies }, max: copies };
                spec.rollout.canary = Percent::new(share);
                spec.model.uri = format!("file:///iris/{version}").into();
            });
            w.revision("iris")
        };
        let old = version(&mut w, 1, shares[0]);
        w.demand("iris", 1);
        w.settle();
        w.demand("iris", 0);
        let new = version(&mut w, 2, shares[0]);
        w.settle();
        let record = w.world.record(&name("iris")).cloned();
        for (before, share) in shares.iter().zip(&shares[1..]) {
            w.change("iris", |spec| spec.rollout.canary = Percent::new(*share));
            let planned = w.plan_for(&Scope::All);
            prop_assert!(!planned.decided() && planned.events.is_empty(), "{:#?}", planned);
            prop_assert_eq!(planned.routes.len(), usize::from(before != share));
            prop_assert_eq!(w.world.record(&name("iris")), record.as_ref());
        }
        if promotes {
            w.change("iris", |spec| spec.rollout.canary = None);
        } else {
            version(&mut w, 1, shares[0]);
        }
        let (stays, leaves) = if promotes { (&new, &old) } else { (&old, &new) };
        let planned = w.plan();
        for change in planned.assignments.values() {
            prop_assert!(change.set.is_empty() && change.unset == [leaves.clone()], "{:#?}", planned);
        }
        prop_assert_eq!(&planned.routes[0].split, &[(stays.clone(), 100)]);
    }

    #[test]
    fn plans_are_lawful(history in prop::collection::vec(happening(), 1..60)) {
        let mut w = start();
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
        let mut w = start();
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
