//! Measures how long a plan takes and what a registered deployment costs, at 1,000 workers. Prints one JSON line per
//! measure; `cargo xtask bench` reads them. `plan_bench full 100000` makes one full plan from nothing in a process of
//! its own, with its processor time, which a busy machine changes little, and the peak of its memory; `plan_bench mixed
//! 50000` makes one for a fleet of unlike workers.
#![expect(clippy::print_stdout, reason = "the lines are the result")]

use std::{sync::Arc, time::Instant};

use berth_plan::{
    Policy, Scope, World,
    fixture::{deployment, digest_of, name, ready, worker, worker_id},
    plan,
};
use berth_spec::{
    ByteSize, Demand, Deployment, Generation, Gpu, InventoryChange, Replicas, Time, WorkerInfo, deployment::GpuNeed,
};

const WORKERS: usize = 1_000;
/// The memory of each replica in cases where replicas take memory.
const SIZE: ByteSize = ByteSize::mib(64);
const NOW: Time = Time(1_000_000_000_000);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => all(),
        [which @ ("full" | "mixed"), count] => one(which, count.parse().expect("a number of deployments")),
        _ => panic!("usage: plan_bench [full|mixed DEPLOYMENTS]"),
    }
}

fn all() {
    // First, so that what it costs is not served from what the others gave back.
    for deployments in [100_000, 10_000] {
        cold(deployments);
    }
    for deployments in [10_000, 100_000] {
        packed(deployments);
    }
    mixed(50_000);
}

/// One full plan, and what the process took for it at most.
fn one(which: &str, count: usize) {
    let mut world = if which == "full" { resident_world(count) } else { unlike_world(count) };
    let scope = world.due(NOW);
    let (resident, ran) = (process("VmRSS") >> 20, ran_ms());
    let (planned, took) = timed(|| plan(&world, &scope, NOW));
    let ran = ran_ms() - ran;
    assert_eq!(planned.records.len(), count);
    line(which, count, took);
    let peak = process("VmHWM") >> 20;
    println!(
        r#"{{"measure":"{which}_cost","deployments":{count},"processor_ms":{ran:.0},"before_mib":{resident},"peak_mib":{peak}}}"#
    );
}

/// The memory of each worker where an even share of them fills nine tenths.
fn share(count: usize) -> ByteSize {
    ByteSize(SIZE.0 * (count / WORKERS) as u64 * 10 / 9)
}

/// Residents that fill nine tenths of the memory.
fn resident_world(count: usize) -> World {
    let mut world = World::new(Policy::default());
    for i in 0..WORKERS {
        world.set_worker(worker(&format!("w{i}"), share(count)));
    }
    for i in 0..count {
        world.set_deployment(Arc::new(sized(&format!("m{i}"), SIZE, Replicas { min: 1, max: 1 })));
    }
    world
}

fn packed(count: usize) {
    let mut world = resident_world(count);
    let scope = world.due(NOW);
    let (planned, took) = timed(|| plan(&world, &scope, NOW));
    assert_eq!(planned.records.len(), count);
    line("full", count, took);
    world.commit(&planned);
    load(&mut world);
    let scope = world.due(NOW);
    let settling = plan(&world, &scope, NOW);
    world.commit(&settling);
    line("replan_all", count, timed(|| plan(&world, &Scope::All, NOW)).1);
    line("one_change", count, median(|i| one_change(&mut world, &format!("m{}", i * 37 % count), SIZE)));
    line("one_new", count, median(|i| one_change(&mut world, &format!("new{i}"), SIZE)));
    line("no_room", count, median(|i| one_change(&mut world, &format!("huge{i}"), share(count))));
}

fn one_change(world: &mut World, called: &str, size: ByteSize) -> f64 {
    let mut next = sized(called, size, Replicas { min: 1, max: 1 });
    next.generation = Generation(2);
    next.spec.model.uri = format!("{}/next", next.spec.model.uri).into();
    let (planned, took) = timed(|| {
        world.set_deployment(Arc::new(next));
        let scope = world.due(NOW);
        plan(world, &scope, NOW)
    });
    world.commit(&planned);
    if !planned.decided() {
        world.remove_deployment(&name(called));
    }
    took
}

/// A fleet of unlike workers: five regions of four zones, every fourth with GPUs, every tenth with a label, limits on models
/// and cores; residents that need some of that, two copies each.
fn unlike_world(count: usize) -> World {
    let mut world = World::new(Policy::default());
    for i in 0..WORKERS {
        world.set_worker(unlike(i, ByteSize(SIZE.0 * (count * 2 / WORKERS) as u64 * 10 / 8)));
    }
    for i in 0..count {
        world.set_deployment(Arc::new(choosy(&format!("m{i}"), i, SIZE)));
    }
    load(&mut world);
    world
}

