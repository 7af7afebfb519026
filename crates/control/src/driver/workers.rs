//! What is told of workers: how they are, how full they are, and how far they are with giving up what they hold.

use std::collections::BTreeSet;

use berth_plan::{
    World, report,
    world::{Liveness, Seats},
};
use berth_spec::{ByteSize, Cordon, Residency, RevisionId, Time, WorkerId, WorkerState as Means, status::Truth};

use super::Driver;
use crate::handle::{WorkerState, WorkerView, view::Drain};

/// Replicas of a draining worker that are told one by one, of each kind. Halved, operators see fewer causes at once;
/// doubled, the answer for a fleet that drains is twice as long.
const NAMED: usize = 10;

impl Driver {
    /// Every worker that has said what it is, by name.
    pub(super) fn workers(&self, world: &World, now: Time) -> Vec<WorkerView> {
        world.workers().filter_map(|(id, seats)| self.worker(world, id, seats, now)).collect()
    }

    fn worker(&self, world: &World, id: &WorkerId, seats: &Seats, now: Time) -> Option<WorkerView> {
        // A worker that is only known from records has not said what it is.
        let info = seats.info.clone()?;
        let reported = self.brain.reported_at(id);
        let state = match seats.liveness {
            Liveness::Alive if seats.reported => WorkerState::Ready,
            Liveness::Alive | Liveness::Unseen => WorkerState::Joining,
            Liveness::Detached { .. } => WorkerState::Detached,
            Liveness::Lost { .. } => WorkerState::Lost,
        };
        let leaving = seats.state == Means::Leaving;
        let drains = leaving || seats.cordon == Cordon::Draining;
        Some(WorkerView {
            state,
            cordon: seats.cordon,
            claimed: seats.used,
            load: seats.load,
            leaving,
            drain: drains.then(|| drain(world, id, seats, now)),
            gpus_claimed: vec![ByteSize::ZERO; info.gpus.len()],
            assigned: count(seats.assigned.len()),
            ready: count(seats.assigned.keys().filter(|revision| seats.ready(revision)).count()),
            reported,
            info,
        })
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// What is still on a worker whose replicas move elsewhere, and why.
fn drain(world: &World, id: &WorkerId, seats: &Seats, now: Time) -> Drain {
    let here: BTreeSet<&RevisionId> = seats.assigned.keys().chain(seats.inventory.keys()).collect();
    let mut drain = Drain { left: count(here.len()), ..Drain::default() };
    for revision in here {
        if drain.waiting_for.len() >= NAMED && drain.blocked.len() >= NAMED {
            break;
        }
        let (list, message) = match hindrance(world, id, seats, revision, now) {
            Hindrance::UnderWay(message) => (&mut drain.waiting_for, message),
            Hindrance::Blocked(message) => (&mut drain.blocked, message),
        };
        if list.len() < NAMED {
            list.push((revision.clone(), message));
        }
    }
    drain
}

/// Why a replica is still where it should not stay.
enum Hindrance {
    UnderWay(String),
    Blocked(String),
}

fn hindrance(world: &World, id: &WorkerId, seats: &Seats, revision: &RevisionId, now: Time) -> Hindrance {
    if let Some(Residency::Draining { in_flight, .. }) = seats.inventory.get(revision) {
        return Hindrance::UnderWay(format!("{in_flight} requests in flight are finished"));
    }
    if !seats.assigned.contains_key(revision) {
        return Hindrance::UnderWay("it is unloaded".to_owned());
    }
    let Some(status) = report::status(world, revision.deployment(), now) else {
        return Hindrance::UnderWay("it is unloaded".to_owned());
    };
    let elsewhere = status.replicas.iter().find(|replica| replica.revision == *revision && replica.worker != *id);
    if let Some(replica) = elsewhere {
        let state = replica.residency.as_ref().map_or("Assigned", Residency::as_str);
        let message = match replica.residency.as_ref().is_some_and(Residency::is_ready) {
            true => format!("a copy is ready on {}: requests go there, then it is unloaded", replica.worker),
            false => format!("a copy on {} is {state}", replica.worker),
        };
        return Hindrance::UnderWay(message);
    }
    let trouble = status.conditions.iter().find(|condition| {
        condition.status == Truth::False
            && matches!(condition.reason.as_str(), "NoCapacity" | "LoadFailed" | "WaitsForRoom")
            || condition.reason == "Degraded"
    });
    match trouble {
        Some(condition) => Hindrance::Blocked(condition.message.clone()),
        None => Hindrance::UnderWay("it is planned for".to_owned()),
    }
}
