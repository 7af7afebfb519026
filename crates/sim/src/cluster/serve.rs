//! Requests: from a client to a gateway, from there to a worker and back; elsewhere if that is safe.

use std::time::Duration;

use berth_spec::{Demand, DeploymentName, GatewayEvent, RevisionId, RouteChange, WorkerId};

use super::Cluster;
use crate::{
    event_queue::SimEvent,
    gateway::RoutingDecision,
    net::{HOP, KEEPALIVE},
    request::{Answer, Attempt, Request, RequestId, RequestState},
    stream::Message,
};

/// The time that a model runs.
const RUN: Duration = Duration::from_millis(10);

/// The number of places that get a request whose connection broke under it: one node's death does not show, and a
/// request that kills its worker kills few of them.
const PLACES: u32 = 3;

impl Cluster {
    /// Clients send requests for a deployment to a gateway.
    pub fn infer_at(&mut self, gateway_id: &WorkerId, name: &DeploymentName, count: u32) {
        if !self.awake(gateway_id) {
            return; // A client that finds its gateway dead asks another.
        }
        let id = self.requests.arrive(gateway_id, name, count, self.now);
        if let Some(patience) = self.watch.patience {
            self.schedule(patience, SimEvent::Patience { request: id });
        }
        let clock = self.processes[gateway_id].clock(self.now);
        if let Some(gateway) = self.gateways.get_mut(gateway_id) {
            gateway.note(name, count.into(), clock);
        }
        self.route(id);
        self.rewake(gateway_id);
    }

    /// The same at the first gateway.
    pub fn infer(&mut self, name: &DeploymentName, count: u32) {
        if let Some(gateway_id) = self.gateways.keys().next().cloned() {
            self.infer_at(&gateway_id, name, count);
        }
    }

    /// The clients of a deployment give up waiting.
    pub fn give_up(&mut self, name: &DeploymentName) {
        let parked = self.gateways.values().filter_map(|gateway| gateway.parked().get(name)).flatten();
        for request in parked.copied().collect::<Vec<_>>() {
            self.ends(request, End::GaveUp);
        }
    }

    /// Somebody asks that a deployment be paged out.
    pub fn page_out(&mut self, name: &DeploymentName) {
        if let Some(gateway_id) = self.gateways.keys().next().cloned() {
            self.say_up(&gateway_id, Message::Gateway(GatewayEvent::PageOut(name.clone())));
        }
    }

    /// Sends a request where its gateway's routes lead.
    fn route(&mut self, id: RequestId) {
        let Some(Request { name, gateway_id, tried, .. }) = self.requests.open.get(&id).cloned() else { return };
        let Some(gateway) = self.gateways.get(&gateway_id) else { return };
        let (region, processes) = (&gateway.region, &self.processes);
        let near = |worker: &WorkerId| {
            region.is_some() && processes.get(worker).is_some_and(|process| process.region == *region)
        };
        match gateway.choose(&name, &tried, near, &mut self.rng) {
            RoutingDecision::Forward { worker, revision, version } => self.forward(id, &worker, revision, version),
            RoutingDecision::Park => self.park(id, &gateway_id, &name),
            RoutingDecision::Refuse(reason, message) => self.ends(id, End::Refused(reason, message)),
        }
    }

    fn forward(&mut self, id: RequestId, worker: &WorkerId, revision: RevisionId, version: String) {
        let Some(request) = self.requests.open.get_mut(&id) else { return };
        let (gateway_id, name, count) = (request.gateway_id.clone(), request.name.clone(), u64::from(request.count));
        request.attempt.0 += 1;
        let attempt = request.attempt;
        if attempt.0 > 1 {
            self.requests.tally.retried += count;
        }
        request.state = RequestState::At { worker: worker.clone(), version };
        if let Some(gateway) = self.gateways.get_mut(&gateway_id) {
            gateway.depart(&name, id, worker);
        }
        self.unpark(id);
        self.broken.extend(self.oracle.may_go(&gateway_id, &name, &revision));
        if self.net.passes(&gateway_id, worker) {
            let after = self.net.delay(HOP, &mut self.rng);
            self.schedule(after, SimEvent::RequestArrives { request: id, attempt, worker: worker.clone(), revision });
        } else {
            self.schedule(KEEPALIVE, SimEvent::Silent { request: id, attempt });
        }
    }

    fn park(&mut self, id: RequestId, gateway_id: &WorkerId, name: &DeploymentName) {
        if let Some(request) = self.requests.open.get_mut(&id) {
            request.state = RequestState::Parked;
            request.tried.clear();
        }
        let Some(gateway) = self.gateways.get_mut(gateway_id) else { return };
        if gateway.park(name, id) {
            self.log(name.as_str(), "parked");
            self.flush(gateway_id);
        }
    }

