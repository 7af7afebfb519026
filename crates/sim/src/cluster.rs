//! All of it together under one clock: what is on its way arrives in the order of its time, brains are woken when they
//! asked for it, and each step is checked.
//!
//! ```text
//!  clients ──▶ gateways ──hop──▶ workers          serve.rs   requests, from the client to a worker and back
//!                 │  ▲              │  ▲
//!                 ▼  │   streams    ▼  │          link.rs    finding the leader; words over streams
//!               controllers (one leads) ──▶ store steer.rs   the brains' effects; terms; the store's answers
//!                                                 machine.rs workers; fate.rs faults; settle.rs checks
//! ```

mod fate;
mod link;
mod machine;
mod serve;
mod settle;
mod steer;
mod strike;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use berth_plan::{fixture, lint, plan};
use berth_spec::{Deployment, Time, WorkerId, WorkerInfo};

use crate::{
    audit::Audit,
    chance::Chance,
    election::Election,
    fault::Faults,
    gate::Gate,
    line::{Line, LineId},
    members::Members,
    net::Net,
    node::{Machine, Model},
    oracle::Oracle,
    post::{Post, Queue},
    process::{Life, Process, Role},
    request::Requests,
    seat::Seat,
    store::Store,
    wakes::Wakes,
};

/// When a simulation begins.
const BEGIN: Time = Time(1_000_000_000_000);

/// The only controller and the only gateway of a cluster of one machine.
pub const SOLO: (&str, &str) = ("controller", "gateway");

/// Steps at one moment beyond which time stands still: somebody asks to be woken for nothing. Halved: half of all workers
/// that return at once come near it. Doubled: it is noticed later.
const AT_ONCE: u32 = 20_000;

/// How closely a cluster is looked at.
#[derive(Debug, Clone, Copy)]
pub struct Watch {
    /// The linter looks at everything every so many steps. 1: after each.
    pub lint_every: u64,
    /// How long clients wait. `None`: until they are told to give up.
    pub patience: Option<Duration>,
    /// Whether what lies in memory may never be more than there is: only where claims are never too small.
    pub memory: Memory,
}

/// What is known of the memory that models take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Enough that no worker may ever hold more than it has.
    Declared,
    /// It is found out by loading.
    Found,
}

/// A whole system.
pub struct Cluster {
    /// The time.
    pub now: Time,
    /// Where chance comes from.
    pub chance: Chance,
    /// How closely it is looked at.
    pub watch: Watch,
    /// Who reaches whom.
    pub net: Net,
    /// The store.
    pub store: Store,
    /// The artifacts that exist, by location.
    pub models: BTreeMap<String, Model>,
    /// The processes of all nodes.
    pub processes: BTreeMap<WorkerId, Process>,
    /// The controllers.
    pub seats: BTreeMap<WorkerId, Seat>,
    /// The gateways.
    pub gates: BTreeMap<WorkerId, Gate>,
    /// The workers that run.
    pub machines: BTreeMap<WorkerId, Machine>,
    /// What clients want, and what became of it.
    pub requests: Requests,
    /// What goes wrong.
    pub faults: Faults,
    /// What happened, for people.
    pub log: Vec<String>,
    /// Laws that were broken.
    pub broken: Vec<String>,
    /// How many steps there were.
    pub steps: u64,
    /// Steps since time went on.
    at_once: u32,
    /// What workers say of themselves, also while they are down.
    infos: BTreeMap<WorkerId, WorkerInfo>,
    /// Nodes that start again once they have ended.
    returning: BTreeSet<WorkerId>,
    members: Option<Members>,
    lines: BTreeMap<LineId, Line>,
    last_line: u64,
    queue: Queue,
    wakes: Wakes,
    audit: Audit,
    oracle: Oracle,
}

