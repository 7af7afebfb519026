//! Computes the difference from the last plan: records, assignments, routes, and the next wake-up.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use berth_spec::{
    AssignmentChange, DeploymentName, Event, Generation, Placed, Time, event::Severity, routes::Readiness,
};

use crate::{
    Planned, Record, Rollout,
    draft::{Draft, Work},
    planned::Note,
    proof::Settings,
    route, scale,
    world::{Prospect, Rank, TrackedDeployment, Verdict, WorkerIndex, World},
};

/// Deployments that are not ready and are named in the readiness: enough to start looking, and one line.
const MISSING_NAMED: usize = 5;

/// The fingerprint of no route.
const UNROUTED: u64 = 0;

/// Turns the draft into a plan.
pub(crate) fn finish(mut draft: Draft<'_>) -> Planned {
    let (world, now) = (draft.world, draft.now);
    let next = world.generation.next();
    let mut planned = Planned {
        generation: world.generation,
        at: now,
        records: Vec::new(),
        assignments: BTreeMap::new(),
        routes: Vec::new(),
        withdrawn: Vec::new(),
        gone: Vec::new(),
        readiness: Readiness::default(),
        events: std::mem::take(&mut draft.events),
        evicted: std::mem::take(&mut draft.evicted),
        wake_at: None,
        loss: None,
        notes: Vec::new(),
    };
    tell_loss(&draft, &mut planned);
    let (mut grown, mut residents) = (Vec::new(), Vec::new());
    let mut changes = Changes::new();
    make_room(&mut planned, draft.works().len());
    // Deployments are taken out one by one: what becomes part of the plan is moved there, and the rest is given back while
    // it is at hand.
    for mut work in draft.take_works() {
        tell_verdict(&work, now, &mut planned.events);
        scale::tell_grown(&draft, &work, &mut grown);
        let (name, entry, record) = (work.name(), work.entry, record(&mut work, next));
        assign(world, entry, record.as_ref(), next, &mut changes);
        if entry.deployment.deleting {
            if entry.routed != 0 {
                planned.withdrawn.push(name.clone());
            }
            if record.is_none() && !world.held_anywhere(name) {
                planned.gone.push(name.clone());
            } else {
                planned.notes.push((name.clone(), note(*work, now, UNROUTED)));
            }
        } else {
            let route = route::derive(world, entry, record.as_ref(), holding(&work, now));
            let routed = route::fingerprint(&route);
            let idle_evicted = work.idle_evicted && record.is_none();
            planned.notes.push((name.clone(), Note { idle_evicted, ..note(*work, now, routed) }));
            if routed != entry.routed {
                planned.routes.push(route);
            }
        }
        if entry.must_be_resident() {
            residents.push((name, world.is_resident(record.as_ref())));
        }
        if record.as_ref() != entry.record() {
            planned.records.push((name.clone(), record));
        }
    }
    planned.events.append(&mut grown);
    add_orphans(world, &mut planned.records);
    give_room_back(&mut planned);
    for index in world.limits_untold().iter().filter_map(|worker| world.workers.index(worker)) {
        let _ = WorkerChange::of(&mut changes, world, index, next);
    }
    let told =
        |(index, told): (WorkerIndex, WorkerChange)| (world.workers.at(index).0.clone(), told.in_loading_order());
    planned.assignments = changes.into_iter().map(told).collect();
    planned.readiness = readiness(world, &residents);
    if planned.decided() {
        planned.generation = next;
    }
    planned.wake_at = wake_at(world, &planned);
    planned
}

/// Makes room for as much as there may be: a list that grows is copied again and again.
fn make_room(planned: &mut Planned, deployments: usize) {
    planned.records.reserve_exact(deployments);
    planned.notes.reserve_exact(deployments);
    planned.routes.reserve_exact(deployments);
}

/// Gives back what was not needed of that: the plan is kept until it is stored.
fn give_room_back(planned: &mut Planned) {
    planned.records.shrink_to_fit();
    planned.notes.shrink_to_fit();
    planned.routes.shrink_to_fit();
    planned.events.shrink_to_fit();
}

/// Adds the records whose deployment is not declared: they are deleted.
fn add_orphans(world: &World, records: &mut Vec<(DeploymentName, Option<Record>)>) {
    if !world.orphans.is_empty() {
        records.extend(world.orphans.keys().map(|name| (name.clone(), None)));
        records.sort_by(|(one, _), (other, _)| one.cmp(other));
    }
}

