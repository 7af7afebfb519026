//! Checks that new replicas may be where they are put, and that evictions respect pins and priorities.

use std::collections::{BTreeMap, BTreeSet};

use berth_spec::{
    Cordon, Deployment, DeploymentName, Revision, RevisionId, RuntimeInfo, Time, UnknownWorkers, WorkerId, WorkerInfo,
    WorkerState, worker::EvictionStrategy,
};

use crate::{Planned, Record, Rollout, World, world::Liveness};

/// A revision with its deployment.
#[derive(Clone, Copy)]
struct DeployedRevision<'a> {
    deployment: &'a Deployment,
    revision: &'a Revision,
}

/// Whatever is put on a worker that was not there may be there.
pub(super) fn newly_placed(world: &World, planned: &Planned, broken: &mut Vec<String>) {
    for (worker, change) in &planned.assignments {
        let Some(tracked) = world.worker(worker) else { continue };
        for placed in &change.set {
            let id = &placed.revision.id;
            let Some(deployment) = world.deployment(id.deployment()) else { continue };
            let deployed = DeployedRevision { deployment: deployment.as_ref(), revision: placed.revision.as_ref() };
            if tracked.assigned.contains_key(id) {
                continue;
            }
            if tracked.liveness != Liveness::Alive {
                broken.push(format!("{id} is put on {worker}, which cannot be reached"));
            }
            if tracked.cordon != Cordon::Open || tracked.state != WorkerState::Serving {
                broken.push(format!("{id} is put on {worker}, which takes nothing new"));
            }
            if !takes_part(world, worker) {
                broken.push(format!("{id} is put on {worker}, which the registry does not name"));
            }
            if let Some(info) = tracked.info.as_ref().filter(|info| !may_hold(world, deployed, info)) {
                broken.push(format!("{id} is put on {worker}, which may not hold it: {:?}", info.labels));
            }
            if !in_its_regions(world, deployed, tracked.info.as_ref(), planned.at) {
                broken.push(format!("{id} is put on {worker}, which is in none of its regions"));
            }
        }
    }
}

/// Returns true if the registry names a worker, or accepts those that it does not name.
fn takes_part(world: &World, worker: &WorkerId) -> bool {
    world.unknown_workers() == UnknownWorkers::Allow || world.terms(worker).is_some()
}

/// Format, isolation and card, by the revision; labels, and labels of the type, by the deployment.
fn may_hold(world: &World, deployed: DeployedRevision<'_>, info: &WorkerInfo) -> bool {
    let DeployedRevision { deployment, revision } = deployed;
    let spec = &deployment.spec;
    let kind = spec.model_type.as_deref().unwrap_or_else(|| spec.model.format.as_str());
    let rule = world.policy.types.iter().find(|(name, _)| *name == kind).map(|(_, rule)| rule);
    let of_type = rule.or(world.policy.other_types.as_ref()).into_iter().flat_map(|rule| &rule.required);
    let card = revision.card.as_ref().map(|pinned| pinned.card.schema_version.as_str());
    let named = world.terms(&info.id).map(|terms| &terms.schema_versions);
    let (name, version) = (revision.format.name(), revision.format.version());
    let takes = |runtime: &&RuntimeInfo| {
        runtime.formats.iter().any(|taken| {
            taken.name == name
                && (taken.versions.is_empty()
                    || version.is_none_or(|version| taken.versions.contains(&version.to_owned())))
        })
    };
    let isolates = |runtime: &RuntimeInfo| match (revision.runtime.isolation, &runtime.isolation) {
        (Some(asked), Some(offer)) => offer.most >= asked,
        _ => true,
    };
    let runtime = info.runtimes.iter().find(takes);
    let has = |(key, value): (&String, &String)| {
        let own = runtime.and_then(|runtime| runtime.labels.get(key));
        own.or_else(|| info.labels.get(key)) == Some(value)
    };
    runtime.is_some_and(isolates)
        && card.is_none_or(|card| info.schema_versions.iter().any(|reads| reads == card))
        && card.is_none_or(|card| named.is_none_or(|named| named.iter().any(|reads| reads == card)))
        && spec.selector.required.iter().chain(of_type).all(has)
}

/// Returns true if an empty region has a worker that could hold a revision of a deployment.
fn has_worker(world: &World, deployed: DeployedRevision<'_>, region: &str, at: Time) -> bool {
    let DeployedRevision { deployment, revision } = deployed;
    world.workers().any(|(worker, tracked)| {
        let there = match tracked.liveness {
            Liveness::Alive => true,
            Liveness::Detached { since } => at < since + world.policy.detached_grace,
            Liveness::Lost { .. } | Liveness::Unseen => false,
        };
        let open = tracked.cordon == Cordon::Open && tracked.state == WorkerState::Serving;
        let info = tracked.info.as_ref().filter(|info| info.labels.get("region").is_some_and(|its| its == region));
        there
            && open
            && takes_part(world, worker)
            && info.is_some_and(|info| {
                may_hold(world, deployed, info)
                    && revision.memory.is_none_or(|memory| memory <= info.memory)
                    && deployment.spec.cpu.is_none_or(|cpu| cpu <= info.cpus)
                    && deployment.spec.gpu.as_ref().is_none_or(|need| need.count as usize <= info.gpus.len())
            })
    })
}

