//! A gateway with its clients: it knows routes, parks requests on a miss, and counts what became of them.

use std::collections::BTreeMap;

use berth_spec::{Demand, DeploymentName, Route, RouteChange, Time, WorkerId, routes::OnMiss};

/// The gateway.
#[derive(Debug, Default)]
pub struct Gate {
    routes: BTreeMap<DeploymentName, Route>,
    parked: BTreeMap<DeploymentName, u32>,
}

/// What became of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// There is a replica for them here.
    Ready {
        /// How many.
        requests: u32,
        /// Where.
        worker: WorkerId,
        /// The version that answers.
        version: String,
    },
    /// They wait.
    Parked,
    /// They were refused, with the reason.
    Refused {
        /// How many.
        requests: u32,
        /// Why.
        reason: String,
    },
}

impl Gate {
    /// Requests arrive.
    pub fn infer(&mut self, name: &DeploymentName, requests: u32) -> Outcome {
        *self.parked.entry(name.clone()).or_default() += requests;
        self.settle(name).unwrap_or(Outcome::Parked)
    }

    /// Routes arrive: whoever can go on goes on.
    pub fn routes(&mut self, change: RouteChange) -> Vec<(DeploymentName, Outcome)> {
        if change.base.is_none() {
            self.routes.clear();
        }
        for name in &change.unset {
            self.routes.remove(name);
        }
        for route in change.set {
            self.routes.insert(route.deployment.clone(), route);
        }
        let waiting: Vec<DeploymentName> = self.parked.keys().cloned().collect();
        waiting.into_iter().filter_map(|name| self.settle(&name).map(|outcome| (name, outcome))).collect()
    }

    fn settle(&mut self, name: &DeploymentName) -> Option<Outcome> {
        let requests = *self.parked.get(name)?;
        let outcome = match self.routes.get(name) {
            None => Outcome::Refused { requests, reason: "not found".to_owned() },
            Some(route) => match ready(route) {
                Some((worker, version)) => Outcome::Ready { requests, worker, version },
                None => match &route.on_miss {
                    OnMiss::Park => return None,
                    OnMiss::NoCapacity { message, .. } => {
                        Outcome::Refused { requests, reason: format!("no_capacity: {message}") }
                    }
                    OnMiss::Failed { message, .. } => {
                        Outcome::Refused { requests, reason: format!("load_failed: {message}") }
                    }
                    OnMiss::ScaledDown => Outcome::Refused { requests, reason: "scaled_down".to_owned() },
                },
            },
        };
        self.parked.remove(name);
        Some(outcome)
    }

    /// A replica refused them after all: they wait for the next route.
    pub fn park(&mut self, name: &DeploymentName, requests: u32) {
        *self.parked.entry(name.clone()).or_default() += requests;
    }

    /// What the controller is told of one deployment.
    #[must_use]
    pub fn demand(&self, name: &DeploymentName, requests: u32, now: Time) -> Demand {
        let waiting = self.parked.get(name).copied().unwrap_or(0);
        Demand { deployment: name.clone(), waiting, in_flight: 0, last_used: now, requests: requests.into() }
    }

    /// What waits.
    #[must_use]
    pub fn parked(&self) -> &BTreeMap<DeploymentName, u32> {
        &self.parked
    }

    /// The clients of one deployment give up.
    pub fn give_up(&mut self, name: &DeploymentName) {
        self.parked.remove(name);
    }
}

fn ready(route: &Route) -> Option<(WorkerId, String)> {
    let (revision, _) = route.split.first()?;
    let version = route.versions.iter().find(|version| version.revision == *revision)?;
    Some((version.ready.first()?.clone(), version.name.clone()))
}
