//! A gateway: it knows routes, parks requests on a miss, and tells the leader about use.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use berth_spec::{Demand, DeploymentName, RevisionId, Route, RouteChange, Time, WorkerId, routes::OnMiss};

use crate::{request::RequestId, rng::Rng};

/// The interval at which use is reported that nobody waits for.
pub(crate) const FLUSH: Duration = Duration::from_secs(1);

/// A gateway's routes, and the requests that it has parked or forwarded.
#[derive(Debug, Default)]
pub struct Gateway {
    /// The region whose workers it prefers; `None`: it prefers none.
    pub region: Option<String>,
    pub(crate) routes: BTreeMap<DeploymentName, Route>,
    pub(crate) parked: BTreeMap<DeploymentName, BTreeSet<RequestId>>,
    /// Requests that were forwarded, by where to.
    pub(crate) flying: BTreeMap<WorkerId, BTreeSet<RequestId>>,
    /// The number of forwarded requests for each deployment.
    in_flight: BTreeMap<DeploymentName, u32>,
    /// Workers that the members say are gone.
    pub(crate) gone: BTreeSet<WorkerId>,
    /// The use to report with the next flush: requests since the last one, and the time of the latest request.
    used: BTreeMap<DeploymentName, (u64, Time)>,
    pub(crate) flush_at: Option<Time>,
}

/// Decision about a request: its destination, or its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RoutingDecision {
    /// Forwarded to this worker, by the name of this version.
    Forward { worker: WorkerId, revision: RevisionId, version: String },
    /// Waits at its gateway.
    Park,
    /// Back to the client, with the reason and what the route says.
    Refuse(&'static str, String),
}

impl Gateway {
    pub(crate) fn new(region: Option<String>) -> Self {
        Self { region, ..Self::default() }
    }

    /// The route of a deployment; `None`: the leader has told none.
    #[must_use]
    pub fn route(&self, name: &DeploymentName) -> Option<&Route> {
        self.routes.get(name)
    }

    /// Takes routes in and names the deployments that somebody waits for and that may go on.
    pub(crate) fn apply(&mut self, change: RouteChange) -> Vec<DeploymentName> {
        if change.base.is_none() {
            self.routes.clear();
        }
        let mut touched: BTreeSet<DeploymentName> = change.unset.iter().cloned().collect();
        touched.extend(change.set.iter().map(|route| route.deployment.clone()));
        for name in &change.unset {
            self.routes.remove(name);
        }
        for route in change.set {
            self.routes.insert(route.deployment.clone(), route);
        }
        let whole = change.base.is_none();
        self.parked.keys().filter(|name| whole || touched.contains(*name)).cloned().collect()
    }

    /// The target of a request for a deployment that these workers did not answer. Of two ready ones, picked by chance, the
    /// one with fewer requests; those of its own region before others.
    pub(crate) fn choose(
        &self,
        name: &DeploymentName,
        tried: &[WorkerId],
        near: impl Fn(&WorkerId) -> bool,
        rng: &mut Rng,
    ) -> RoutingDecision {
        let Some(route) = self.routes.get(name) else { return RoutingDecision::Refuse("not_found", String::new()) };
        let version = route.split.first().and_then(|(revision, _)| {
            route.versions.iter().find(|version| version.revision == *revision && !version.ready.is_empty())
        });
        if let Some(version) = version {
            let fit = |worker: &&WorkerId| !tried.contains(worker) && !self.gone.contains(*worker);
            let mut ready: Vec<&WorkerId> = version.ready.iter().filter(fit).collect();
            if ready.iter().any(|worker| near(worker)) {
                ready.retain(|worker| near(worker));
            }
            if ready.is_empty() {
                return RoutingDecision::Park;
            }
            let load = |worker: &&WorkerId| self.flying.get(*worker).map_or(0, BTreeSet::len);
            let (one, other) = (*rng.of(&ready), *rng.of(&ready));
            let worker = if load(&other) < load(&one) { other } else { one }.clone();
            return RoutingDecision::Forward {
                worker,
                revision: version.revision.clone(),
                version: version.name.clone(),
            };
        }
        match &route.on_miss {
            OnMiss::Park => RoutingDecision::Park,
            OnMiss::NoCapacity { message, .. } => RoutingDecision::Refuse("no_capacity", message.clone()),
            OnMiss::Failed { message, .. } => RoutingDecision::Refuse("load_failed", message.clone()),
            OnMiss::ScaledDown => RoutingDecision::Refuse("scaled_down", String::new()),
            OnMiss::Restarting { message, .. } => RoutingDecision::Refuse("unavailable", message.clone()),
        }
    }

    /// A request waits. Says whether it is the first.
    pub(crate) fn park(&mut self, name: &DeploymentName, id: RequestId) -> bool {
        let lot = self.parked.entry(name.clone()).or_default();
        lot.insert(id) && lot.len() == 1
    }

    /// Ends a wait. Returns true if it was the last.
    pub(crate) fn unpark(&mut self, name: &DeploymentName, id: RequestId) -> bool {
        let Some(lot) = self.parked.get_mut(name) else { return false };
        let was = lot.remove(&id);
        let last = lot.is_empty();
        if last {
            self.parked.remove(name);
        }
        was && last
    }

    pub(crate) fn depart(&mut self, name: &DeploymentName, id: RequestId, worker: &WorkerId) {
        self.flying.entry(worker.clone()).or_default().insert(id);
        *self.in_flight.entry(name.clone()).or_default() += 1;
    }

    pub(crate) fn land(&mut self, name: &DeploymentName, id: RequestId, worker: &WorkerId) {
        if let Some(flying) = self.flying.get_mut(worker) {
            flying.remove(&id);
            if flying.is_empty() {
                self.flying.remove(worker);
            }
        }
        if let Some(count) = self.in_flight.get_mut(name) {
            *count -= 1;
            if *count == 0 {
                self.in_flight.remove(name);
            }
        }
    }

    /// Notes use, which is told with the next flush.
    pub(crate) fn note(&mut self, name: &DeploymentName, requests: u64, now: Time) {
        let (count, last) = self.used.entry(name.clone()).or_default();
        *count += requests;
        *last = now;
        self.flush_at.get_or_insert(now + FLUSH);
    }

    /// The reports to the leader: what was used, and, as long as requests wait or are in flight, what is in demand.
    pub(crate) fn flush(&mut self, now: Time) -> Vec<Demand> {
        let used = std::mem::take(&mut self.used);
        let demands: Vec<Demand> = used
            .into_iter()
            .map(|(name, (requests, last_used))| Demand {
                waiting: self.parked.get(&name).map_or(0, |lot| u32::try_from(lot.len()).unwrap_or(u32::MAX)),
                in_flight: self.in_flight.get(&name).copied().unwrap_or(0),
                last_used,
                requests,
                deployment: name,
            })
            .collect();
        self.flush_at = None;
        for demand in &demands {
            if demand.waiting > 0 || demand.in_flight > 0 {
                self.used.insert(demand.deployment.clone(), (0, demand.last_used));
                self.flush_at = Some(now + FLUSH);
            }
        }
        demands
    }

    /// Deployments that somebody waits for, or is being answered by.
    pub(crate) fn in_demand(&self) -> BTreeSet<DeploymentName> {
        self.parked.keys().chain(self.in_flight.keys()).cloned().collect()
    }

    /// The requests that wait, by deployment.
    #[must_use]
    pub fn parked(&self) -> &BTreeMap<DeploymentName, BTreeSet<RequestId>> {
        &self.parked
    }
}
