//! Traffic: over what is ready, and what a miss does. Derived from record and inventory, so that readiness never
//! writes to the store.

use std::hash::{DefaultHasher, Hash, Hasher};

use berth_spec::{
    Alias, RevisionId, Route, WorkerId,
    routes::{AliasRoute, OnMiss, Version},
};

use crate::{
    Record, Replica, Rollout, World,
    retry::{self, Away, Restarting, Retrying},
    world::{Liveness, TrackedDeployment, Verdict},
};

/// The weights of a split, added up: they are percent.
const WHOLE: u32 = 100;

/// The route of a deployment with this record and verdict.
pub(crate) fn derive(
    world: &World,
    entry: &TrackedDeployment,
    record: Option<&Record>,
    verdict: Option<&Verdict>,
) -> Route {
    let deployment = &entry.deployment;
    let versions = versions(world, entry, record);
    Route {
        deployment: deployment.name.clone(),
        split: record.map(|record| split(entry, &record.rollout, &versions)).unwrap_or_default(),
        versions,
        on_miss: on_miss(world, entry, record, verdict),
        on_demand: deployment.spec.replicas.on_demand(),
        timeout: deployment.spec.timeout,
        concurrency: deployment.spec.concurrency,
        limits: deployment.spec.limits,
        idempotent: deployment.spec.idempotent,
        endpoint: deployment.spec.endpoint.clone(),
    }
}

/// The route of an alias: its targets with a weight.
#[must_use]
pub fn of_alias(alias: &Alias) -> AliasRoute {
    let weighs = alias.targets.iter().filter(|(_, weight)| *weight > 0);
    AliasRoute { name: alias.name.clone(), targets: weighs.cloned().collect(), sticky: alias.sticky.clone() }
}

/// Shares of requests: all for the revision that serves; of a canary so many percent for the new revision while it is ready
/// anywhere, and for the old one what is left.
fn split(entry: &TrackedDeployment, rollout: &Rollout, versions: &[Version]) -> Vec<(RevisionId, u32)> {
    let Some(serving) = rollout.serving() else { return Vec::new() };
    let is_ready = |to: &RevisionId| versions.iter().any(|each| each.revision == *to && !each.ready.is_empty());
    match (rollout, entry.deployment.spec.rollout.canary) {
        (Rollout::Canary { to, .. }, Some(percent)) if is_ready(to) => {
            let shares = [(serving, WHOLE - percent.get()), (to, percent.get())];
            let given = shares.into_iter().filter(|(_, weight)| *weight > 0);
            given.map(|(revision, weight)| (revision.clone(), weight)).collect()
        }
        _ => vec![(serving.clone(), WHOLE)],
    }
}

/// The serving revision first. One that goes by the same version name as an earlier one cannot be asked for; that of a canary
/// goes by its hash then, since it gets requests all the same.
fn versions(world: &World, entry: &TrackedDeployment, record: Option<&Record>) -> Vec<Version> {
    let Some(record) = record else { return vec![cold(entry)] };
    let mut versions: Vec<Version> = Vec::with_capacity(1); // as a rule
    for revision in record.rollout.serving().into_iter().chain(record.rollout.live()) {
        let Some(known) = record.revisions.get(revision) else { continue };
        if versions.iter().any(|version| version.revision == *revision) {
            continue;
        }
        let name = match versions.iter().any(|version| version.name == known.version) {
            false => known.version.clone(),
            true if matches!(record.rollout, Rollout::Canary { .. }) => revision.hash(),
            true => continue,
        };
        versions.push(Version { name, revision: revision.clone(), ready: ready_on(world, record, revision) });
    }
    versions
}

/// Version that a cold deployment would load.
fn cold(entry: &TrackedDeployment) -> Version {
    let name = entry.deployment.spec.model.version.clone().unwrap_or_else(|| entry.wanted().hash());
    Version { name, revision: entry.wanted(), ready: Vec::new() }
}

/// The workers on which a revision is assigned and ready, or assumed to be.
pub(crate) fn ready_on(world: &World, record: &Record, revision: &RevisionId) -> Vec<WorkerId> {
    record
        .of(revision)
        .filter(|replica| world.answers_at(&replica.worker, revision, &record.rollout))
        .map(|replica| replica.worker.clone())
        .collect()
}

fn on_miss(world: &World, entry: &TrackedDeployment, record: Option<&Record>, verdict: Option<&Verdict>) -> OnMiss {
    if entry.deployment.spec.replicas.max == 0 {
        return OnMiss::ScaledDown;
    }
    // What sits on lost workers only is as good as nowhere, once it is known that nobody else has room for it.
    let somewhere = |record: &&Record| {
        let lost = |replica: &Replica| {
            let tracked = world.workers.get(&replica.worker);
            tracked.is_some_and(|tracked| matches!(tracked.liveness, Liveness::Lost { .. }))
        };
        !record.replicas.iter().all(lost)
    };
    if let Some(record) = record.filter(somewhere) {
        return match retry::all(world, record) {
            Some(Away::Retrying(Retrying { message, at })) => OnMiss::Failed { message, retry_at: at },
            Some(Away::Restarting(Restarting { message, at })) => OnMiss::Restarting { message, again_at: at },
            None => OnMiss::Park,
        };
    }
    match verdict {
        Some(verdict @ Verdict::NoCapacity { text, .. }) => {
            OnMiss::NoCapacity { message: text.clone(), retry_at: verdict.ends() }
        }
        // What the runtime said comes last, as it said it; the time of the next attempt goes along beside it.
        Some(verdict @ Verdict::Failed { text, .. }) => {
            OnMiss::Failed { message: text.clone(), retry_at: verdict.ends() }
        }
        Some(Verdict::WaitsForRoom { .. } | Verdict::SurgeWaits { .. } | Verdict::LeaveWaits { .. }) | None => {
            OnMiss::Park
        }
    }
}

/// Tells routes that differ apart, in eight bytes instead of the route: there is one for each of 100,000 cold
/// deployments. Never 0, which means that none was sent.
pub(crate) fn fingerprint(route: &Route) -> u64 {
    let mut hasher = DefaultHasher::new();
    route.split.hash(&mut hasher);
    for version in &route.versions {
        (&version.name, &version.revision, &version.ready).hash(&mut hasher);
    }
    match &route.on_miss {
        OnMiss::Park => 0_u8.hash(&mut hasher),
        OnMiss::NoCapacity { message, retry_at } => (1_u8, message, retry_at).hash(&mut hasher),
        OnMiss::Failed { message, retry_at } => (2_u8, message, retry_at).hash(&mut hasher),
        OnMiss::ScaledDown => 3_u8.hash(&mut hasher),
        OnMiss::Restarting { message, again_at } => (4_u8, message, again_at).hash(&mut hasher),
    }
    (route.on_demand, route.idempotent, route.timeout, route.concurrency.max, route.concurrency.queue)
        .hash(&mut hasher);
    route.limits.hash(&mut hasher);
    route.endpoint.hash(&mut hasher);
    hasher.finish().max(1)
}
