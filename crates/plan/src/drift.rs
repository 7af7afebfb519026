//! Differences between the desired state and the state that workers report, in seven kinds. For
//! logs and metrics: plans look at the world itself.
//!
//! | kind | when |
//! |---|---|
//! | `NEW_DEPLOYMENT` | replicas are wanted, and no worker has any |
//! | `VERSION_UPDATE` | a worker has another revision than the wanted one |
//! | `SCALE_UP` | fewer workers have it than should |
//! | `SCALE_DOWN` | more workers have it than should |
//! | `DISABLE` | nothing is wanted, and workers still have it |
//! | `UNRESPONSIVE_WORKER` | a worker cannot be reached |
//! | `FAILED_MODEL` | a worker says that it could not load it |
//!
//! On demand anything between none and `replicas.max` is as it should be, unless requests wait.

use std::collections::{BTreeMap, BTreeSet};

use berth_spec::{DeploymentName, Residency, Revision, RevisionId, WorkerId};

use crate::{
    Rejection, Scope, World,
    place::forbidden,
    world::{Liveness, TrackedDeployment},
};

/// Something that is not as wanted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Drift {
    /// The kind, one of seven.
    pub kind: DriftKind,
    /// Of which deployment; none for a worker.
    pub deployment: Option<DeploymentName>,
    /// The worker that holds it or should; `None`: the difference is about the deployment as a whole.
    pub worker: Option<WorkerId>,
    /// Revisions and numbers in a sentence for people.
    pub details: String,
}

/// Kind of a difference between desired and reported state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DriftKind {
    /// Wanted, and nowhere.
    NewDeployment,
    /// There in another revision than the wanted one.
    VersionUpdate,
    /// In too few places.
    ScaleUp,
    /// In too many places.
    ScaleDown,
    /// Not wanted, and still there.
    Disable,
    /// A worker that cannot be reached.
    UnresponsiveWorker,
    /// A model that could not be loaded.
    FailedModel,
}

impl DriftKind {
    /// Every kind, in the order of the table above.
    pub const ALL: [Self; 7] = [
        Self::NewDeployment,
        Self::VersionUpdate,
        Self::ScaleUp,
        Self::ScaleDown,
        Self::Disable,
        Self::UnresponsiveWorker,
        Self::FailedModel,
    ];

    /// The word in logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NewDeployment => "NEW_DEPLOYMENT",
            Self::VersionUpdate => "VERSION_UPDATE",
            Self::ScaleUp => "SCALE_UP",
            Self::ScaleDown => "SCALE_DOWN",
            Self::Disable => "DISABLE",
            Self::UnresponsiveWorker => "UNRESPONSIVE_WORKER",
            Self::FailedModel => "FAILED_MODEL",
        }
    }
}

/// Differences of the deployments in `scope`, in order. Those that concern workers alone are in [`unresponsive`].
#[must_use]
pub fn drift(world: &World, scope: &Scope) -> Vec<Drift> {
    let mut found = Vec::new();
    match scope {
        Scope::All => world.entries.values().for_each(|entry| of_one(world, entry, &mut found)),
        Scope::Only(names) => {
            let entries = names.iter().filter_map(|name| world.entries.get(name));
            entries.for_each(|entry| of_one(world, entry, &mut found));
        }
    }
    found
}

/// Workers that cannot be reached and should hold something.
#[must_use]
pub fn unresponsive(world: &World) -> Vec<Drift> {
    let lost = world.workers.iter().filter_map(|(id, tracked)| match tracked.liveness {
        Liveness::Lost { since } if !tracked.assigned.is_empty() => Some(Drift {
            kind: DriftKind::UnresponsiveWorker,
            deployment: None,
            worker: Some(id.clone()),
            details: format!("gone since {since}, with {} models", tracked.assigned.len()),
        }),
        _ => None,
    });
    lost.collect()
}

/// A model card that no worker reads to which it may go.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SchemaViolation {
    /// Whose card.
    pub deployment: DeploymentName,
    /// The card's version.
    pub version: String,
    /// The versions that the workers read that would have it otherwise.
    pub reads: BTreeSet<String>,
}

/// The model cards in `scope` that no worker reads to which they may go.
#[must_use]
pub fn schema_violations(world: &World, scope: &Scope) -> Vec<SchemaViolation> {
    let all = || world.entries.values().collect::<Vec<_>>();
    let some = |names: &BTreeSet<DeploymentName>| names.iter().filter_map(|name| world.entries.get(name)).collect();
    let entries = match scope {
        Scope::All => all(),
        Scope::Only(names) => some(names),
    };
    entries.into_iter().filter_map(|entry| violation(world, entry)).collect()
}

