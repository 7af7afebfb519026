//! A second opinion about what was decided, kept up to date with each step: it follows the plans that the store takes,
//! adds up claims itself, and looks again only at what a step touched. The full linter, which looks at everything, has
//! its say every so many steps (see [`cluster`](crate::cluster)).

use std::collections::{BTreeMap, BTreeSet};

use berth_control::controller::PlanCommit;
use berth_plan::{Record, Rollout, World};
use berth_spec::{ByteSize, DeploymentName, RevisionId, RouteChange, WorkerId};

/// Totals of the store's records.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    /// Claims by worker and revision.
    claims: BTreeMap<WorkerId, BTreeMap<RevisionId, ByteSize>>,
    /// The places of each deployment's replicas.
    places: BTreeMap<DeploymentName, Vec<(WorkerId, RevisionId)>>,
    /// The number of replicas that were placed or removed.
    pub(crate) moves: u64,
}

impl Audit {
    /// A plan was stored that was made from `world`.
    pub(crate) fn stored(&mut self, commit: &PlanCommit, world: &World, broken: &mut Vec<String>) {
        let mut touched: BTreeSet<WorkerId> = BTreeSet::new();
        for (name, record) in &commit.records {
            self.replace(name, record.as_ref(), &mut touched, broken);
            if let Some(record) = record {
                shape(name, record, world, broken);
            }
        }
        for worker in &touched {
            self.capacity(worker, world, broken);
        }
    }

    /// A plan was stored by a leader that is gone meanwhile.
    pub(crate) fn stored_unseen(&mut self, commit: &PlanCommit) {
        for (name, record) in &commit.records {
            self.replace(name, record.as_ref(), &mut BTreeSet::new(), &mut Vec::new());
        }
    }

    fn replace(
        &mut self,
        name: &DeploymentName,
        record: Option<&Record>,
        touched: &mut BTreeSet<WorkerId>,
        broken: &mut Vec<String>,
    ) {
        let before: BTreeSet<(WorkerId, RevisionId)> = self.places.remove(name).into_iter().flatten().collect();
        for (worker, revision) in &before {
            if let Some(claims) = self.claims.get_mut(worker) {
                claims.remove(revision);
            }
        }
        let mut after = BTreeSet::new();
        for replica in record.iter().flat_map(|record| &record.replicas) {
            let place = (replica.worker.clone(), replica.revision.clone());
            self.claims.entry(place.0.clone()).or_default().insert(place.1.clone(), replica.claim);
            touched.insert(replica.worker.clone());
            if !after.insert(place) {
                broken.push(format!("{} is recorded twice on {}", replica.revision, replica.worker));
            }
        }
        let moved = before.symmetric_difference(&after).count();
        self.moves += u64::try_from(moved).unwrap_or(u64::MAX);
        if !after.is_empty() {
            self.places.insert(name.clone(), after.into_iter().collect());
        }
    }

    fn capacity(&self, worker: &WorkerId, world: &World, broken: &mut Vec<String>) {
        let Some(tracked) = world.worker(worker).filter(|tracked| tracked.alive()) else { return };
        let Some(info) = &tracked.info else { return };
        let claims = self.claims.get(worker);
        let claimed: ByteSize = claims.into_iter().flat_map(BTreeMap::values).copied().sum();
        if claimed > info.memory {
            broken.push(format!("{worker} is claimed {claimed} of {}", info.memory));
        }
        let held = claims.map_or(0, BTreeMap::len);
        if info.max_models.is_some_and(|max| held > usize::try_from(max).unwrap_or(usize::MAX)) {
            broken.push(format!("{worker} is assigned {held} models and may hold {:?}", info.max_models));
        }
        let gpus = |revision: &RevisionId| {
            let need = world.deployment(revision.deployment()).and_then(|deployment| deployment.spec.gpu.as_ref());
            need.map_or(0, |need| usize::try_from(need.count).unwrap_or(usize::MAX))
        };
        let gpus: usize = claims.into_iter().flat_map(BTreeMap::keys).map(gpus).sum();
        if gpus > info.gpus.len() {
            broken.push(format!("{worker} has {} GPUs, and {gpus} are claimed", info.gpus.len()));
        }
    }

    /// A worker was told what it should hold: that is what the records say.
    pub(crate) fn told(&self, worker: &WorkerId, world: &World, broken: &mut Vec<String>) {
        let Some(tracked) = world.worker(worker) else { return };
        let none = BTreeMap::new();
        let claims = self.claims.get(worker).unwrap_or(&none);
        let assigned = tracked.assigned.iter().map(|(revision, placed)| (revision, &placed.claim));
        if !claims.iter().eq(assigned) {
            let assigned: Vec<_> = tracked.assigned.keys().collect();
            let recorded: Vec<_> = claims.keys().collect();
            broken.push(format!("{worker} is told to hold {assigned:?}, and the records say {recorded:?}"));
        }
    }

    /// Gateways were told routes: each leads to what is recorded. (Whether it is ready there may have changed while the
    /// plan was being stored; the full linter looks at that.)
    pub(crate) fn routed(&self, change: &RouteChange, broken: &mut Vec<String>) {
        // A gateway that joins while a plan is being stored is told how things were before it, and the difference next.
        if change.base.is_none() {
            return;
        }
        for route in &change.set {
            for version in &route.versions {
                let recorded = |worker: &&WorkerId| {
                    self.claims.get(*worker).is_some_and(|claims| claims.contains_key(&version.revision))
                };
                let vain = version.ready.iter().filter(|worker| !recorded(worker));
                broken
                    .extend(vain.map(|worker| format!("the route of {} leads to {worker} in vain", route.deployment)));
            }
        }
    }

    /// The places of all replicas, by deployment.
    pub(crate) fn places(&self) -> &BTreeMap<DeploymentName, Vec<(WorkerId, RevisionId)>> {
        &self.places
    }
}

/// A record holds what its rollout names. (How many there may be beside those that leave, the linter knows.)
fn shape(name: &DeploymentName, record: &Record, world: &World, broken: &mut Vec<String>) {
    if world.deployment(name).is_none() {
        broken.push(format!("{name} has a record and no deployment"));
    }
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
    }
}
