//! Computes the effect of applying or deleting deployments and of other settings of workers, without doing it.
use std::{collections::BTreeMap, sync::Arc};

use berth_spec::{
    ByteSize, Deployment, DeploymentName, Digest, InventoryChange, Residency, Revision, RevisionId, Time,
    UnknownWorkers, WorkerId, WorkerTerms,
    residency::{Phases, Ready},
};

use crate::{Basis, Planned, World, claim, plan};

/// A change whose effect is computed.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Declare or change a deployment.
    Apply(Arc<Deployment>),
    /// Delete the deployment of this name.
    Delete(DeploymentName),
    /// Put these settings of workers in place of all that there are.
    Workers {
        /// Settings by worker; a worker that is not among them has none.
        terms: BTreeMap<WorkerId, Arc<WorkerTerms>>,
        /// Rule for the workers that are not among them.
        unknown: UnknownWorkers,
    },
}

/// Outcome once everything has settled and every load succeeds.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Preview {
    /// Actions, in the order in which they would begin.
    pub steps: Vec<Step>,
    /// Every worker, by name.
    pub memory: Vec<MemoryChange>,
    /// Deployments that would not get what they want, with the reason.
    pub unplaced: Vec<(DeploymentName, String)>,
}

/// One thing that would be done.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The action, on one replica.
    pub action: Action,
    /// The revision that is loaded or unloaded.
    pub revision: RevisionId,
    /// The worker on which that happens.
    pub worker: WorkerId,
    /// The memory that it takes or gives back.
    pub memory: ByteSize,
    /// The origin of that figure; `None` for what is unloaded.
    pub basis: Option<Basis>,
}

/// Action of a worker on one replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Loaded where no other revision of the deployment is.
    Load,
    /// Loaded in place of an older revision.
    Reload {
        /// The revision that it replaces there.
        from: RevisionId,
    },
    /// Unloaded: not wanted any more.
    Unload,
    /// Unloaded to make room.
    Evict,
}

/// A worker's memory before and after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryChange {
    /// The worker whose memory it is.
    pub worker: WorkerId,
    /// Memory for models after the change.
    pub total: ByteSize,
    /// Memory that replicas claim before the change.
    pub before: ByteSize,
    /// The most that is claimed on the way, e.g. while old and new are both loaded.
    pub peak: ByteSize,
    /// Memory that replicas claim once everything has settled.
    pub after: ByteSize,
}

/// Plans that a preview makes before it gives up waiting for rest: a rollout takes three, and cascading evictions
/// some more.
const ROUNDS: usize = 8;

/// Computes the outcome of changes if every load succeeds with the expected memory. The world stays as it is.
#[must_use]
pub fn preview(world: &World, changes: &[Change], now: Time) -> Preview {
    let mut then = world.clone();
    settle(&mut then, now, &mut |_, _| {}); // what is under way anyway is not what the changes do
    let mut preview = Preview { memory: memory_of(&then), ..Preview::default() };
    for change in changes {
        match change {
            Change::Apply(deployment) => then.set_deployment(Arc::clone(deployment)),
            Change::Delete(name) => then.remove_deployment(name),
            Change::Workers { terms, unknown } => replace_terms(&mut then, terms, *unknown),
        }
    }
    settle(&mut then, now, &mut |world, planned| {
        preview.steps.extend(steps_of(world, planned));
        for line in &mut preview.memory {
            line.peak = line.peak.max(used_after(world, planned, &line.worker));
        }
    });
    for line in &mut preview.memory {
        if let Some(tracked) = then.workers.get(&line.worker) {
            (line.total, line.after) = (tracked.memory(), tracked.used);
        }
        line.peak = line.peak.max(line.after);
    }
    preview.unplaced = unplaced(&then, world, changes);
    preview
}

/// Puts settings of workers in place of all that there are.
fn replace_terms(world: &mut World, terms: &BTreeMap<WorkerId, Arc<WorkerTerms>>, unknown: UnknownWorkers) {
    let gone: Vec<WorkerId> = world.all_terms().keys().filter(|worker| !terms.contains_key(*worker)).cloned().collect();
    for worker in &gone {
        world.set_terms(worker, None);
    }
    for (worker, terms) in terms {
        if world.terms(worker) != Some(terms) {
            world.set_terms(worker, Some(Arc::clone(terms)));
        }
    }
    world.set_unknown_workers(unknown);
}

/// Plans until nothing is decided; whatever was placed becomes ready at once.
fn settle(world: &mut World, now: Time, each: &mut dyn FnMut(&World, &Planned)) {
    for _ in 0..ROUNDS {
        let scope = world.due(now);
        let planned = plan(world, &scope, now);
        each(world, &planned);
        world.commit(&planned);
        let loaded = make_ready(world, now);
        if !planned.decided() && !loaded {
            return;
        }
    }
}

