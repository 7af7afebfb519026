//! All of it together under one clock: messages are delivered in the order of their time, brains are woken when they
//! asked for it, and after each step the linter has its say.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use berth_control::controller::{Controller, Declared, Effect, Event};
use berth_plan::{Policy, Scope, lint, plan};
use berth_spec::{
    Deployment, DeploymentName, GatewayEvent, GatewayId, RevisionId, RouteChange, Time, WorkerId, WorkerInfo,
};

use crate::{
    chance::Chance,
    gate::{Gate, Outcome},
    node::{Model, Next, Node},
    state::State,
};

/// When a simulation begins.
const BEGIN: Time = Time(1_000_000_000_000);

/// The only gateway.
const GATEWAY: GatewayId = GatewayId(1);

/// Something on its way.
enum Post {
    /// To the controller, from this connection of this worker, or from the gateway or the store.
    Controller { epoch: u64, event: Event },
    /// To a worker that was started this often and connected this often.
    Worker { id: WorkerId, incarnation: u64, event: berth_worker::Event },
    /// To the gateway.
    Gateway(RouteChange),
}

/// What goes wrong by chance.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// A message takes up to this many milliseconds longer (0: none).
    pub jitter_ms: u64,
    /// The store refuses a commit once in so many (0: never).
    pub refuse_one_in: u64,
}

/// A whole system.
pub struct Cluster {
    /// The time.
    pub now: Time,
    /// What goes wrong.
    pub faults: Faults,
    /// Where chance comes from.
    pub chance: Chance,
    /// What the store holds.
    pub state: State,
    /// The artifacts that exist, by location.
    pub models: BTreeMap<String, Model>,
    /// The workers that run.
    pub nodes: BTreeMap<WorkerId, Node>,
    /// The gateway.
    pub gate: Gate,
    /// What happened, for people.
    pub log: Vec<String>,
    /// Requests that were answered.
    pub answered: u64,
    controller: Controller,
    /// How often the controller was started: what was meant for an earlier one is lost.
    epoch: u64,
    post: BTreeMap<(Time, u64), Post>,
    posted: u64,
    /// When the last message on a connection arrives: none overtakes another.
    arrivals: BTreeMap<String, Time>,
}

