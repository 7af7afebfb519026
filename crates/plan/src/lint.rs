//! A naive second opinion about a plan. It shares no code with the planner: it looks at everything, slowly, and knows
//! only the laws. Run after every step of a simulation and of the property tests.

mod capacity;
mod placing;

use std::collections::{BTreeMap, BTreeSet};

use berth_spec::{DeploymentName, Generation, RevisionId, Route, WorkerId};

use crate::{Planned, Record, Rollout, World};

/// A law that a plan breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(pub String);

/// Checks a plan that was made from `world` and is not committed yet.
#[must_use]
pub fn lint(world: &World, planned: &Planned) -> Vec<Violation> {
    let mut broken = Vec::new();
    let mut records: BTreeMap<&DeploymentName, &Record> = BTreeMap::new();
    for (name, entry) in &world.entries {
        if let Some(record) = entry.record() {
            records.insert(name, record);
        }
    }
    for (name, record) in &planned.records {
        match record {
            Some(record) => records.insert(name, record),
            None => records.remove(name),
        };
    }
    capacity::capacity(world, &records, &mut broken);
    placing::newly_placed(world, planned, &mut broken);
    placing::pinned_stays(world, planned, &mut broken);
    placing::evicted_as_the_registry_says(world, planned, &mut broken);
    placing::not_too_many(world, &records, planned.at, &mut broken);
    placing::no_more_of_what_is_replaced(world, &records, &mut broken);
    assignments_match(world, planned, &records, &mut broken);
    for (name, record) in &records {
        let Some(entry) = world.entries.get(*name) else {
            broken.push(format!("{name} has a record and no deployment"));
            continue;
        };
        shape(name, record, &mut broken);
        if entry.deployment.deleting {
            broken.push(format!("{name} is deleted and has a record"));
        }
    }
    for route in &planned.routes {
        let record = records.get(&route.deployment).copied();
        route_is_true(world, route, record, &mut broken);
        shares_are_right(world, route, record, &mut broken);
    }
    wanted_or_explained(world, planned, &records, &mut broken);
    let next = Generation(world.generation().0 + 1);
    let decided = !planned.records.is_empty() || !planned.assignments.is_empty();
    if planned.generation != if decided { next } else { world.generation() } {
        broken.push(format!("generation {} after {}", planned.generation, world.generation()));
    }
    broken.into_iter().map(Violation).collect()
}

/// Checks that assignments agree with records.
fn assignments_match(
    world: &World,
    planned: &Planned,
    records: &BTreeMap<&DeploymentName, &Record>,
    broken: &mut Vec<String>,
) {
    let mut recorded: BTreeSet<(WorkerId, RevisionId, u64)> = BTreeSet::new();
    for record in records.values() {
        for replica in &record.replicas {
            let place = (replica.worker.clone(), replica.revision.clone(), replica.claim.0);
            if !recorded.insert(place) {
                broken.push(format!("{} is twice on {}", replica.revision, replica.worker));
            }
        }
    }
    let mut assigned: BTreeSet<(WorkerId, RevisionId, u64)> = BTreeSet::new();
    let known: BTreeSet<&WorkerId> = world.workers().map(|(id, _)| id).chain(planned.assignments.keys()).collect();
    for worker in known {
        let mut held: BTreeMap<RevisionId, u64> = BTreeMap::new();
        if let Some(tracked) = world.worker(worker) {
            held.extend(tracked.assigned.iter().map(|(id, placed)| (id.clone(), placed.claim.0)));
        }
        if let Some(change) = planned.assignments.get(worker) {
            for id in &change.unset {
                if held.remove(id).is_none() {
                    broken.push(format!("{worker} is told to let {id} go, which it was never given"));
                }
            }
            held.extend(change.set.iter().map(|placed| (placed.revision.id.clone(), placed.claim.0)));
        }
        assigned.extend(held.into_iter().map(|(id, claim)| (worker.clone(), id, claim)));
    }
    for (worker, id, _) in recorded.symmetric_difference(&assigned) {
        broken.push(format!("record and assignment disagree about {id} on {worker}"));
    }
}

