//! Deployments that somebody wants loaded without a request: a demand of one, until they are ready or cannot be. Loads that
//! requests wait for go first. A load that has failed and is tried again later ends the demand: its worker goes on, and models
//! of higher priority may have its room.

use std::{collections::BTreeMap, time::Duration};

use berth_plan::{Scope, report, world::EXPLICIT_LOADS};
use berth_spec::{
    Demand, DeploymentName, Residency, Time,
    status::{Phase, ReplicaStatus, Status},
};

use super::Controller;

/// The time after which nobody waits any more: the longest that a caller of ModelMesh's API does.
const AT_MOST: Duration = Duration::from_secs(600);

/// The deployments that are wanted so, with the end of their demand.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    until: BTreeMap<DeploymentName, Time>,
    /// No demand ends before.
    first_end: Time,
}

impl Controller {
    /// Somebody wants it loaded. `last_used` says who has to leave first when room is short.
    pub(super) fn want(&mut self, name: DeploymentName, last_used: Time, now: Time) {
        if self.world.deployment(&name).is_none_or(|deployment| deployment.deleting) {
            return;
        }
        self.say_wanted(&name, 1, last_used, now);
        if self.wanted.until.is_empty() {
            self.wanted.first_end = now + AT_MOST;
        }
        self.wanted.until.insert(name, now + AT_MOST);
        self.due.hurry(now);
    }

    /// Lets go of those that are ready, or cannot be loaded now, as far as a plan has looked at them.
    pub(super) fn release_wanted(&mut self, scope: &Scope, now: Time) {
        if self.wanted.until.is_empty() {
            return;
        }
        let looked_at: Vec<DeploymentName> = match scope {
            Scope::Only(names) if now < self.wanted.first_end => {
                names.iter().filter(|name| self.wanted.until.contains_key(*name)).cloned().collect()
            }
            _ => self.wanted.until.keys().cloned().collect(),
        };
        for name in looked_at {
            let over = self.wanted.until.get(&name).is_some_and(|until| *until <= now);
            if over || self.is_settled(&name, now) {
                self.wanted.until.remove(&name);
                self.say_wanted(&name, 0, Time::ZERO, now);
            }
        }
        if now >= self.wanted.first_end {
            self.wanted.first_end = self.wanted.until.values().min().copied().unwrap_or(now + AT_MOST);
        }
    }

    fn is_settled(&self, name: &DeploymentName, now: Time) -> bool {
        report::status(&self.world, name, now).is_none_or(|status| {
            status.ready > 0 || all_failed(&status) || !matches!(status.phase, Phase::Progressing | Phase::ScaledDown)
        })
    }

    fn say_wanted(&mut self, name: &DeploymentName, waiting: u32, last_used: Time, now: Time) {
        let demand = Demand { deployment: name.clone(), waiting, in_flight: 0, last_used, requests: 0 };
        self.world.demand(EXPLICIT_LOADS, &demand, now);
    }
}

/// True if each replica waits for the next attempt to load it.
fn all_failed(status: &Status) -> bool {
    let waits = |replica: &ReplicaStatus| match &replica.residency {
        Some(Residency::Failed(failure)) => failure.retry_at.is_some() && !replica.lost,
        _ => false,
    };
    !status.replicas.is_empty() && status.replicas.iter().all(waits)
}