fn mixed(count: usize) {
    let mut world = unlike_world(count);
    let scope = world.due(NOW);
    let (planned, took) = timed(|| plan(&world, &scope, NOW));
    line("mixed_full", count, took);
    world.commit(&planned);
    load(&mut world);
    let scope = world.due(NOW);
    let settling = plan(&world, &scope, NOW);
    world.commit(&settling);
    for (kind, measure) in
        ["mixed_new_plain", "mixed_new_regional", "mixed_new_gpu", "mixed_new_labelled"].iter().enumerate()
    {
        let new = |i: usize| {
            let (planned, took) = timed(|| {
                world.set_deployment(Arc::new(choosy(&format!("new{kind}-{i}"), i * 4 + kind, SIZE)));
                let scope = world.due(NOW);
                plan(&world, &scope, NOW)
            });
            world.commit(&planned);
            took
        };
        line(measure, count, median(new));
    }
}

fn unlike(i: usize, memory: ByteSize) -> WorkerInfo {
    let mut info = worker(&format!("w{i}"), memory);
    info.labels.insert("region".to_owned(), format!("r{}", i % 5));
    info.labels.insert("zone".to_owned(), format!("z{}", i % 20 / 5));
    info.cpus = 64.0;
    info.max_models = Some(100_000);
    if i.is_multiple_of(4) {
        info.gpus = (0..8)
            .map(|_| Gpu { id: String::new(), kind: "nvidia-l4".to_owned(), memory: ByteSize::gib(24) })
            .collect();
    }
    if i.is_multiple_of(10) {
        info.labels.insert("disk".to_owned(), "ssd".to_owned());
    }
    info
}

fn choosy(called: &str, i: usize, size: ByteSize) -> Deployment {
    let mut deployment = sized(called, size, Replicas { min: 2, max: 2 });
    match i % 4 {
        1 => {
            let one = Replicas { min: 1, max: 1 };
            deployment.spec.regions = [("r1".to_owned(), one), ("r3".to_owned(), one)].into();
        }
        2 if i % 100 == 2 => deployment.spec.gpu = Some(GpuNeed { count: 1, kind: None, memory: None }),
        3 if i % 100 == 3 => {
            deployment.spec.selector.required.insert("disk".to_owned(), "ssd".to_owned());
        }
        _ => deployment.spec.cpu = Some(0.05),
    }
    deployment
}

/// On-demand deployments that nobody has asked for.
fn cold(count: usize) {
    let mut world = World::new(Policy::default());
    for i in 0..WORKERS {
        world.set_worker(worker(&format!("w{i}"), ByteSize::gib(1)));
    }
    let all: Vec<Arc<Deployment>> =
        (0..count).map(|i| Arc::new(sized(&format!("m{i}"), ByteSize::mib(64), Replicas { min: 0, max: 1 }))).collect();
    let before = process("VmRSS");
    for deployment in all {
        world.set_deployment(deployment);
    }
    let scope = world.due(NOW);
    let (planned, took) = timed(|| plan(&world, &scope, NOW));
    line("full_cold", count, took);
    world.commit(&planned);
    drop(planned);
    let bytes = process("VmRSS").saturating_sub(before) / count as u64;
    println!(r#"{{"measure":"cold_bytes_each","deployments":{count},"bytes":{bytes}}}"#);
    let miss = |i: usize| {
        let demand = Demand {
            deployment: name(&format!("m{}", i * 37 % count)),
            waiting: 1,
            in_flight: 0,
            last_used: NOW,
            requests: 1,
        };
        let (planned, took) = timed(|| {
            world.demand(berth_spec::GatewayId(1), &demand, NOW);
            let scope = world.due(NOW);
            plan(&world, &scope, NOW)
        });
        world.commit(&planned);
        took
    };
    line("miss", count, median(miss));
}

fn sized(called: &str, size: ByteSize, replicas: Replicas) -> Deployment {
    let mut deployment = deployment(called);
    deployment.spec.memory = Some(size);
    deployment.spec.replicas = replicas;
    deployment
}

fn load(world: &mut World) {
    for i in 0..WORKERS {
        let worker = worker_id(&format!("w{i}"));
        let assigned = world.whole_assignment(&worker).set.into_iter();
        let replicas = assigned
            .map(|placed| {
                let id = placed.revision.id.clone();
                let residency = ready(placed.claim, digest_of(&id), NOW);
                (id, Some(residency))
            })
            .collect();
        let seen = world.generation();
        let _ = world.observe(
            &InventoryChange {
                worker,
                incarnation: 1,
                seen,
                whole: true,
                replicas,
                state: berth_spec::WorkerState::Serving,
                load: None,
                breakers: None,
                credentials: berth_spec::Generation(0),
                overhead: ByteSize::ZERO,
                usage: Vec::new(),
            },
            NOW,
        );
    }
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed().as_secs_f64() * 1e3)
}

fn median(mut work: impl FnMut(usize) -> f64) -> f64 {
    let mut took: Vec<f64> = (1..=101).map(&mut work).collect();
    took.sort_by(f64::total_cmp);
    took[50]
}

fn line(measure: &str, deployments: usize, ms: f64) {
    println!(r#"{{"measure":"{measure}","workers":{WORKERS},"deployments":{deployments},"ms":{ms:.3}}}"#);
}

/// The processor time of this thread in milliseconds; 0 where the system does not say.
fn ran_ms() -> f64 {
    let ran = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    ran.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e6
}

/// A figure of this process's memory by its name in Linux, in bytes; 0 where the system does not say.
fn process(called: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(called)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