    /// A request waits no longer; when nobody else does either, the leader hears of it.
    fn unpark(&mut self, id: RequestId) {
        let Some(Request { gateway_id, name, .. }) = self.requests.open.get(&id) else { return };
        let (gateway_id, name) = (gateway_id.clone(), name.clone());
        let clock = self.processes[&gateway_id].clock(self.now);
        if let Some(gateway) = self.gateways.get_mut(&gateway_id)
            && gateway.unpark(&name, id)
        {
            gateway.note(&name, 0, clock);
            self.flush(&gateway_id);
        }
    }

    /// Routes arrive: whoever can go on goes on.
    pub(super) fn routes_arrive(&mut self, gateway_id: &WorkerId, change: RouteChange) {
        let Some(gateway) = self.gateways.get_mut(gateway_id) else { return };
        self.oracle.applied(gateway_id, &change);
        let hopeful = gateway.apply(change);
        for name in hopeful {
            let parked = self.gateways[gateway_id].parked().get(&name).cloned().unwrap_or_default();
            parked.into_iter().for_each(|id| self.route(id));
        }
    }

    /// Whoever waits at a gateway looks again: a timer behind the events.
    pub(super) fn retry_parked(&mut self, gateway_id: &WorkerId) {
        let Some(gateway) = self.gateways.get(gateway_id) else { return };
        let parked: Vec<RequestId> = gateway.parked().values().flatten().copied().collect();
        parked.into_iter().for_each(|id| self.route(id));
    }

    /// A gateway tells the leader about use. Without a stream it keeps that for later.
    pub(super) fn flush(&mut self, gateway_id: &WorkerId) {
        let Some(process) = self.processes.get(gateway_id) else { return };
        let (clock, connected) = (process.clock(self.now), matches!(process.uplink, crate::process::Uplink::Up(_)));
        let Some(gateway) = self.gateways.get_mut(gateway_id) else { return };
        if !connected {
            gateway.flush_at = gateway.flush_at.map(|_| clock + crate::gateway::FLUSH);
            return self.rewake(gateway_id);
        }
        let demands: Vec<Demand> = gateway.flush(clock);
        if !demands.is_empty() {
            self.say_up(gateway_id, Message::Gateway(GatewayEvent::Demand(demands)));
        }
        self.rewake(gateway_id);
    }

    /// A gateway has found a leader, which knows nothing of who waits.
    pub(super) fn tell_all_demand(&mut self, gateway_id: &WorkerId) {
        let clock = self.processes[gateway_id].clock(self.now);
        if let Some(gateway) = self.gateways.get_mut(gateway_id) {
            for name in gateway.in_demand() {
                gateway.note(&name, 0, clock);
            }
        }
        self.flush(gateway_id);
    }

    /// A forwarded request arrives at a worker.
    pub(super) fn request_arrives(&mut self, id: RequestId, attempt: Attempt, worker: &WorkerId, revision: RevisionId) {
        let Some(request) = self.requests.open.get_mut(&id).filter(|request| request.attempt == attempt) else {
            return;
        };
        let gateway_id = request.gateway_id.clone();
        if !self.net.passes(&gateway_id, worker) || !self.processes.contains_key(worker) {
            return self.schedule(KEEPALIVE, SimEvent::Silent { request: id, attempt });
        }
        let start = self.processes[worker].start;
        let Some(machine) = self.machines.get_mut(worker) else {
            // Its machine says that nobody listens, unless that is gone, too.
            return match self.faults.is_powered_off(worker) {
                true => self.schedule(KEEPALIVE, SimEvent::Silent { request: id, attempt }),
                false => self.answer(id, attempt, worker, Answer::NotRun),
            };
        };
        if machine.run(&revision) {
            request.runs += 1;
            let after = machine.takes(RUN);
            self.schedule(
                after,
                SimEvent::RequestRan { request: id, attempt, worker: worker.clone(), start, revision },
            );
        } else {
            self.answer(id, attempt, worker, Answer::NotRun);
        }
    }

    /// A worker has run a request.
    pub(super) fn request_ran(&mut self, id: RequestId, attempt: Attempt, worker: &WorkerId, revision: RevisionId) {
        let drained = self.machines.get_mut(worker).and_then(|machine| machine.ran(&revision));
        drained.into_iter().for_each(|event| self.hear(worker, event));
        self.answer(id, attempt, worker, Answer::By(revision));
    }

    fn answer(&mut self, id: RequestId, attempt: Attempt, worker: &WorkerId, answer: Answer) {
        let after = self.net.delay(HOP, &mut self.rng);
        self.schedule(after, SimEvent::AnswerArrives { request: id, attempt, worker: worker.clone(), answer });
    }