/// Says of every assigned replica on a live worker that it is ready, and of every other one that it is gone.
fn make_ready(world: &mut World, now: Time) -> bool {
    let mut changes = Vec::new();
    for (id, tracked) in world.workers.iter().filter(|(_, tracked)| tracked.alive()) {
        let mut change = InventoryChange {
            worker: id.clone(),
            incarnation: tracked.info.as_ref().map_or(0, |info| info.incarnation),
            seen: tracked.sent,
            whole: !tracked.reported,
            state: tracked.state,
            load: None,
            breakers: None,
            credentials: berth_spec::Generation(0),
            overhead: tracked.overhead,
            usage: Vec::new(),
            replicas: Vec::new(),
        };
        for (revision, placed) in tracked.assigned.iter().filter(|(revision, _)| !tracked.ready(revision)) {
            change.replicas.push((revision.clone(), Some(ready(placed.claim, &placed.revision, now))));
        }
        let left = tracked.inventory.keys().filter(|revision| !tracked.assigned.contains_key(revision));
        change.replicas.extend(left.map(|revision| (revision.clone(), None)));
        changes.push(change);
    }
    let mut any = false;
    for change in changes.into_iter().filter(|change| change.whole || !change.replicas.is_empty()) {
        any |= !world.observe(&change, now).changed.is_empty();
    }
    any
}

fn ready(memory: ByteSize, revision: &Revision, now: Time) -> Residency {
    Residency::Ready(Arc::new(Ready {
        since: now,
        memory,
        measured: false,
        digest: revision.digest.unwrap_or(Digest([0; 32])),
        signature: None,
        devices: Vec::new(),
        phases: Phases::default(),
        note: None,
        unvalidated: None,
        deaths: None,
    }))
}

fn memory_of(world: &World) -> Vec<MemoryChange> {
    let lines = world.workers.iter().filter(|(_, tracked)| tracked.alive()).map(|(id, tracked)| MemoryChange {
        worker: id.clone(),
        total: tracked.memory(),
        before: tracked.used,
        peak: tracked.used,
        after: tracked.used,
    });
    lines.collect()
}

fn used_after(world: &World, planned: &Planned, worker: &WorkerId) -> ByteSize {
    let Some(tracked) = world.workers.get(worker) else { return ByteSize::ZERO };
    let Some(change) = planned.assignments.get(worker) else { return tracked.used };
    let goes = |id: &RevisionId| change.unset.contains(id) || change.set.iter().any(|placed| placed.revision.id == *id);
    let stays: ByteSize = tracked.assigned.iter().filter(|(id, _)| !goes(id)).map(|(_, placed)| placed.claim).sum();
    change.set.iter().map(|placed| placed.claim).sum::<ByteSize>() + stays
}

/// Actions of a plan on replicas: first those that leave, then those that come.
fn steps_of(world: &World, planned: &Planned) -> Vec<Step> {
    let evicted = |revision: &RevisionId, worker: &WorkerId| {
        planned.events.iter().any(|event| {
            event.reason == "Evicted"
                && event.worker.as_ref() == Some(worker)
                && event.deployment.as_ref() == Some(revision.deployment())
        })
    };
    let mut steps = Vec::new();
    for (worker, change) in &planned.assignments {
        let Some(tracked) = world.workers.get(worker) else { continue };
        for revision in &change.unset {
            let action = if evicted(revision, worker) { Action::Evict } else { Action::Unload };
            let memory = tracked.assigned.get(revision).map_or(ByteSize::ZERO, |placed| placed.claim);
            steps.push(Step { action, revision: revision.clone(), worker: worker.clone(), memory, basis: None });
        }
        for placed in change.set.iter().filter(|placed| !tracked.assigned.contains_key(&placed.revision.id)) {
            let id = &placed.revision.id;
            let older = tracked.assigned.keys().find(|other| other.deployment() == id.deployment());
            let action = older.map_or(Action::Load, |from| Action::Reload { from: from.clone() });
            let basis = world.entries.get(id.deployment()).map(|entry| claim::need(world, entry, &placed.revision).1);
            steps.push(Step { action, revision: id.clone(), worker: worker.clone(), memory: placed.claim, basis });
        }
    }
    steps
}

/// Deployments that would lack a place and did not lack it before, or were asked about.
fn unplaced(then: &World, before: &World, changes: &[Change]) -> Vec<(DeploymentName, String)> {
    let asked = |name: &DeploymentName| {
        changes.iter().any(|change| match change {
            Change::Apply(deployment) => deployment.name == *name,
            Change::Delete(other) => other == name,
            Change::Workers { .. } => false,
        })
    };
    let lacked = |name: &DeploymentName| before.unplaced.contains(name) || before.refused.contains(name);
    let new = then.unplaced.union(&then.refused).filter(|name| asked(name) || !lacked(name));
    new.filter_map(|name| {
        let text = then.entries.get(name)?.verdict()?.message();
        Some((name.clone(), text))
    })
    .collect()
}
