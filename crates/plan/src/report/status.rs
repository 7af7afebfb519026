//! The state of one deployment.

use std::sync::Arc;

use berth_spec::{
    DeploymentName, RevisionId, Time, WorkerId,
    deployment::Percent,
    status::{FailedLoad, Phase, ReplicaStatus, Status},
};

use super::conditions;
use crate::{
    Record, Replica, Rollout, World, claim, place, proof,
    report::queued::waits,
    retry::{self, Restarting, Retrying},
    world::{Liveness, LoadFailed, MassLoss, TrackedDeployment, TrackedWorker, Verdict},
};

/// The status of a deployment; `None`: no such.
#[must_use]
pub fn status(world: &World, name: &DeploymentName, now: Time) -> Option<Status> {
    let seen = StatusFacts::new(world, world.entries.get(name)?, now);
    let phase = seen.phase();
    Some(Status {
        phase,
        observed_generation: seen.entry.deployment.generation,
        conditions: conditions::conditions(&seen, world.endpoint_taken_by(name)),
        desired: seen.desired.max(seen.goal),
        ready: seen.ready,
        wanted: seen.entry.wanted(),
        serving: seen.serving.cloned(),
        replicas: replicas(world, seen.record),
        failures: failures(seen.entry, now),
        last_used: Some(seen.entry.last_used).filter(|at| *at > Time::ZERO),
    })
}

/// Facts from which phase and conditions are computed.
pub(super) struct StatusFacts<'a> {
    pub(super) entry: &'a TrackedDeployment,
    pub(super) record: Option<&'a Record>,
    pub(super) rollout: Option<&'a Rollout>,
    pub(super) verdict: Option<&'a Verdict>,
    /// The revision that serves, once one does.
    pub(super) serving: Option<&'a RevisionId>,
    /// Replicas that there must be.
    pub(super) desired: u32,
    /// Copies that load and regular use ask for beyond that; 0: none.
    pub(super) goal: u32,
    /// Workers with replicas of it that were lost with many others, until when nothing takes their place.
    pub(super) held: Option<MassLoss>,
    /// Replicas of the serving revision that answer.
    pub(super) ready: u32,
    /// Replicas that are assigned to workers that may be reached, whatever their revision.
    pub(super) placed: u32,
    /// Replicas on lost workers.
    pub(super) lost: u32,
    /// Failure of a replica that its worker tries again.
    pub(super) retrying: Option<Retrying>,
    /// A replica that is loaded and whose process is not there.
    pub(super) down: Option<Restarting>,
    /// Share of requests that the new revision of a canary gets, in percent; `None`: it is not ready, or there is no canary.
    pub(super) canary: Option<u32>,
    /// The reason why the validation inference of what serves proves nothing, if so.
    pub(super) unproven: Option<&'a str>,
}

impl<'a> StatusFacts<'a> {
    fn new(world: &'a World, entry: &'a TrackedDeployment, now: Time) -> Self {
        let record = entry.record();
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let rollout = record.map(|record| &record.rollout);
        let serving = rollout.and_then(Rollout::serving);
        let ready = record.map_or(0, |record| {
            rollout.map_or(0, |rollout| {
                let ready = rollout.live().map(|revision| crate::route::ready_on(world, record, revision).len());
                count(match serving {
                    Some(serving) => crate::route::ready_on(world, record, serving).len(),
                    None => ready.max().unwrap_or(0),
                })
            })
        });
        let lost = |replica: &&Replica| {
            let tracked = world.workers.get(&replica.worker);
            tracked.is_some_and(|tracked| matches!(tracked.liveness, Liveness::Lost { .. }))
        };
        let replicas = record.map_or(&[][..], |record| &record.replicas);
        let lost = count(replicas.iter().filter(lost).count());
        let placed = count(replicas.len()) - lost;
        let spec = &entry.deployment.spec;
        let desired = if entry.deployment.deleting || spec.replicas.max == 0 {
            0
        } else if spec.replicas.min > 0 {
            spec.replicas.min
        } else {
            u32::from(placed + lost > 0 || entry.waiting() > 0)
        };
        let goal = if desired > 0 { entry.goal() } else { 0 };
        let held = world.mass_loss(now).filter(|_| {
            let lost = |tracked: &TrackedWorker| tracked.held_until > now;
            let mut on = record.into_iter().flat_map(|record| &record.replicas);
            on.any(|replica| world.workers.get(&replica.worker).is_some_and(lost))
        });
        let retrying = record.and_then(|record| retry::first(world, record));
        let down = record.and_then(|record| retry::first_down(world, record));
        let canary = record.and_then(|record| {
            let Rollout::Canary { to, .. } = &record.rollout else { return None };
            let is_ready = !crate::route::ready_on(world, record, to).is_empty();
            spec.rollout.canary.filter(|_| is_ready).map(Percent::get)
        });
        let unproven = record.and_then(|record| proof::lacking(world, record));
        let verdict = verdict(world, entry, now);
        Self {
            entry,
            record,
            rollout,
            verdict,
            serving,
            desired,
            goal,
            held,
            ready,
            placed,
            lost,
            retrying,
            down,
            canary,
            unproven,
        }
    }