    /// The answer arrives at the gateway.
    pub(super) fn answer_arrives(&mut self, id: RequestId, attempt: Attempt, worker: &WorkerId, answer: Answer) {
        let Some(request) = self.requests.open.get(&id).filter(|request| request.attempt == attempt) else { return };
        if !self.net.passes(worker, &request.gateway_id) {
            return self.schedule(KEEPALIVE, SimEvent::Silent { request: id, attempt });
        }
        match answer {
            Answer::By(revision) => self.ends(id, End::Answered(revision)),
            Answer::NotRun => self.elsewhere(id),
            Answer::Broken => self.broke(id),
        }
    }

    /// Nothing has come of an attempt.
    pub(super) fn silent(&mut self, id: RequestId, attempt: Attempt) {
        if self.requests.open.get(&id).is_some_and(|request| request.attempt == attempt) {
            self.broke(id);
        }
    }

    /// The connection broke under a request: it may have been run.
    pub(super) fn broke(&mut self, id: RequestId) {
        let Some(request) = self.requests.open.get_mut(&id) else { return };
        request.broken += 1;
        let often = request.broken >= PLACES;
        let Some(gateway) = self.gateways.get(&request.gateway_id) else { return };
        let twice = gateway.route(&request.name).is_none_or(|route| route.idempotent);
        if often || !twice {
            self.ends(id, End::Refused("unavailable", "its worker is gone".to_owned()));
        } else {
            self.elsewhere(id);
        }
    }

    /// Another place for a request, or it waits for one.
    fn elsewhere(&mut self, id: RequestId) {
        self.lands(id);
        if let Some(request) = self.requests.open.get_mut(&id) {
            if let RequestState::At { worker, .. } = std::mem::replace(&mut request.state, RequestState::Parked) {
                request.tried.push(worker);
            }
            self.route(id);
        }
    }

    fn lands(&mut self, id: RequestId) {
        let Some(request) = self.requests.open.get(&id) else { return };
        if let RequestState::At { worker, .. } = &request.state
            && let Some(gateway) = self.gateways.get_mut(&request.gateway_id)
        {
            gateway.land(&request.name, id, worker);
        }
    }

    /// A client's patience ends.
    pub(super) fn impatient(&mut self, id: RequestId) {
        if self.requests.open.contains_key(&id) {
            self.ends(id, End::GaveUp);
        }
    }

    fn ends(&mut self, id: RequestId, end: End) {
        self.lands(id);
        self.unpark(id);
        let Some(request) = self.requests.open.remove(&id) else { return };
        let count = u64::from(request.count);
        match &end {
            End::Answered(revision) => {
                self.requests.tally.answered += count;
                self.broken.extend(self.oracle.may_answer(&request, revision));
                if let RequestState::At { worker, version } = &request.state {
                    self.log(request.name.as_str(), &format!("{count} answered by {version} on {worker}"));
                }
            }
            End::Refused(reason, message) => {
                *self.requests.tally.refused.entry(reason).or_default() += count;
                let why = if message.is_empty() { (*reason).to_owned() } else { format!("{reason}: {message}") };
                self.log(request.name.as_str(), &format!("{count} refused: {why}"));
            }
            End::GaveUp => {
                self.requests.tally.gave_up += count;
                self.log(request.name.as_str(), &format!("{count} gave up"));
            }
        }
        if !matches!(end, End::Answered(_)) {
            let needless = self.needless(&request);
            self.broken.extend(needless);
        }
    }

    /// True if a request failed though it could have been answered: two copies have long been ready where its gateway
    /// reaches them, and no more than one thing is wrong.
    fn needless(&mut self, request: &Request) -> Option<String> {
        const LONG: Duration = Duration::from_secs(10);
        let declared = self.store.deployment(&request.name).filter(|deployment| !deployment.deleting)?;
        let wanted = declared.revision_id();
        if self.faults.troubles(self.now) > 1 || self.watch.patience.is_none() || !self.awake(&request.gateway_id) {
            return None;
        }
        let copies: Vec<&WorkerId> = self
            .machines
            .iter()
            .filter(|(id, machine)| {
                let since = machine.callable.get(&wanted);
                since.is_some_and(|since| *since + LONG <= self.now)
                    && machine.slowdown == 1
                    && self.awake(id)
                    && self.net.joined(&request.gateway_id, id)
            })
            .map(|(id, _)| id)
            .collect();
        (copies.len() >= 2)
            .then(|| format!("a request for {} failed though {copies:?} were ready: {request:?}", request.name))
    }
}

/// The end of a request.
enum End {
    Answered(RevisionId),
    Refused(&'static str, String),
    GaveUp,
}