/// Returns true if a region that must have replicas has no worker for them, so that others stand in.
fn one_is_lost(world: &World, deployed: DeployedRevision<'_>, at: Time) -> bool {
    let spec = &deployed.deployment.spec;
    spec.regions
        .iter()
        .any(|(region, bounds)| bounds.min > 0 && (spec.gpu.is_some() || !has_worker(world, deployed, region, at)))
}

fn in_its_regions(world: &World, deployed: DeployedRevision<'_>, info: Option<&WorkerInfo>, at: Time) -> bool {
    let regions = &deployed.deployment.spec.regions;
    let region = info.and_then(|info| info.labels.get("region"));
    regions.is_empty() || region.is_some_and(|its| regions.contains_key(its)) || one_is_lost(world, deployed, at)
}

/// Checks that pinned replicas never leave for others.
pub(super) fn pinned_stays(world: &World, planned: &Planned, broken: &mut Vec<String>) {
    for event in planned.events.iter().filter(|event| event.reason == "Evicted") {
        let victim = event.deployment.as_ref().and_then(|name| world.deployment(name));
        if victim.is_some_and(|victim| victim.spec.pinned) && event.message.contains("to make room for") {
            broken.push(format!("pinned, and evicted: {}", event.message));
        }
    }
}

/// Nobody leaves for others on a worker of which the registry says so, nor for an equal where it says that.
pub(super) fn evicted_as_the_registry_says(world: &World, planned: &Planned, broken: &mut Vec<String>) {
    for evicted in &planned.evicted {
        let Some(terms) = world.terms(&evicted.worker) else { continue };
        let Some(whom) = &evicted.whom else { continue };
        let priority = |name: &DeploymentName| world.deployment(name).map(|deployment| deployment.spec.priority);
        let equal = priority(evicted.revision.deployment()) >= priority(whom);
        if !terms.eviction.automatic || (terms.eviction.strategy == EvictionStrategy::Priority && equal) {
            broken.push(format!("{} leaves {} for {whom}, against its terms", evicted.revision, evicted.worker));
        }
    }
}

/// A deployment never has more than it may; by region likewise, once what its regions must have is there.
pub(super) fn not_too_many(
    world: &World,
    records: &BTreeMap<&DeploymentName, &Record>,
    at: Time,
    broken: &mut Vec<String>,
) {
    for (name, record) in records {
        let Some(deployment) = world.deployment(name) else { continue };
        let bounds = deployment.spec.replicas;
        let revisions: BTreeSet<&RevisionId> = record.replicas.iter().map(|replica| &replica.revision).collect();
        for revision in revisions {
            let on: Vec<&WorkerId> = record.of(revision).map(|replica| &replica.worker).collect();
            let ready = on.iter().filter(|worker| world.worker(worker).is_some_and(|tracked| tracked.ready(revision)));
            // What leaves its worker or its region stays until what takes its place is ready.
            if ready.count() > bounds.max as usize || on.len() > 2 * bounds.max as usize {
                broken.push(format!("{name} has more than {} replicas: {on:?}", bounds.max));
            }
            if let Some(known) = record.revisions.get(revision) {
                let deployed = DeployedRevision { deployment: deployment.as_ref(), revision: known.as_ref() };
                by_region(world, deployed, at, &on, broken);
            }
        }
    }
}

/// A revision that is being replaced gets no more copies than it had, those aside that leave their worker.
pub(super) fn no_more_of_what_is_replaced(
    world: &World,
    records: &BTreeMap<&DeploymentName, &Record>,
    broken: &mut Vec<String>,
) {
    for (name, record) in records {
        let Rollout::Surging { from, copies, .. } = &record.rollout else { continue };
        let stays = |worker: &WorkerId| {
            world.worker(worker).is_some_and(|tracked| {
                tracked.alive()
                    && tracked.cordon == Cordon::Open
                    && tracked.state == WorkerState::Serving
                    && !tracked.unlisted
            })
        };
        let on: Vec<&WorkerId> =
            record.of(from).map(|replica| &replica.worker).filter(|worker| stays(worker)).collect();
        if on.len() > *copies as usize {
            broken.push(format!("{name} has {from} on {on:?}, though it is being replaced and had {copies} copies"));
        }
    }
}

fn by_region(world: &World, deployed: DeployedRevision<'_>, at: Time, on: &[&WorkerId], broken: &mut Vec<String>) {
    let (deployment, revision) = (deployed.deployment, &deployed.revision.id);
    // Where the number is not given the target is not known here.
    let fixed = deployment.spec.regions.values().all(|bounds| bounds.min == bounds.max);
    let known = on.iter().all(|worker| world.worker(worker).is_some_and(|tracked| tracked.info.is_some()));
    if !fixed || !known || one_is_lost(world, deployed, at) {
        return;
    }
    let ready_in = |region: &String| {
        let there = on.iter().filter_map(|worker| world.worker(worker)).filter(|tracked| {
            tracked.alive()
                && tracked.cordon == Cordon::Open
                && tracked.state == WorkerState::Serving
                && tracked.ready(revision)
                && tracked.info.as_ref().and_then(|info| info.labels.get("region")) == Some(region)
        });
        there.count()
    };
    let counted: Vec<(usize, usize)> =
        deployment.spec.regions.iter().map(|(region, bounds)| (ready_in(region), bounds.max as usize)).collect();
    if counted.iter().all(|(ready, max)| ready >= max) && counted.iter().any(|(ready, max)| ready > max) {
        broken.push(format!("{revision} has more in a region than it should: {counted:?}"));
    }
}
