//! How long it takes from a declaration until all that it wants is ready.

use std::collections::{BTreeMap, BTreeSet};

use berth_plan::{World, report};
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

    /// Something happened to these: which of them are ready now?
    pub(super) fn stop(&mut self, world: &World, touched: &BTreeSet<DeploymentName>, now: Time) -> Vec<Effect> {
        let mut ready = Vec::new();
        for name in touched {
            let Some((generation, since)) = self.running.get(name).copied() else { continue };
            let Some(status) = report::status(world, name, now) else { continue };
            if status.phase == Phase::Available && status.observed_generation >= generation {
                self.running.remove(name);
                ready.push(Effect::BecameReady { deployment: name.clone(), took: now.since(since) });
            }
        }
        ready
    }
}