impl Cluster {
    /// A system of one controller and one gateway, without workers; everything that happens follows from `seed` and
    /// what is done to it.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut cluster = Self::bare(seed);
        cluster.add_controller(fixture::worker_id(SOLO.0), None);
        cluster.add_gateway(fixture::worker_id(SOLO.1), None);
        cluster
    }

    /// A system of several controllers, of which one comes to lead, and gateways in their regions. Its nodes watch each
    /// other.
    #[must_use]
    pub fn fleet(seed: u64, controllers: &[&str], gateways: &[(&str, Option<&str>)]) -> Self {
        let mut cluster = Self::bare(seed);
        cluster.members = Some(Members::default());
        for name in controllers {
            cluster.add_controller(fixture::worker_id(name), Some(Election::new(BEGIN)));
        }
        for (name, region) in gateways {
            cluster.add_gateway(fixture::worker_id(name), region.map(str::to_owned));
        }
        cluster.look_around();
        cluster
    }

    fn bare(seed: u64) -> Self {
        Self {
            now: BEGIN,
            chance: Chance::new(seed),
            watch: Watch { lint_every: 1, patience: None, memory: Memory::Found },
            net: Net::default(),
            store: Store::default(),
            models: BTreeMap::new(),
            processes: BTreeMap::new(),
            seats: BTreeMap::new(),
            gates: BTreeMap::new(),
            machines: BTreeMap::new(),
            requests: Requests::default(),
            faults: Faults::default(),
            log: Vec::new(),
            broken: Vec::new(),
            steps: 0,
            at_once: 0,
            infos: BTreeMap::new(),
            returning: BTreeSet::new(),
            members: None,
            lines: BTreeMap::new(),
            last_line: 0,
            queue: Queue::default(),
            wakes: Wakes::default(),
            audit: Audit::default(),
            oracle: Oracle::default(),
        }
    }

    fn add_controller(&mut self, name: WorkerId, election: Option<Election>) {
        self.processes.insert(name.clone(), Process::new(Role::Controller, None));
        self.seats.insert(name.clone(), Seat::new(election));
        self.take_the_only_seat(&name);
        self.rewake(&name);
    }

    fn add_gateway(&mut self, name: WorkerId, region: Option<String>) {
        self.processes.insert(name.clone(), Process::new(Role::Gateway, region.clone()));
        self.gates.insert(name.clone(), Gate::new(region));
        self.seek(&name);
    }

    /// Starts a worker, again if it ran before.
    pub fn start(&mut self, info: WorkerInfo) {
        let id = info.id.clone();
        let region = info.region().map(str::to_owned);
        if self.machines.contains_key(&id) {
            self.crash(&id);
        }
        self.infos.insert(id.clone(), info);
        if self.processes.contains_key(&id) {
            self.restart(&id);
        } else {
            self.processes.insert(id.clone(), Process::new(Role::Worker, region));
            self.boot_worker(&id);
        }
    }

    /// Time since the beginning.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.now.since(BEGIN)
    }

    /// The controller that leads as far as the store knows, if it runs and knows it.
    #[must_use]
    pub fn leader(&self) -> Option<&WorkerId> {
        let leads = |(name, seat): &(&WorkerId, &Seat)| {
            self.awake(name) && seat.leads().is_some_and(|(epoch, _)| self.store.is_led_by(name, epoch))
        };
        self.seats.iter().find(leads).map(|(name, _)| name)
    }

    /// All that the leader knows.
    #[must_use]
    pub fn world(&self) -> Option<&berth_plan::World> {
        self.leader().and_then(|name| self.seats[name].leads()).map(|(_, brain)| brain.world())
    }

    /// Declares or changes a deployment. Says whether that was acknowledged: without a leader nothing is.
    pub fn declare(&mut self, deployment: Deployment) -> bool {
        let reached = self.leader().is_some_and(|leader| self.store_answers(leader));
        if reached {
            let deployment = std::sync::Arc::new(deployment);
            self.oracle.declared(&deployment);
            self.store.declare(deployment);
            self.pump_watches();
        }
        reached
    }

    /// Something that was declared before this began.
    pub fn store_before_start(&mut self, deployment: Deployment) {
        let deployment = std::sync::Arc::new(deployment);
        self.oracle.declared(&deployment);
        self.store.declare(deployment);
    }

    /// Says of a worker that nothing new is put there, or that what it holds moves away. Says whether that was
    /// acknowledged.
    pub fn cordon(&mut self, worker: &WorkerId, cordon: berth_spec::Cordon) -> bool {
        let reached = self.leader().is_some_and(|leader| self.store_answers(leader));
        if reached {
            self.store.cordon(worker.clone(), cordon);
            self.pump_watches();
        }
        reached
    }

    /// Whether a node runs and is not paused.
    #[must_use]
    pub fn awake(&self, node: &WorkerId) -> bool {
        self.processes.get(node).is_some_and(Process::awake)
    }

    /// How many replicas were put somewhere or taken away.
    #[must_use]
    pub fn moves(&self) -> u64 {
        self.audit.moves
    }

    /// Says something to people, with the time.
    pub fn log(&mut self, who: &str, what: &str) {
        self.log.push(format!("{:>9.3}s {who}: {what}", self.elapsed().as_secs_f64()));
    }

    fn post(&mut self, after: Duration, post: Post) {
        self.queue.send(self.now + after, post);
    }

    /// When the next thing happens.
    #[must_use]
    pub fn next(&self) -> Option<Time> {
        let wake = self.wakes.first().map(|(at, _)| at);
        self.queue.next().into_iter().chain(wake).min().map(|at| at.max(self.now))
    }

    /// Does the next thing. Says whether there was any.
    pub fn step(&mut self) -> bool {
        let Some(at) = self.next() else { return false };
        self.at_once = if at == self.now { self.at_once + 1 } else { 0 };
        if self.at_once == AT_ONCE {
            let wakes = self.wakes.first();
            self.broken.push(format!("time stands still: {AT_ONCE} steps at once; the next to wake is {wakes:?}"));
        }
        self.now = at;
        let due = self.wakes.first().filter(|(wake, _)| *wake <= at).map(|(_, node)| node.clone());
        let resumes = |node: &WorkerId| matches!(self.processes[node].life, Life::Paused { .. });
        match due {
            // Before what arrives at the same time.
            Some(node) if resumes(&node) => self.wake(&node),
            due => match (self.queue.take(at), due) {
                (Some(post), _) => self.deliver(post),
                (None, Some(node)) => self.wake(&node),
                (None, None) => {}
            },
        }
        self.steps += 1;
        if self.steps.is_multiple_of(self.watch.lint_every) {
            self.lint();
        }
        true
    }

    /// Goes on for a while, until something breaks.
    pub fn run_for(&mut self, duration: Duration) {
        let until = self.now + duration;
        while self.broken.is_empty() && self.next().is_some_and(|at| at <= until) {
            self.step();
        }
        self.now = until;
    }

    /// What the linter says of what the leader would decide now.
    pub fn lint(&mut self) {
        let Some(world) = self.world() else { return };
        let violations = lint::lint(world, &plan(world, &berth_plan::Scope::All, self.now));
        self.broken.extend(violations.into_iter().map(|violation| violation.0));
    }

    /// Asks a node again when it has something to do.
    fn rewake(&mut self, node: &WorkerId) {
        let Some(process) = self.processes.get(node) else { return };
        let (rank, at) = match process.role {
            Role::Controller => (0, self.seats.get(node).and_then(Seat::brain_wakes_at)),
            Role::Gateway => (1, self.gates.get(node).and_then(|gate| gate.flush_at)),
            Role::Worker => (2, self.machines.get(node).and_then(|machine| machine.agent.wake_at())),
        };
        // An election is timed by a clock that does not jump.
        let election = self.seats.get(node).and_then(|seat| seat.election.as_ref()).map(Election::wake_at);
        let at = match process.life {
            Life::Running => at.map(|at| process.when(at)).into_iter().chain(election).min(),
            Life::Paused { until } => Some(until),
            Life::Down | Life::Left => None,
        };
        self.wakes.set(node, rank, at);
    }

    fn wake(&mut self, node: &WorkerId) {
        let Some(process) = self.processes.get_mut(node) else { return };
        if let Life::Paused { .. } = process.life {
            process.life = Life::Running;
            self.log(node.as_str(), "goes on");
            self.look_around();
            self.rewake(node);
            return;
        }
        match process.role {
            Role::Controller => self.tick_controller(node),
            Role::Gateway => {
                self.retry_parked(node);
                self.flush(node);
            }
            Role::Worker => self.hear(node, berth_worker::Event::Tick),
        }
        self.rewake(node);
    }

    fn deliver(&mut self, post: Post) {
        if let Some(until) = self.sleeps(&post) {
            // In the order in which it came.
            self.queue.send(until, post);
            return;
        }
        match post {
            Post::Word { line, word } => self.word_arrives(line, word),
            Post::Keepalive { line, end } => self.keepalive(line, end),
            Post::Closed { line, end } => self.close(line, end),
            Post::Seek { node, start } if self.is(&node, start) => self.seek(&node),
            Post::Dial { node, start, attempt, to } if self.is(&node, start) => self.dialled(&node, attempt, &to),
            Post::Declined { node, start, attempt, leader } if self.is(&node, start) => {
                self.declined(&node, attempt, leader);
            }
            Post::Done { worker, start, event } if self.is(&worker, start) => self.hear(&worker, event),
            Post::Asked { from, start, epoch, ask } => self.asked(&from, start, epoch, &ask),
            Post::Told { to, start, epoch, answer } if self.is(&to, start) => self.told(&to, epoch, &answer),
            Post::Watched { to, start, rev } if self.is(&to, start) => self.watched(&to, rev),
            Post::Health { observer, of, health, news } => self.health(&observer, &of, health, news),
            Post::Hop { request, attempt, worker, revision } => self.hop(request, attempt, &worker, revision),
            Post::Ran { request, attempt, worker, start, revision } if self.is(&worker, start) => {
                self.ran(request, attempt, &worker, revision);
            }
            Post::Back { request, attempt, worker, answer } => self.back(request, attempt, &worker, answer),
            Post::Silent { request, attempt } => self.silent(request, attempt),
            Post::Patience { request } => self.impatient(request),
            Post::FaultEnds(fault) => self.end_fault(fault),
            Post::Restart { node, start } if self.was(&node, start) => self.restart(&node),
            _ => {}
        }
    }

    /// Until when the node sleeps that has to be awake for this.
    fn sleeps(&self, post: &Post) -> Option<Time> {
        let node = match post {
            Post::Word { line, word } => {
                let line = self.lines.get(line)?;
                line.ends(word.to()).0
            }
            Post::Keepalive { line, end } | Post::Closed { line, end } => self.lines.get(line)?.ends(*end).0,
            Post::Back { request, .. } | Post::Silent { request, .. } => &self.requests.open.get(request)?.gate,
            other => other.wakes()?,
        };
        match self.processes.get(node)?.life {
            Life::Paused { until } => Some(until),
            Life::Running | Life::Down | Life::Left => None,
        }
    }

    /// Whether this is the process that something was meant for.
    fn is(&self, node: &WorkerId, start: u64) -> bool {
        self.processes.get(node).is_some_and(|process| process.start == start && !process.is_gone())
    }

    /// Whether this process was the last, and runs no more.
    fn was(&self, node: &WorkerId, start: u64) -> bool {
        self.processes.get(node).is_some_and(|process| process.start == start && process.is_gone())
    }

    fn names(&self, role: Role) -> BTreeSet<WorkerId> {
        self.processes.iter().filter(|(_, process)| process.role == role).map(|(name, _)| name.clone()).collect()
    }
}