fn violation(world: &World, entry: &TrackedDeployment) -> Option<SchemaViolation> {
    let deployment = &entry.deployment;
    let version = &deployment.spec.model.card.as_ref()?.card.schema_version;
    let wanted = Revision::with_id(deployment, entry.wanted());
    let mut reads: Option<BTreeSet<String>> = None;
    for tracked in world.workers.values().filter(|tracked| tracked.alive()) {
        match forbidden(world, tracked, deployment, &wanted) {
            None => return None,
            Some(Rejection::Schema { reads: its, .. }) => reads.get_or_insert_default().extend(its),
            Some(_) => {}
        }
    }
    Some(SchemaViolation { deployment: deployment.name.clone(), version: version.clone(), reads: reads? })
}

/// Reports of one deployment by workers that can be reached.
struct Reports<'w> {
    on: BTreeMap<(&'w WorkerId, &'w RevisionId), &'w Residency>,
}

impl<'w> Reports<'w> {
    /// Looks where it is assigned, and where it is ready without being that: not at all workers.
    fn of(world: &'w World, entry: &'w TrackedDeployment) -> Self {
        let assigned = entry.record().into_iter().flat_map(|record| &record.replicas);
        let assigned = assigned.map(|replica| (&replica.worker, &replica.revision));
        let strays = world.strays_of_deployment(&entry.deployment.name).map(|(revision, worker)| (worker, revision));
        let says = |(worker, revision): (&'w WorkerId, &'w RevisionId)| {
            let tracked = world.workers.get(worker).filter(|tracked| tracked.answers())?;
            Some(((worker, revision), tracked.inventory.get(revision)?))
        };
        Self { on: assigned.chain(strays).filter_map(says).collect() }
    }

    /// Workers that have it, on the way to be ready or there.
    fn workers(&self, is: impl Fn(&RevisionId) -> bool) -> BTreeSet<&'w WorkerId> {
        let has = |residency: &Residency| !matches!(residency, Residency::Failed(_) | Residency::Draining { .. });
        let on = self.on.iter().filter(|((_, revision), residency)| is(revision) && has(residency));
        on.map(|((worker, _), _)| *worker).collect()
    }
}

fn of_one(world: &World, entry: &TrackedDeployment, found: &mut Vec<Drift>) {
    let deployment = &entry.deployment;
    let (name, replicas) = (&deployment.name, deployment.spec.replicas);
    let held = Reports::of(world, entry);
    if held.on.is_empty() && (replicas.on_demand() && entry.waiting() == 0 || deployment.deleting) {
        return; // nearly always: it is cold
    }
    let mut tell = |kind, worker: Option<&WorkerId>, details: String| {
        found.push(Drift { kind, deployment: Some(name.clone()), worker: worker.cloned(), details });
    };
    for ((worker, revision), residency) in &held.on {
        if let Residency::Failed(failure) = residency {
            let details = format!("{revision} ({}): {}", failure.category.as_str(), failure.message);
            tell(DriftKind::FailedModel, Some(worker), details);
        }
    }
    let (any, wanted) = (held.workers(|_| true), held.workers(|revision| entry.wants(revision)));
    let count = |workers: &BTreeSet<_>| u32::try_from(workers.len()).unwrap_or(u32::MAX);
    if deployment.deleting || replicas.max == 0 {
        if !any.is_empty() {
            let why = if deployment.deleting { "is being deleted" } else { "is to have no replica" };
            tell(DriftKind::Disable, None, format!("{why}, and {} workers have it", any.len()));
        }
        return;
    }
    let older = held.on.keys().find(|(worker, revision)| any.contains(*worker) && !entry.wants(revision));
    if let Some((_, older)) = older.filter(|_| wanted.len() < any.len() || wanted.is_empty()) {
        let details = format!("{} rather than {}, on {} workers", entry.wanted().hash(), older.hash(), any.len());
        tell(DriftKind::VersionUpdate, None, details);
        return;
    }
    let least = if replicas.min > 0 { replicas.min } else { u32::from(entry.waiting() > 0) };
    let least = entry.goal().clamp(least, replicas.max.max(least));
    let most = if replicas.min > 0 { least } else { replicas.max };
    let has = count(&wanted);
    if has == 0 && least > 0 {
        tell(DriftKind::NewDeployment, None, format!("{least} replicas, and no worker has it"));
    } else if has < least {
        tell(DriftKind::ScaleUp, None, format!("{least} replicas rather than {has}"));
    } else if has > most {
        tell(DriftKind::ScaleDown, None, format!("{most} replicas rather than {has}"));
    }
}
