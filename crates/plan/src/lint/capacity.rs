//! Nothing is claimed twice: memory, cores, GPUs, places, and what runtimes may take of their own.

use std::collections::BTreeMap;

use berth_spec::{ByteSize, DeploymentName, Gpu, ModelFormat, WorkerId, WorkerInfo, deployment::GpuNeed};

use crate::{Record, World};

/// Claims of the records on one worker.
#[derive(Debug, Default)]
struct Claimed<'a> {
    bytes: u64,
    thousandths: u64,
    models: usize,
    gpus: Vec<&'a GpuNeed>,
    /// Format, memory and device memory of each replica.
    each: Vec<(&'a ModelFormat, u64, u64)>,
}

/// Claims never exceed what a worker has.
pub(super) fn capacity(world: &World, records: &BTreeMap<&DeploymentName, &Record>, broken: &mut Vec<String>) {
    let mut claimed: BTreeMap<&WorkerId, Claimed<'_>> = BTreeMap::new();
    for (name, record) in records {
        let spec = world.deployment(name).map(|deployment| &deployment.spec);
        for replica in &record.replicas {
            let sum = claimed.entry(&replica.worker).or_default();
            sum.bytes += replica.claim.0;
            sum.models += 1;
            let revision = record.revisions.get(&replica.revision);
            if let Some((spec, revision)) = spec.zip(revision) {
                let device = spec.gpu.as_ref().map_or(0, |need| u64::from(need.count) * need.memory.map_or(0, |m| m.0));
                sum.each.push((&revision.format, replica.claim.0, device));
            }
            if let Some(spec) = spec {
                sum.thousandths += thousandths(spec.cpu.unwrap_or(0.0));
                sum.gpus.extend(&spec.gpu);
            }
        }
    }
    for (worker, sum) in &claimed {
        if let Some(tracked) = world.worker(worker).filter(|tracked| tracked.alive())
            && let Some(info) = &tracked.info
        {
            on_one(worker, info, sum, broken);
        }
    }
    kept_sums_are_true(world, broken);
}

/// The sums that the world keeps of the runtimes' claims are those of its assignments.
fn kept_sums_are_true(world: &World, broken: &mut Vec<String>) {
    for (worker, tracked) in world.workers() {
        let runtimes = tracked.info.iter().flat_map(|info| &info.runtimes);
        for (place, runtime) in runtimes.enumerate() {
            let first = |format: &ModelFormat| tracked.info.as_ref().and_then(|info| info.runtime_for(format));
            let own = tracked.assigned.values().filter(|placed| first(&placed.revision.format) == Some(runtime));
            let (mut models, mut memory, mut device) = (0, 0, 0);
            for placed in own {
                models += 1;
                memory += placed.claim.0;
                device += placed.gpu.as_ref().map_or(0, |need| u64::from(need.count) * need.memory.map_or(0, |m| m.0));
            }
            let kept = tracked
                .in_runtimes
                .get(place)
                .map(|total| (total.models, total.claims.memory.0, total.claims.device_memory.0));
            if kept != Some((models, memory, device)) {
                broken.push(format!(
                    "{worker}: {kept:?} is kept for {} instead of {models}, {memory}, {device}",
                    runtime.name
                ));
            }
        }
    }
}

fn on_one(worker: &WorkerId, info: &WorkerInfo, sum: &Claimed<'_>, broken: &mut Vec<String>) {
    if sum.bytes > info.memory.0 {
        broken.push(format!("{worker} is claimed {} of {}", ByteSize(sum.bytes), info.memory));
    }
    if sum.thousandths > thousandths(info.cpus) {
        broken.push(format!("{worker} is claimed {} thousandths of {} cores", sum.thousandths, info.cpus));
    }
    if let Some(max) = info.max_models.filter(|max| sum.models > *max as usize) {
        broken.push(format!("{worker} is to hold {} models of {max}", sum.models));
    }
    for runtime in &info.runtimes {
        let first = |format: &ModelFormat| info.runtimes.iter().find(|other| other.takes(format));
        let own: Vec<_> = sum.each.iter().filter(|(format, ..)| first(format) == Some(runtime)).collect();
        let (memory, device): (u64, u64) =
            own.iter().fold((0, 0), |(memory, device), (_, more, there)| (memory + more, device + there));
        if runtime.memory.is_some_and(|most| memory > most.0)
            || runtime.device_memory.is_some_and(|most| device > most.0)
            || runtime.max_models.is_some_and(|most| own.len() > most as usize)
        {
            broken.push(format!("{worker}: {} models claim {memory} and {device} of {runtime:?}", own.len()));
        }
    }
    if let Some(lacking) = overdrawn(&info.gpus, &sum.gpus) {
        broken.push(format!("{worker} is claimed more GPUs than it has: {lacking:?} of {:?}", info.gpus));
    }
}

fn thousandths(cores: f32) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "cores are few and not negative")]
    let thousandths = (f64::from(cores) * 1000.0).round() as u64;
    thousandths
}

/// Needs for which there are too few devices together: those of one kind, or of any, that ask for at least so much memory.
fn overdrawn<'a>(devices: &[Gpu], needs: &[&'a GpuNeed]) -> Option<Vec<&'a GpuNeed>> {
    let memory = |need: &GpuNeed| need.memory.unwrap_or(ByteSize::ZERO);
    for limit in needs {
        for kind in [None, limit.kind.as_ref()] {
            let asks =
                |need: &&&GpuNeed| memory(need) >= memory(limit) && (kind.is_none() || need.kind.as_ref() == kind);
            let does = |device: &&Gpu| device.memory >= memory(limit) && kind.is_none_or(|kind| device.is_a(kind));
            let asking: Vec<&GpuNeed> = needs.iter().filter(asks).copied().collect();
            let count: u32 = asking.iter().map(|need| need.count).sum();
            if count as usize > devices.iter().filter(does).count() {
                return Some(asking);
            }
        }
    }
    None
}