impl Cluster {
    /// An empty system; everything that happens follows from `seed` and what is done to it.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let state = State::default();
        let controller = Controller::new(Policy::default(), state.restore(), BEGIN);
        let mut cluster = Self {
            now: BEGIN,
            faults: Faults::default(),
            chance: Chance::new(seed),
            state,
            models: BTreeMap::new(),
            nodes: BTreeMap::new(),
            gate: Gate::default(),
            log: Vec::new(),
            answered: 0,
            controller,
            epoch: 0,
            post: BTreeMap::new(),
            posted: 0,
            arrivals: BTreeMap::new(),
        };
        cluster.tell_controller(
            "gateway",
            Event::GatewayAttached { id: GATEWAY, node: berth_plan::fixture::worker_id("gateway"), region: None },
        );
        cluster
    }

    /// All that the controller knows.
    #[must_use]
    pub fn world(&self) -> &berth_plan::World {
        self.controller.world()
    }

    /// Time since the beginning.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.now.since(BEGIN)
    }

    /// Declares or changes a deployment.
    pub fn declare(&mut self, deployment: Deployment) {
        let deployment = std::sync::Arc::new(deployment);
        let rev = self.state.declare(deployment.clone());
        self.tell_controller("store", Event::Changed { rev, changes: vec![Declared::Set { deployment, rev }] });
    }

    /// Starts a worker, again if it ran before.
    pub fn start(&mut self, info: WorkerInfo) {
        let id = info.id.clone();
        self.nodes.insert(id.clone(), Node::new(info));
        self.connect(&id);
    }

    /// A worker's process is gone, with all that it held.
    pub fn crash(&mut self, id: &WorkerId) {
        if self.nodes.remove(id).is_some() {
            self.tell_controller(id.as_str(), Event::WorkerDetached(id.clone()));
        }
    }

    /// A worker's connection breaks and comes back: what was on its way is lost.
    pub fn reconnect(&mut self, id: &WorkerId) {
        let lost = |post: &Post| match post {
            Post::Controller { event: Event::Reported(change), .. } => change.worker == *id,
            Post::Worker { id: to, event: berth_worker::Event::Assigned(_), .. } => to == id,
            _ => false,
        };
        self.post.retain(|_, post| !lost(post));
        self.tell_controller(id.as_str(), Event::WorkerDetached(id.clone()));
        self.connect(id);
    }

    /// The controller's process ends and another one starts from the store.
    pub fn restart_controller(&mut self) {
        self.epoch += 1;
        self.controller = Controller::new(Policy::default(), self.state.restore(), self.now);
        self.log("controller", "restarted");
        self.tell_controller(
            "gateway",
            Event::GatewayAttached { id: GATEWAY, node: berth_plan::fixture::worker_id("gateway"), region: None },
        );
        for name in self.gate.parked().keys().cloned().collect::<Vec<_>>() {
            self.tell_demand(&name, 0);
        }
        for id in self.nodes.keys().cloned().collect::<Vec<_>>() {
            self.connect(&id);
        }
    }

    fn connect(&mut self, id: &WorkerId) {
        let Some(node) = self.nodes.get(id) else { return };
        let info = node.info.clone();
        self.tell_controller(id.as_str(), Event::WorkerAttached(info));
        self.hear(id, berth_worker::Event::Attached);
    }

    /// Clients send requests.
    pub fn infer(&mut self, name: &DeploymentName, requests: u32) {
        let outcome = self.gate.infer(name, requests);
        self.outcome(name, outcome);
        self.tell_demand(name, requests);
    }

    /// The clients of a deployment give up waiting.
    pub fn give_up(&mut self, name: &DeploymentName) {
        self.gate.give_up(name);
        self.tell_demand(name, 0);
    }

    /// Somebody asks that a deployment be paged out.
    pub fn page_out(&mut self, name: &DeploymentName) {
        self.tell_controller("gateway", Event::Gateway(GATEWAY, GatewayEvent::PageOut(name.clone())));
    }

    fn tell_demand(&mut self, name: &DeploymentName, requests: u32) {
        let demand = self.gate.demand(name, requests, self.now);
        self.tell_controller("gateway", Event::Gateway(GATEWAY, GatewayEvent::Demand(vec![demand])));
    }

    fn outcome(&mut self, name: &DeploymentName, outcome: Outcome) {
        match outcome {
            Outcome::Ready { requests, worker, version } => {
                let holds = |id: &&RevisionId| id.deployment() == name;
                let callable = self.nodes.get(&worker).is_some_and(|node| node.callable.iter().any(|id| holds(&id)));
                if callable {
                    self.answered += u64::from(requests);
                    self.log(name.as_str(), &format!("{requests} answered by {version} on {worker}"));
                } else {
                    // It drains, or its worker is gone: not let in, so nothing is lost. Another route will come.
                    self.gate.park(name, requests);
                }
            }
            Outcome::Parked => self.log(name.as_str(), "parked"),
            Outcome::Refused { requests, reason } => self.log(name.as_str(), &format!("{requests} refused: {reason}")),
        }
    }

    /// Says something to people, with the time.
    pub fn log(&mut self, who: &str, what: &str) {
        self.log.push(format!("{:>9.3}s {who}: {what}", self.elapsed().as_secs_f64()));
    }

    fn arrival(&mut self, connection: &str, after: Duration) -> Time {
        let jitter = match self.faults.jitter_ms {
            0 => 0,
            most => self.chance.below(most),
        };
        let last = self.arrivals.get(connection).copied().unwrap_or(Time::ZERO);
        let at = (self.now + after + Duration::from_millis(jitter)).max(last);
        self.arrivals.insert(connection.to_owned(), at);
        at
    }

    fn send(&mut self, at: Time, post: Post) {
        self.posted += 1;
        self.post.insert((at, self.posted), post);
    }

    fn tell_controller(&mut self, from: &str, event: Event) {
        let at = self.arrival(&format!("{from} to controller"), Duration::from_millis(1));
        let epoch = self.epoch;
        self.send(at, Post::Controller { epoch, event });
    }

    /// How many messages there were: a number that grows, e.g. for incarnations.
    #[must_use]
    pub const fn posted_so_far(&self) -> u64 {
        self.posted
    }

    /// When the next thing happens.
    #[must_use]
    pub fn next(&self) -> Option<Time> {
        let agents = self.nodes.values().filter_map(|node| node.agent.wake_at());
        let post = self.post.keys().next().map(|(at, _)| *at);
        self.controller.wake_at().into_iter().chain(agents).chain(post).min().map(|at| at.max(self.now))
    }

    /// Does the next thing. Returns what the linter has to say, and `None` when there is nothing to do.
    pub fn step(&mut self) -> Option<Vec<lint::Violation>> {
        self.now = self.next()?;
        if let Some(entry) = self.post.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let post = entry.remove();
            self.deliver(post);
        } else if self.controller.wake_at().is_some_and(|at| at <= self.now) {
            let effects = self.controller.on(Event::Tick, self.now);
            self.perform(effects);
        } else {
            let due = |node: &&Node| node.agent.wake_at().is_some_and(|at| at <= self.now);
            let id = self.nodes.values().find(due).map(|node| node.info.id.clone())?;
            self.hear(&id, berth_worker::Event::Tick);
        }
        Some(self.check())
    }

    /// Goes on for a while.
    pub fn run_for(&mut self, duration: Duration) -> Vec<lint::Violation> {
        let until = self.now + duration;
        let mut broken = Vec::new();
        while self.next().is_some_and(|at| at <= until) {
            broken.extend(self.step().into_iter().flatten());
        }
        self.now = until;
        broken
    }

    fn deliver(&mut self, post: Post) {
        match post {
            Post::Controller { epoch, event } if epoch == self.epoch => {
                let effects = self.controller.on(event, self.now);
                self.perform(effects);
            }
            Post::Worker { id, incarnation, event } => {
                if self.nodes.get(&id).is_some_and(|node| node.info.incarnation == incarnation) {
                    self.hear(&id, event);
                }
            }
            Post::Gateway(change) => {
                for (name, outcome) in self.gate.routes(change) {
                    self.outcome(&name, outcome);
                    self.tell_demand(&name, 0);
                }
            }
            Post::Controller { .. } => {}
        }
    }

    fn hear(&mut self, id: &WorkerId, event: berth_worker::Event) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        let incarnation = node.info.incarnation;
        for next in node.hear(event, self.now, &self.models) {
            match next {
                Next::Hear(after, event) => {
                    let at = self.now + after;
                    self.send(at, Post::Worker { id: id.clone(), incarnation, event });
                }
                Next::Report(change) => self.tell_controller(id.as_str(), Event::Reported(change)),
            }
        }
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Commit(commit) => {
                    let refused = self.faults.refuse_one_in > 0 && self.chance.once_in(self.faults.refuse_one_in);
                    let taken = !refused && self.state.commit(&commit);
                    self.tell_controller("store", if taken { Event::Committed } else { Event::Refused });
                }
                Effect::SendAssignment { worker, change, .. } => {
                    let Some(node) = self.nodes.get(&worker) else { continue };
                    let incarnation = node.info.incarnation;
                    let at = self.arrival(&format!("controller to {worker}"), Duration::from_millis(1));
                    let event = berth_worker::Event::Assigned(change);
                    self.send(at, Post::Worker { id: worker, incarnation, event });
                }
                Effect::SendRoutes { change, .. } => {
                    let at = self.arrival("controller to gateway", Duration::from_millis(1));
                    self.send(at, Post::Gateway(change));
                }
                Effect::Emit(event) => self.log(event.reason, &event.message),
                Effect::PersistMeasured(digest, size) => self.state.measure(digest, size),
                Effect::Touched(_)
                | Effect::Readiness(_)
                | Effect::Seen(_)
                | Effect::InForce(_)
                | Effect::BecameReady { .. }
                | Effect::Planned(_) => {}
            }
        }
    }

    /// What the linter says of what the controller would decide now.
    fn check(&self) -> Vec<lint::Violation> {
        let world = self.controller.world();
        lint::lint(world, &plan(world, &Scope::All, self.now))
    }

    /// What is not as it should be, once everything had time to settle: replicas that were assigned and are not there,
    /// deployments that neither arrive nor say why, requests that nobody answers.
    #[must_use]
    pub fn unsettled(&self) -> Vec<String> {
        use berth_spec::status::Phase;
        let world = self.controller.world();
        let mut wrong: Vec<String> = self.gate.parked().iter().map(|(name, n)| format!("{name}: {n} parked")).collect();
        for deployment in world.deployments() {
            let name = &deployment.name;
            let phase = berth_plan::report::status(world, name, self.now).map(|status| status.phase);
            if matches!(phase, Some(Phase::Progressing | Phase::Terminating) | None) {
                wrong.push(format!("{name} is {phase:?}"));
            }
        }
        for (id, node) in &self.nodes {
            let assigned = world.worker(id).map(|seats| seats.assigned.keys().collect::<BTreeSet<_>>());
            let held: BTreeSet<&RevisionId> = node.agent.residencies().map(|(revision, _)| revision).collect();
            if assigned.as_ref() != Some(&held) {
                wrong.push(format!("{id} holds {held:?} and is assigned {assigned:?}"));
            }
        }
        wrong
    }
}
