//! Time from a declaration until all its replicas are ready.

use std::collections::BTreeMap;

use berth_plan::{Scope, World, report};
use berth_spec::{Deployment, DeploymentName, Generation, Time, status::Phase};

use super::Effect;

/// Declarations that are not ready yet, at most one per deployment.
#[derive(Debug, Default)]
pub(super) struct Stopwatch {
    running: BTreeMap<DeploymentName, (Generation, Time)>,
}

impl Stopwatch {
    /// A deployment was declared or changed. On-demand ones are ready when somebody asks: they have no such time.
    pub(super) fn start(&mut self, deployment: &Deployment, now: Time) {
        if deployment.spec.replicas.min == 0 || deployment.deleting {
            self.running.remove(&deployment.name);
            return;
        }
        let running = self.running.entry(deployment.name.clone()).or_insert((deployment.generation, now));
        if running.0 != deployment.generation {
            *running = (deployment.generation, now);
        }
    }

    pub(super) fn forget(&mut self, name: &DeploymentName) {
        self.running.remove(name);
    }

    /// A plan for `scope` was taken over: which of these are ready now?
    pub(super) fn stop(&mut self, world: &World, scope: &Scope, now: Time) -> Vec<Effect> {
        let candidates: Vec<DeploymentName> = match scope {
            Scope::All => self.running.keys().cloned().collect(),
            Scope::Only(names) => names.iter().filter(|name| self.running.contains_key(*name)).cloned().collect(),
        };
        let mut ready = Vec::new();
        for name in candidates {
            let status = report::status(world, &name, now).filter(|status| status.phase == Phase::Available);
            let generation = status.map(|status| status.observed_generation);
            let running = self.running.get(&name).filter(|(wanted, _)| generation >= Some(*wanted));
            if let Some((_, since)) = running.copied() {
                self.running.remove(&name);
                ready.push(Effect::BecameReady { deployment: name, took: now.since(since) });
            }
        }
        ready
    }
}
