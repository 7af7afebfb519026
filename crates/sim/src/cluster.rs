//! All of it together under one clock: what is on its way arrives in the order of its time, brains are woken when they
//! asked for it, and each step is checked.
//!
//! ```text
//!  clients ──▶ gateways ──hop──▶ workers          serve.rs   requests, from the client to a worker and back
//!                 │  ▲              │  ▲
//!                 ▼  │   streams    ▼  │          link.rs    finding the leader; messages over streams
//!               controllers (one leads) ──▶ store steer.rs   the brains' effects; terms; the store's answers
//!                                                 machine.rs workers; fate.rs, strike.rs faults
//!                                                 clock.rs   what is next; settle.rs checks
//! ```

mod clock;
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

use berth_plan::fixture;
use berth_spec::{Deployment, Time, WorkerId, WorkerInfo};

use crate::{
    audit::Audit,
    controller_node::ControllerNode,
    election::Election,
    event_queue::EventQueue,
    fault::Faults,
    gateway::Gateway,
    members::Members,
    net::Net,
    node::{Machine, Model},
    oracle::Oracle,
    process::{Process, Role},
    request::Requests,
    rng::Rng,
    store::Store,
    stream::{Stream, StreamId},
    wakes::Wakes,
};

/// When a simulation begins.
const BEGIN: Time = Time(1_000_000_000_000);

/// The only controller and the only gateway of a cluster of one machine.
pub const SOLO: (&str, &str) = ("controller", "gateway");

/// The checks on a cluster. At first the linter looks after each step, and clients wait until they are told to give up.
#[derive(Debug, Clone, Copy)]
pub struct Watch {
    /// The linter looks at everything every so many steps. 1: after each.
    pub lint_every: u64,
    /// The time that clients wait. `None`: until they are told to give up.
    pub patience: Option<Duration>,
    /// The check of memory in use; exact only where claims are never too small.
    pub memory: Memory,
}

/// The knowledge of the memory that models take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Enough that no worker may ever hold more than it has.
    Declared,
    /// Found out by loading.
    Found,
}

/// A whole system: controllers, workers, gateways and clients over one store and one network.
pub struct Cluster {
    /// The true time. Nodes act by clocks of their own, which may be off.
    pub now: Time,
    /// The one source of every random choice: a seed gives one history.
    pub rng: Rng,
    /// The checks after steps, which a test may loosen before it begins.
    pub watch: Watch,
    /// The network: which node reaches which.
    pub net: Net,
    /// The store, which keeps deployments, decisions and the leader key whatever becomes of the nodes.
    pub store: Store,
    /// The artifacts that exist, by location.
    pub models: BTreeMap<String, Model>,
    /// The processes of all nodes.
    pub processes: BTreeMap<WorkerId, Process>,
    /// The state of each controller. It stays here, without a term, while its process is down.
    pub controllers: BTreeMap<WorkerId, ControllerNode>,
    /// The state of each gateway. While its process is down its routes stay, as on a disk.
    pub gateways: BTreeMap<WorkerId, Gateway>,
    /// The workers that run.
    pub machines: BTreeMap<WorkerId, Machine>,
    /// The clients' requests, and their outcomes.
    pub requests: Requests,
    /// The faults that are going on.
    pub faults: Faults,
    /// The log, for people.
    pub log: Vec<String>,
    /// Laws that were broken.
    pub broken: Vec<String>,
    /// The number of steps so far.
    pub steps: u64,
    /// Steps since time went on.
    at_once: u32,
    /// The descriptions of workers, also of those that are down.
    infos: BTreeMap<WorkerId, WorkerInfo>,
    /// Nodes that start again once they have ended.
    returning: BTreeSet<WorkerId>,
    members: Option<Members>,
    streams: BTreeMap<StreamId, Stream>,
    last_stream: u64,
    queue: EventQueue,
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
            rng: Rng::new(seed),
            watch: Watch { lint_every: 1, patience: None, memory: Memory::Found },
            net: Net::default(),
            store: Store::default(),
            models: BTreeMap::new(),
            processes: BTreeMap::new(),
            controllers: BTreeMap::new(),
            gateways: BTreeMap::new(),
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
            streams: BTreeMap::new(),
            last_stream: 0,
            queue: EventQueue::default(),
            wakes: Wakes::default(),
            audit: Audit::default(),
            oracle: Oracle::default(),
        }
    }

    fn add_controller(&mut self, name: WorkerId, election: Option<Election>) {
        self.processes.insert(name.clone(), Process::new(Role::Controller, None));
        self.controllers.insert(name.clone(), ControllerNode::new(election));
        self.lead_alone(&name);
        self.rewake(&name);
    }

    fn add_gateway(&mut self, name: WorkerId, region: Option<String>) {
        self.processes.insert(name.clone(), Process::new(Role::Gateway, region.clone()));
        self.gateways.insert(name.clone(), Gateway::new(region));
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
        let leads = |(name, controller): &(&WorkerId, &ControllerNode)| {
            self.awake(name) && controller.leads().is_some_and(|(epoch, _)| self.store.is_led_by(name, epoch))
        };
        self.controllers.iter().find(leads).map(|(name, _)| name)
    }

    /// All that the leader knows.
    #[must_use]
    pub fn world(&self) -> Option<&berth_plan::World> {
        self.leader().and_then(|name| self.controllers[name].leads()).map(|(_, brain)| brain.world())
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

    /// True if a node runs and is not paused.
    #[must_use]
    pub fn awake(&self, node: &WorkerId) -> bool {
        self.processes.get(node).is_some_and(Process::awake)
    }

    /// The number of replicas that were placed or removed.
    #[must_use]
    pub fn moves(&self) -> u64 {
        self.audit.moves
    }

    /// Says something to people, with the time.
    pub fn log(&mut self, who: &str, what: &str) {
        self.log.push(format!("{:>9.3}s {who}: {what}", self.elapsed().as_secs_f64()));
    }

    fn names(&self, role: Role) -> BTreeSet<WorkerId> {
        self.processes.iter().filter(|(_, process)| process.role == role).map(|(name, _)| name.clone()).collect()
    }
}