/// A record holds what it names, and no more than the rollout is about.
fn shape(name: &DeploymentName, record: &Record, broken: &mut Vec<String>) {
    let live: BTreeSet<&RevisionId> = match &record.rollout {
        Rollout::Starting { revision } | Rollout::Stable { revision } => [revision].into(),
        Rollout::Surging { from, to, .. } | Rollout::Canary { from, to, .. } => [from, to].into(),
        Rollout::Recreating { to, .. } => [to].into(),
        Rollout::Stuck { serving, .. } => [serving].into(),
    };
    for replica in &record.replicas {
        if !live.contains(&replica.revision) {
            broken.push(format!("{name} keeps {}, which its rollout does not name", replica.revision));
        }
        if record.revisions.get(&replica.revision).is_none() {
            broken.push(format!("{name} does not say what {} is", replica.revision));
        }
    }
}

/// A route leads only to what is assigned and ready.
fn route_is_true(world: &World, route: &Route, record: Option<&Record>, broken: &mut Vec<String>) {
    for version in &route.versions {
        for worker in &version.ready {
            let assigned = record.is_some_and(|record| {
                record.replicas.iter().any(|r| r.worker == *worker && r.revision == version.revision)
            });
            let ready = world.worker(worker).is_some_and(|tracked| {
                let says = tracked.inventory.get(&version.revision).is_some_and(berth_spec::Residency::is_ready);
                // Of one that was not heard yet the record's word is taken.
                (tracked.answers() && says) || (tracked.is_assumed() && !tracked.reported)
            });
            if !assigned || !ready {
                broken.push(format!("the route of {} leads to {worker} in vain", route.deployment));
            }
        }
    }
    for (revision, _) in &route.split {
        if !route.versions.iter().any(|version| version.revision == *revision) {
            broken.push(format!("the route of {} splits to {revision}, which it does not name", route.deployment));
        }
    }
}

/// One revision gets all requests, but for a canary: its share goes to the new revision while that is ready anywhere.
fn shares_are_right(world: &World, route: &Route, record: Option<&Record>, broken: &mut Vec<String>) {
    let mut shares: BTreeMap<&RevisionId, u32> = BTreeMap::new();
    match record.map(|record| (record, &record.rollout)) {
        None | Some((_, Rollout::Starting { .. })) => {}
        Some((
            _,
            Rollout::Stable { revision: all }
            | Rollout::Surging { from: all, .. }
            | Rollout::Recreating { from: all, .. }
            | Rollout::Stuck { serving: all, .. },
        )) => {
            shares.insert(all, 100);
        }
        Some((record, Rollout::Canary { from, to, .. })) => {
            let answers = |worker: &WorkerId| {
                world.worker(worker).is_some_and(|tracked| {
                    tracked.answers() && tracked.inventory.get(to).is_some_and(berth_spec::Residency::is_ready)
                })
            };
            let is_ready = record.replicas.iter().any(|replica| replica.revision == *to && answers(&replica.worker));
            let declared = world.deployment(&route.deployment).and_then(|deployment| deployment.spec.rollout.canary);
            let share = declared.filter(|_| is_ready).map_or(0, berth_spec::deployment::Percent::get);
            shares.insert(from, 100 - share);
            shares.insert(to, share);
        }
    }
    let expected: Vec<(&RevisionId, u32)> = shares.into_iter().filter(|(_, share)| *share > 0).collect();
    let mut given: Vec<(&RevisionId, u32)> = route.split.iter().map(|(revision, share)| (revision, *share)).collect();
    given.sort_unstable();
    if given != expected {
        broken.push(format!("the route of {} gives {given:?} rather than {expected:?}", route.deployment));
    }
}

/// A resident has all its replicas, or the plan says why not; nothing has too many.
fn wanted_or_explained(
    world: &World,
    planned: &Planned,
    records: &BTreeMap<&DeploymentName, &Record>,
    broken: &mut Vec<String>,
) {
    for (name, entry) in &world.entries {
        let spec = &entry.deployment.spec;
        let record = records.get(name);
        let mut per_revision: BTreeMap<&RevisionId, u32> = BTreeMap::new();
        for replica in record.iter().flat_map(|record| &record.replicas) {
            *per_revision.entry(&replica.revision).or_default() += 1;
        }
        let Some(note) = planned.note(name) else { continue };
        let has = per_revision.values().max().copied().unwrap_or(0);
        let resident = spec.replicas.min > 0 && !entry.deployment.deleting;
        if resident && has < spec.replicas.min && note.verdict.is_none() {
            broken.push(format!("{name} has {has} of {} replicas and nobody says why", spec.replicas.min));
        }
    }
}