/// Tells that many workers were lost at once, and that this is over.
fn tell_loss(draft: &Draft<'_>, planned: &mut Planned) {
    let Some(held) = &draft.world.held else { return };
    let loss = held.loss;
    let (severity, reason, message) = if draft.now >= loss.until {
        let message = "the loss of many workers at once is over: what is still lost is placed elsewhere in waves";
        (Severity::Normal, "MassLossOver", message.to_owned())
    } else if held.told {
        return;
    } else {
        (Severity::Warning, "MassLoss", loss.message())
    };
    planned.loss = Some(loss);
    planned.events.push(Event {
        at: draft.now,
        severity,
        reason,
        message,
        deployment: None,
        worker: None,
        function: None,
    });
}

/// Tells why something is not as wanted: once, not with every plan that finds the same.
fn tell_verdict(work: &Work<'_>, now: Time, events: &mut Vec<Event>) {
    let Some(verdict) = &work.verdict else { return };
    let reason = |verdict: &Verdict| match verdict {
        Verdict::NoCapacity { .. } => "NoCapacity",
        Verdict::Failed { .. } => "LoadFailed",
        Verdict::WaitsForRoom { .. } => "WaitsForRoom",
        Verdict::SurgeWaits { prospect: Prospect::Overdue, .. } => "RolloutOverdue",
        Verdict::SurgeWaits { .. } => "SurgeWaits",
        Verdict::LeaveWaits { .. } => "LeaveWaits",
    };
    if work.entry.verdict().map(reason) != Some(reason(verdict)) {
        events.push(Event {
            at: now,
            severity: Severity::Warning,
            reason: reason(verdict),
            message: format!("{}: {}", work.name(), verdict.message()),
            deployment: Some(work.name().clone()),
            worker: None,
            function: None,
        });
    }
}

/// The record that is left, if any: none for a deployment without replicas, unless its rollout must be remembered.
/// Keeps its old number if nothing in it changed.
fn record(work: &mut Work<'_>, generation: Generation) -> Option<Record> {
    let rollout = work.rollout.take()?;
    let remembered = match &rollout {
        Rollout::Stuck { .. } => true,
        Rollout::Surging { .. } | Rollout::Recreating { .. } => work.target > 0,
        // The next request is to find both revisions and their shares again. Once promoted the new one is all there is.
        Rollout::Canary { .. } => work.target > 0 || work.entry.deployment.spec.rollout.canary.is_some(),
        Rollout::Starting { .. } | Rollout::Stable { .. } => false,
    };
    if work.entry.deployment.deleting || (work.replicas.is_empty() && !remembered) {
        return None;
    }
    let (mut revisions, replicas) = (std::mem::take(&mut work.revisions), std::mem::take(&mut work.replicas));
    revisions.retain(|id| rollout.named().any(|named| named == id) || replicas.iter().any(|r| r.revision == *id));
    let mut record = Record { generation, revisions, replicas, rollout };
    if let Some(before) = work.entry.record() {
        record.generation = before.generation;
        if record != *before {
            record.generation = generation;
        }
    }
    Some(record)
}

/// News for workers, by their numbers.
type Changes = BTreeMap<WorkerIndex, WorkerChange>;

/// Adds what workers have to be told about one deployment.
fn assign(
    world: &World,
    entry: &TrackedDeployment,
    record: Option<&Record>,
    generation: Generation,
    changes: &mut Changes,
) {
    for replica in entry.record().iter().flat_map(|before| &before.replicas) {
        if record.is_none_or(|record| record.replica(&replica.revision, &replica.worker).is_none()) {
            let Some(index) = world.workers.index(&replica.worker) else { continue };
            WorkerChange::of(changes, world, index, generation).change.unset.push(replica.revision.clone());
        }
    }
    let Some(record) = record.filter(|record| !record.replicas.is_empty()) else { return };
    let settings = Settings::of(world, &entry.deployment, record);
    for replica in &record.replicas {
        let Some(revision) = record.revisions.get(&replica.revision) else { continue };
        let Some(index) = world.workers.index(&replica.worker) else { continue };
        let tracked = &world.workers.at(index).1;
        let before = tracked.assigned.get(&replica.revision);
        let waited_for = entry.has_requests();
        let placed = Placed {
            revision: Arc::clone(revision),
            claim: replica.claim,
            gpu: entry.deployment.spec.gpu.clone(),
            // An explicit load becomes urgent with the first inference request. Once urgent, always urgent: that nobody waits any
            // more is no news for a worker.
            urgent: before.is_some_and(|before| before.urgent) || (waited_for && !tracked.ready(&replica.revision)),
            serving: settings.for_replica(&replica.revision, before),
        };
        if before != Some(&placed) {
            let rank = entry.rank(&replica.revision);
            WorkerChange::of(changes, world, index, generation).set.push((rank, placed));
        }
    }
}

