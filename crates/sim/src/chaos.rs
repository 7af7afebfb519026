//! Random stories with everything going wrong that can, from a seed.

use std::time::Duration;

use berth_plan::fixture;
use berth_spec::{ByteSize, Deployment, FailureCategory, Replicas, WorkerInfo, deployment::WhenFull};

use crate::{cluster::Cluster, node::Model};

/// The number of deployments, workers and artifacts: few enough to get into each other's way.
const DEPLOYMENTS: u64 = 12;
const WORKERS: u64 = 3;
const VERSIONS: u64 = 4;

/// The steps between two actions of people or faults: few, so that many of them overlap.
const STEPS_BETWEEN: u64 = 8;

/// The time to settle once nothing goes wrong any more: longer than the longest back-off, rollout deadline and memory
/// of a failure together.
const SETTLE: Duration = Duration::from_secs(3 * 3600);

/// Runs so many steps, with the full linter every so many. `Err`: what was wrong, with the last things that happened.
pub fn run(seed: u64, steps: u64, lint_every: u64) -> Result<Cluster, String> {
    let mut cluster = Cluster::new(seed);
    cluster.watch.lint_every = lint_every;
    cluster.net.jitter = Duration::from_millis(40);
    cluster.faults.refuse_one_in = 20;
    artifacts(&mut cluster);
    for nth in 0..WORKERS {
        cluster.start(worker(nth));
    }
    for step in 0..steps {
        if step % STEPS_BETWEEN == 0 {
            inject(&mut cluster);
        }
        if !cluster.step() {
            inject(&mut cluster);
        }
        if !cluster.broken.is_empty() {
            return Err(story(&cluster, &cluster.broken));
        }
        cluster.log.drain(..cluster.log.len().saturating_sub(200));
    }
    calm(&mut cluster);
    cluster.run_for(SETTLE);
    let wrong: Vec<String> = cluster.broken.iter().cloned().chain(cluster.unsettled()).collect();
    if wrong.is_empty() { Ok(cluster) } else { Err(story(&cluster, &wrong)) }
}

/// The last things that happened, and what was wrong.
pub(crate) fn story(cluster: &Cluster, wrong: &[String]) -> String {
    const SHOWN: usize = 12;
    let last = cluster.log.iter().rev().take(60).rev().cloned().collect::<Vec<_>>().join("\n");
    let wrong: String = wrong.iter().take(SHOWN).map(|wrong| format!("\n  {wrong}")).collect();
    let going_on: Vec<&str> = cluster.faults.going_on().collect();
    format!("{last}\nstep {}, going on: {going_on:?}, broken:{wrong}", cluster.steps)
}

fn artifacts(cluster: &mut Cluster) {
    for deployment in 0..DEPLOYMENTS {
        for version in 0..VERSIONS {
            let fails = [FailureCategory::Network, FailureCategory::InvalidModel, FailureCategory::Memory];
            let fails = cluster.rng.once_in(6).then(|| fails[cluster.rng.below(3) as usize]);
            let model = Model {
                memory: ByteSize::mib(64 + cluster.rng.below(1_200)),
                fetch: Duration::from_millis(cluster.rng.below(3_000)),
                load: Duration::from_millis(cluster.rng.below(8_000)),
                fails,
            };
            cluster.models.insert(uri(deployment, version), model);
        }
    }
}

fn uri(deployment: u64, version: u64) -> String {
    format!("file:///m{deployment}/{version}")
}

fn worker(nth: u64) -> WorkerInfo {
    fixture::worker(&format!("w{nth}"), ByteSize::gib(2 + nth))
}

/// Something happens.
fn inject(cluster: &mut Cluster) {
    let which = cluster.rng.below(DEPLOYMENTS);
    let name = fixture::name(&format!("m{which}"));
    let nth = cluster.rng.below(WORKERS);
    let id = fixture::worker_id(&format!("w{nth}"));
    match cluster.rng.below(100) {
        0..15 => declare(cluster, which),
        15..18 => {
            if let Some(known) = cluster.store.deployment(&name).cloned() {
                cluster.declare(Deployment { deleting: true, ..known.as_ref().clone() });
            }
        }
        18..80 => {
            let requests = 1 + cluster.rng.below(3);
            cluster.infer(&name, u32::try_from(requests).unwrap_or(1));
        }
        80..88 => cluster.give_up(&name),
        88..91 => cluster.page_out(&name),
        91..93 => cluster.crash(&id),
        93..96 => cluster.start(worker(nth)),
        96..98 => cluster.reconnect(&id),
        98 => cluster.restart_controller(),
        _ => {
            let pause = cluster.rng.below(120);
            cluster.now = cluster.next().unwrap_or(cluster.now).max(cluster.now) + Duration::from_secs(pause);
        }
    }
}

fn declare(cluster: &mut Cluster, which: u64) {
    let name = fixture::name(&format!("m{which}"));
    let known = cluster.store.deployment(&name);
    let generation = known.map_or(berth_spec::Generation(0), |known| known.generation).next();
    let mut deployment = Deployment { generation, ..fixture::deployment(name.as_str()) };
    let min = u32::try_from(cluster.rng.below(3)).unwrap_or(0).saturating_sub(1);
    let spec = &mut deployment.spec;
    spec.replicas = Replicas { min, max: min.max(u32::from(!cluster.rng.once_in(20))) };
    spec.priority = u8::try_from(1 + cluster.rng.below(3) * 40).unwrap_or(1);
    spec.idle_after = cluster.rng.once_in(2).then(|| Duration::from_secs(60 + cluster.rng.below(600)));
    spec.rollout.when_full = if cluster.rng.once_in(2) { WhenFull::Recreate } else { WhenFull::Wait };
    spec.model.uri = uri(which, cluster.rng.below(VERSIONS)).into();
    cluster.declare(deployment);
}

/// Nothing goes wrong any more: every worker runs, clients go home, everything can be loaded.
fn calm(cluster: &mut Cluster) {
    cluster.net.jitter = Duration::ZERO;
    cluster.faults.refuse_one_in = 0;
    for model in cluster.models.values_mut() {
        model.fails = None;
    }
    cluster.calm();
}
