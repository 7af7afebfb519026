//! Differences between desired state and workers' reports: reported once when they begin, counted while they last.

use std::collections::{BTreeMap, BTreeSet};

use berth_plan::{
    Scope, World,
    drift::{Drift, DriftKind, SchemaViolation, drift, schema_violations, unresponsive},
};
use berth_spec::{DeploymentName, WorkerId};

use super::Effect;

/// Differences of the last look.
#[derive(Debug, Default)]
pub(super) struct DriftTracker {
    /// By deployment, so that one is looked at without the rest.
    deployments: BTreeMap<DeploymentName, BTreeSet<Drift>>,
    workers: BTreeMap<WorkerId, Drift>,
    counted: BTreeMap<DriftKind, usize>,
    /// Model cards that nobody reads, and were told of.
    unread: BTreeSet<SchemaViolation>,
}

impl DriftTracker {
    /// Looks at what is about to be planned for.
    pub(super) fn look(&mut self, world: &World, scope: &Scope, out: &mut Vec<Effect>) {
        let mut now: BTreeMap<DeploymentName, BTreeSet<Drift>> = BTreeMap::new();
        for drift in drift(world, scope) {
            if let Some(name) = &drift.deployment {
                now.entry(name.clone()).or_default().insert(drift);
            }
        }
        let looked_at: Vec<DeploymentName> = match scope {
            Scope::All => self.deployments.keys().chain(now.keys()).cloned().collect(),
            Scope::Only(names) => names.iter().cloned().collect(),
        };
        for name in looked_at {
            let found = now.remove(&name).unwrap_or_default();
            let known = self.deployments.remove(&name).unwrap_or_default();
            out.extend(found.iter().filter(|drift| !told(&known, drift)).cloned().map(Effect::Drifted));
            if !found.is_empty() {
                self.deployments.insert(name, found);
            }
        }
        let lost = unresponsive(world).into_iter().filter_map(|drift| Some((drift.worker.clone()?, drift)));
        let lost: BTreeMap<WorkerId, Drift> = lost.collect();
        let began = lost.iter().filter(|(worker, _)| !self.workers.contains_key(*worker));
        out.extend(began.map(|(_, drift)| Effect::Drifted(drift.clone())));
        self.workers = lost;
        self.count(out);
        self.look_at_cards(world, scope, out);
    }

    fn look_at_cards(&mut self, world: &World, scope: &Scope, out: &mut Vec<Effect>) {
        let found = schema_violations(world, scope);
        let news: Vec<_> = found.iter().filter(|violation| !self.unread.contains(*violation)).cloned().collect();
        // What was not looked at is as it was.
        self.unread.retain(|known| match scope {
            Scope::All => false,
            Scope::Only(names) => !names.contains(&known.deployment),
        });
        self.unread.extend(found);
        out.extend(news.into_iter().map(Effect::SchemaViolated));
    }

    fn count(&mut self, out: &mut Vec<Effect>) {
        let mut counted: BTreeMap<DriftKind, usize> = BTreeMap::new();
        for drift in self.deployments.values().flatten().chain(self.workers.values()) {
            *counted.entry(drift.kind).or_default() += 1;
        }
        if counted != self.counted {
            self.counted.clone_from(&counted);
            out.push(Effect::DriftCount(counted));
        }
    }
}

/// True if the same difference was reported before: of the same kind at the same place, in any words.
fn told(known: &BTreeSet<Drift>, drift: &Drift) -> bool {
    known.iter().any(|known| known.kind == drift.kind && known.worker == drift.worker)
}
