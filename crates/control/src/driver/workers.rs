//! Views of workers: state, load, and the progress of drains.

use std::collections::BTreeMap;

use berth_plan::{
    World,
    report::Leaving,
    world::{Liveness, TrackedWorker},
};
use berth_spec::{ByteSize, DeploymentName, Gpu, Residency, RevisionId, Time, WorkerId, deployment::GpuNeed};

use super::Driver;
use crate::handle::{WorkerState, WorkerView, view::Drain};

/// Replicas of a draining worker listed one by one, of each kind.
const MAX_NAMED_REPLICAS: usize = 10;

impl Driver {
    /// Every worker that has said what it is, by name.
    pub(super) fn workers(&self, world: &World, now: Time) -> Vec<WorkerView> {
        world.workers().filter_map(|(id, tracked)| self.worker(world, id, tracked, now)).collect()
    }

    fn worker(&self, world: &World, id: &WorkerId, tracked: &TrackedWorker, now: Time) -> Option<WorkerView> {
        // A worker that is only known from records has not said what it is.
        let info = tracked.info.clone()?;
        let reported = self.brain.reported_at(id);
        let state = match tracked.liveness {
            Liveness::Alive if tracked.reported => WorkerState::Ready,
            Liveness::Alive | Liveness::Unseen => WorkerState::Joining,
            Liveness::Detached { .. } => WorkerState::Detached,
            Liveness::Lost { .. } => WorkerState::Lost,
        };
        let leaving = tracked.state == berth_spec::WorkerState::Leaving;
        Some(WorkerView {
            state,
            cordon: tracked.cordon,
            terms: world.terms(id).cloned(),
            unlisted: tracked.unlisted,
            credentials: tracked.credentials,
            breakers: tracked.breakers.clone(),
            claimed: tracked.used,
            overhead: tracked.overhead,
            load: tracked.load.clone(),
            leaving,
            leaves_first: tracked.leaves_first().map(|(revision, at)| (revision.clone(), at)),
            drain: world.leaving(id, now).map(|leaving| drain(tracked, leaving, world)),
            gpus_claimed: gpus_claimed(&info.gpus, tracked),
            gpus_given: gpus_given(tracked),
            assigned: count(tracked.assigned.len()),
            ready: count(tracked.assigned.keys().filter(|revision| tracked.ready(revision)).count()),
            reported,
            info,
        })
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Replica on each GPU, by the GPU's id, as far as the worker has reported it.
fn gpus_given(tracked: &TrackedWorker) -> BTreeMap<String, RevisionId> {
    let ready = tracked.inventory.iter().filter_map(|(revision, residency)| match residency {
        Residency::Ready(ready) => Some((revision, &ready.devices)),
        _ => None,
    });
    ready.flat_map(|(revision, ids)| ids.iter().map(move |id| (id.to_string(), revision.clone()))).collect()
}

/// Memory assigned on each GPU. A device is claimed whole; the machine picks the device, so this counts the first
/// ones that match.
fn gpus_claimed(devices: &[Gpu], tracked: &TrackedWorker) -> Vec<ByteSize> {
    let mut claimed = vec![ByteSize::ZERO; devices.len()];
    let mut needs: Vec<&GpuNeed> = tracked.gpus_held().map(|(_, need)| need).collect();
    // Those that few devices will do for choose first.
    needs.sort_by_key(|need| std::cmp::Reverse((need.kind.is_some(), need.memory)));
    for need in needs {
        let suits = |device: &Gpu| {
            need.kind.as_ref().is_none_or(|kind| device.is_a(kind))
                && need.memory.is_none_or(|memory| device.memory >= memory)
        };
        let free =
            devices.iter().zip(&mut claimed).filter(|(device, claim)| **claim == ByteSize::ZERO && suits(device));
        for (device, claim) in free.take(need.count as usize) {
            *claim = device.memory;
        }
    }
    claimed
}

/// Replicas still on a draining worker, with the reasons.
fn drain(tracked: &TrackedWorker, leaving: Leaving, world: &World) -> Drain {
    let coming = leaving.waiting_for.into_iter().map(|(revision, worker)| {
        let there = world.worker(&worker).and_then(|tracked| tracked.inventory.get(&revision));
        let state = there.map_or("Assigned", Residency::as_str);
        (revision, format!("a copy on {worker} is {state}"))
    });
    let unloaded = tracked.inventory.iter().filter(|(revision, _)| !tracked.assigned.contains_key(*revision));
    let finishing = unloaded.map(|(revision, residency)| match residency {
        Residency::Draining { in_flight, .. } => (revision.clone(), format!("{in_flight} requests in flight finish")),
        _ => (revision.clone(), "is unloaded".to_owned()),
    });
    let of = |name: &DeploymentName| tracked.assigned.keys().find(|revision| revision.deployment() == name).cloned();
    let blocked = leaving.blocked.into_iter().filter_map(|(name, why)| Some((of(&name)?, why)));
    Drain {
        left: leaving.left.saturating_add(leaving.draining),
        waiting_for: coming.chain(finishing).take(MAX_NAMED_REPLICAS).collect(),
        blocked: blocked.take(MAX_NAMED_REPLICAS).collect(),
    }
}