/// Assignment change of one worker while the plan is collected.
struct WorkerChange {
    /// All but what is set.
    change: AssignmentChange,
    /// Replicas to set, with their place in the order of eviction.
    set: Vec<(Rank, Placed)>,
}

impl WorkerChange {
    /// News for one worker: nothing yet, if nothing was added before.
    fn of<'a>(changes: &'a mut Changes, world: &World, worker: WorkerIndex, generation: Generation) -> &'a mut Self {
        changes.entry(worker).or_insert_with(|| Self::nothing(world, worker, generation))
    }

    /// Nothing but the limits, if they are others.
    fn nothing(world: &World, worker: WorkerIndex, generation: Generation) -> Self {
        let (id, tracked) = world.workers.at(worker);
        let (base, limits) = (Some(tracked.sent), world.limits(id));
        let change = AssignmentChange { generation, base, limits, set: Vec::new(), unset: Vec::new() };
        Self { change, set: Vec::new() }
    }

    /// Sorts by loading order: replicas that requests wait for first, then those that would be evicted last.
    fn in_loading_order(mut self) -> AssignmentChange {
        let key = |(rank, placed): &(Rank, Placed)| Reverse((placed.urgent, rank.priority, rank.class, rank.last_used));
        self.set.sort_unstable_by(|a, b| key(a).cmp(&key(b)).then_with(|| a.0.revision.cmp(&b.0.revision)));
        self.change.set = self.set.into_iter().map(|(_, placed)| placed).collect();
        self.change
    }
}

/// Readiness once this plan is in force. `residents` are the resident deployments in scope, by name, with true for
/// those that are there.
fn readiness(world: &World, residents: &[(&DeploymentName, bool)]) -> Readiness {
    let (mut missing, mut named) = (0_usize, Vec::new());
    let mut miss = |name: &DeploymentName| {
        missing += 1;
        if named.len() < MISSING_NAMED {
            named.push(name.clone());
        }
    };
    let mut others = world.missing.iter().peekable();
    for (name, there) in residents {
        while let Some(other) = others.next_if(|other| other < name) {
            miss(other);
        }
        let _ = others.next_if(|other| other == name);
        if !there {
            miss(name);
        }
    }
    others.for_each(miss);
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let all = world.residents.len();
    Readiness { planned: true, expected: count(all), ready: count(all - missing), missing: named }
}

fn holding<'a>(work: &'a Work<'_>, now: Time) -> Option<&'a Verdict> {
    work.verdict.as_ref().filter(|verdict| verdict.until() > now)
}

fn note(work: Work<'_>, now: Time, routed: u64) -> Note {
    let until = holding(&work, now).and_then(Verdict::ends);
    let settles_for = (work.goal < work.entry.goal()).then_some(work.goal);
    Note {
        settles_for,
        idle_evicted: false,
        verdict: work.verdict,
        unplaced: work.unplaced && work.target > 0,
        wake: work.wake.into_iter().chain(until).min(),
        woke: work.entry.warm.as_ref().and_then(|warm| warm.wake),
        forgave: work.entry.warm.as_ref().is_some_and(|warm| warm.forgiven),
        routed,
    }
}

/// When to look again: at what this plan touched when it says so, at the rest when it was said before, at what may come
/// back when that is due.
fn wake_at(world: &World, planned: &Planned) -> Option<Time> {
    let ours = planned.notes.iter().filter_map(|(_, note)| note.wake).min();
    let rest = world.wakes().find(|(_, name)| planned.note(name).is_none() && !planned.gone.contains(name));
    let fades = planned.notes.iter().any(|(_, note)| note.idle_evicted);
    let anew = world.policy.proactive.as_ref().filter(|_| fades).map(|policy| planned.at + policy.every);
    let timed = world.preload_at.or(anew).into_iter().chain(world.assumed_until());
    ours.into_iter().chain(rest.map(|(at, _)| *at)).chain(timed).min()
}