    /// Returns the reason if the wanted revision neither serves nor comes.
    pub(super) fn stuck(&self) -> Option<&'a str> {
        match self.rollout {
            Some(Rollout::Stuck { reason, .. }) => Some(reason),
            _ => None,
        }
    }

    fn phase(&self) -> Phase {
        let spec = &self.entry.deployment.spec;
        if self.entry.deployment.deleting {
            return Phase::Terminating;
        }
        if spec.replicas.max == 0 {
            return Phase::ScaledDown;
        }
        let current = self.serving.is_some_and(|serving| self.entry.wants(serving));
        match self.verdict {
            Some(Verdict::NoCapacity { .. }) if self.placed == 0 => Phase::ScheduleFailed,
            Some(Verdict::Failed { .. }) if self.placed == 0 => Phase::Failed,
            _ if self.desired == 0 => Phase::ScaledDown,
            _ if self.ready >= self.desired && current => Phase::Available,
            _ if self.down.is_some() => Phase::Degraded,
            Some(_) if self.ready > 0 => Phase::Degraded,
            _ if self.stuck().is_some() => Phase::Degraded,
            _ => Phase::Progressing,
        }
    }
}

/// Current obstacle. An earlier lack of room is left out once there is room.
fn verdict<'a>(world: &World, entry: &'a TrackedDeployment, now: Time) -> Option<&'a Verdict> {
    let verdict = entry.last_verdict(now)?;
    (verdict.until() > now || !has_room(world, entry)).then_some(verdict)
}

/// Returns true if a worker that may hold it has the memory free.
fn has_room(world: &World, entry: &TrackedDeployment) -> bool {
    let wanted = entry.deployment.revision();
    let (need, _) = claim::need(world, entry, &wanted);
    let mut free = world.workers.values().filter(|tracked| {
        tracked.alive() && tracked.cordon.is_open() && tracked.memory().saturating_sub(tracked.used) >= need
    });
    free.any(|tracked| place::forbidden(world, tracked, &entry.deployment, &wanted).is_none())
}

/// Loads of revisions that are still of interest, as far as they are remembered.
fn failures(entry: &TrackedDeployment, now: Time) -> Vec<FailedLoad> {
    let remembered = entry.warm.iter().flat_map(|warm| &warm.failures).filter(|(_, failed)| failed.until > now);
    let failed = |((revision, worker), failed): (&(RevisionId, WorkerId), &LoadFailed)| FailedLoad {
        revision: revision.clone(),
        worker: worker.clone(),
        failure: Arc::clone(&failed.failure),
    };
    remembered.map(failed).collect()
}

/// Every replica that is assigned, then those that workers still hold.
fn replicas(world: &World, record: Option<&Record>) -> Vec<ReplicaStatus> {
    let assigned = record.into_iter().flat_map(|record| &record.replicas);
    assigned
        .map(|replica| {
            let tracked = world.workers.get(&replica.worker);
            let said = tracked.filter(|tracked| tracked.answers() || tracked.lost_at().is_some());
            ReplicaStatus {
                revision: replica.revision.clone(),
                worker: replica.worker.clone(),
                residency: said.and_then(|tracked| tracked.inventory.get(&replica.revision)).cloned(),
                lost: tracked.is_some_and(|tracked| tracked.lost_at().is_some()),
                claim: replica.claim,
                usage: said.and_then(|tracked| tracked.usage.get(&replica.revision)).copied(),
                waits: tracked.and_then(|tracked| waits(tracked, &replica.revision)),
            }
        })
        .collect()
}
