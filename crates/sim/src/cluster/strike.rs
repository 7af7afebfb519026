//! Start and end of each kind of fault.

use std::{collections::BTreeSet, time::Duration};

use berth_spec::{FailureCategory, WorkerId};

use super::{Cluster, steer};
use crate::{
    event_queue::SimEvent,
    fault::{FaultId, Kind, Undo},
    net::{Cut, Ways},
    process::{Process, Role},
    store::Quorum,
};

/// The longest delay of messages in a rough network.
const ROUGH: Duration = Duration::from_millis(150);

/// The time that a node of a rolling restart has until the next one goes.
const ROLL: Duration = Duration::from_secs(3);

/// The time that a node is away in a rolling restart.
const AWAY: Duration = Duration::from_secs(1);

/// The number of times that the lead is lost in a churn.
const CHURNS: u32 = 4;

/// Artifacts of which one is corrupted.
const ONE_ARTIFACT_IN: u64 = 20;

impl Cluster {
    /// A fault of this kind strikes, where chance wants it, and ends after a while.
    pub fn strike(&mut self, kind: Kind, lasts: Duration) {
        let undo = match kind {
            Kind::WorkerCrash | Kind::PowerLoss | Kind::MassLoss | Kind::RegionLoss => self.take_down(kind),
            Kind::WorkerPause | Kind::LeaderPause => self.put_to_sleep(kind, lasts),
            Kind::LeaderCrash => self.kill(self.leader().cloned()),
            Kind::LeaderChurn => Undo::Churn(CHURNS),
            Kind::GatewayCrash => {
                let gateway_id = self.any_of(Role::Gateway);
                self.kill(gateway_id)
            }
            Kind::LeaderFromWorkers
            | Kind::GatewaysFromWorkers
            | Kind::StoreFromLeader
            | Kind::Halves
            | Kind::OneWay => self.part(kind),
            Kind::SlowNode | Kind::FullDisk | Kind::ClockJump => self.slow_or_fill(kind),
            Kind::StoreMemberLoss => {
                self.store.quorum = Quorum::Slow(Duration::from_millis(200));
                Undo::Store
            }
            Kind::QuorumLoss => {
                self.store.quorum = Quorum::Lost;
                Undo::Store
            }
            Kind::LostCommits => {
                self.faults.refuse_one_in = 3;
                Undo::Calm
            }
            Kind::CorruptArtifacts => self.corrupt(),
            Kind::RoughNetwork => {
                self.net.jitter = ROUGH;
                let nodes: Vec<WorkerId> = self.processes.keys().cloned().collect();
                for node in nodes.iter().step_by(7) {
                    self.reconnect(node);
                }
                Undo::Calm
            }
            Kind::FalseSuspicion => self.slander(),
            Kind::RollingRestart => Undo::Roll(self.roll_call()),
        };
        self.log("fault", kind.as_str());
        let first = match undo {
            Undo::Roll(_) | Undo::Churn(_) => Duration::ZERO,
            _ => lasts,
        };
        let id = self.faults.add(kind, undo);
        self.schedule(first, SimEvent::FaultEnds(id));
    }

    /// A fault ends, or goes on to its next victim.
    pub(super) fn end_fault(&mut self, id: FaultId) {
        let Some((kind, undo)) = self.faults.remove(id, self.now) else { return };
        match undo {
            Undo::Nothing => {}
            Undo::Start(nodes) => nodes.iter().for_each(|node| self.restart(node)),
            Undo::Heal(name) => self.heal(&name),
            Undo::HealMachine(node) => self.heal_machine(&node),
            Undo::Store => {
                self.store.quorum = Quorum::Whole;
                self.pump_watches();
            }
            Undo::Repair(uris) => {
                for uri in uris {
                    if let Some(model) = self.models.get_mut(&uri) {
                        model.fails = None;
                    }
                }
            }
            Undo::Calm => {
                self.net.jitter = Duration::ZERO;
                self.faults.refuse_one_in = 0;
            }
            Undo::Roll(nodes) => self.roll(kind, nodes),
            Undo::Churn(0) => {}
            Undo::Churn(left) => {
                if let Undo::Start(nodes) = self.kill(self.leader().cloned()) {
                    nodes.iter().for_each(|node| self.post_restart(node, AWAY));
                }
                let next = self.faults.add(kind, Undo::Churn(left - 1));
                let after = self.rng.between(ROLL, ROLL * 3);
                self.schedule(after, SimEvent::FaultEnds(next));
            }
        }
    }

    /// Everything that goes wrong ends now.
    pub fn calm(&mut self) {
        while let Some(id) = self.faults.active.keys().next().copied() {
            match self.faults.active.get_mut(&id) {
                Some((_, undo @ (Undo::Roll(_) | Undo::Churn(_)))) => *undo = Undo::Nothing,
                _ => self.end_fault(id),
            }
        }
        for node in self.processes.keys().cloned().collect::<Vec<_>>() {
            self.restart(&node);
        }
    }

    /// A worker takes much longer for everything.
    pub fn slow_down(&mut self, node: &WorkerId) {
        self.faults.slow_down(node);
        self.refresh_machine(node);
    }

    /// A slow worker, or one whose disk is full, is well again.
    pub fn heal_machine(&mut self, node: &WorkerId) {
        self.faults.heal_machine(node);
        self.refresh_machine(node);
    }

    fn refresh_machine(&mut self, node: &WorkerId) {
        if let Some(machine) = self.machines.get_mut(node) {
            (machine.slowdown, machine.disk) = self.faults.of_machine(node);
        }
    }

    fn any_of(&mut self, role: Role) -> Option<WorkerId> {
        let awake: Vec<WorkerId> = self.names(role).into_iter().filter(|node| self.awake(node)).collect();
        (!awake.is_empty()).then(|| self.rng.of(&awake).clone())
    }

    /// So many of them, by chance.
    fn some_of(&mut self, role: Role, count: usize) -> BTreeSet<WorkerId> {
        let mut all: Vec<WorkerId> = self.names(role).into_iter().collect();
        let mut some = BTreeSet::new();
        while some.len() < count && !all.is_empty() {
            some.insert(all.swap_remove(self.rng.index(all.len())));
        }
        some
    }

    fn kill(&mut self, node: Option<WorkerId>) -> Undo {
        let Some(node) = node else { return Undo::Nothing };
        self.crash(&node);
        Undo::Start([node].into())
    }

    fn take_down(&mut self, kind: Kind) -> Undo {
        let workers = self.names(Role::Worker).len();
        let nodes = match kind {
            Kind::MassLoss => self.some_of(Role::Worker, workers * 3 / 5),
            Kind::RegionLoss => {
                let regions: BTreeSet<String> =
                    self.processes.values().filter_map(|process| process.region.clone()).collect();
                let regions: Vec<String> = regions.into_iter().collect();
                let lost = (!regions.is_empty()).then(|| self.rng.of(&regions).clone());
                let there = |process: &Process| lost.is_some() && process.region == lost;
                let there = self.processes.iter().filter(|(_, process)| there(process));
                there.map(|(node, _)| node.clone()).collect()
            }
            _ => self.some_of(Role::Worker, 1),
        };
        for node in &nodes {
            if kind == Kind::WorkerCrash { self.crash(node) } else { self.cut_power(node) }
        }
        Undo::Start(nodes)
    }

    fn put_to_sleep(&mut self, kind: Kind, lasts: Duration) -> Undo {
        let node = match kind {
            Kind::LeaderPause => self.leader().cloned(),
            _ => self.any_of(Role::Worker),
        };
        node.iter().for_each(|node| self.pause(node, lasts));
        Undo::Nothing
    }

    fn part(&mut self, kind: Kind) -> Undo {
        let workers = self.names(Role::Worker).len();
        let leader: BTreeSet<WorkerId> = self.leader().cloned().into_iter().collect();
        let ways = if kind == Kind::OneWay { Ways::OneWay } else { Ways::Both };
        let (from, to) = match kind {
            Kind::LeaderFromWorkers => (leader, self.some_of(Role::Worker, workers.div_ceil(3))),
            Kind::GatewaysFromWorkers => {
                (self.some_of(Role::Gateway, 1), self.some_of(Role::Worker, workers.div_ceil(3)))
            }
            Kind::StoreFromLeader => (leader, [steer::store()].into()),
            Kind::Halves => {
                let (mut one, mut other) = (BTreeSet::from([steer::store()]), BTreeSet::new());
                for node in self.processes.keys() {
                    if self.rng.once_in(2) {
                        one.insert(node.clone())
                    } else {
                        other.insert(node.clone())
                    };
                }
                (one, other)
            }
            _ => {
                let from: BTreeSet<WorkerId> = self.processes.keys().filter(|_| self.rng.once_in(8)).cloned().collect();
                let to = self.processes.keys().filter(|node| !from.contains(*node) && self.rng.once_in(2));
                let to = to.cloned().collect();
                (from, to)
            }
        };
        let name = format!("{} at {}", kind.as_str(), self.now.0);
        self.cut(&name, Cut { from, to, ways });
        Undo::Heal(name)
    }

    fn slow_or_fill(&mut self, kind: Kind) -> Undo {
        let role = match kind {
            Kind::ClockJump if self.rng.once_in(3) => Role::Controller,
            Kind::ClockJump if self.rng.once_in(3) => Role::Gateway,
            _ => Role::Worker,
        };
        let Some(node) = self.any_of(role) else { return Undo::Nothing };
        match kind {
            Kind::SlowNode => self.slow_down(&node),
            Kind::FullDisk => self.faults.fill_disk(&node),
            _ => {
                let hour = 3_600_000_000_000_u64;
                let skew = i64::try_from(self.rng.below(2 * hour)).unwrap_or(0) - 3_600_000_000_000;
                if let Some(process) = self.processes.get_mut(&node) {
                    process.next_skew = skew;
                }
                self.crash(&node);
                self.restart(&node);
                return Undo::Nothing;
            }
        }
        self.refresh_machine(&node);
        Undo::HealMachine(node)
    }

    fn corrupt(&mut self) -> Undo {
        let ways = [FailureCategory::Checksum, FailureCategory::InvalidModel, FailureCategory::Network];
        let mut corrupted = BTreeSet::new();
        for (uri, model) in &mut self.models {
            if model.fails.is_none() && self.rng.once_in(ONE_ARTIFACT_IN) {
                model.fails = Some(*self.rng.of(&ways));
                corrupted.insert(uri.clone());
            }
        }
        Undo::Repair(corrupted)
    }

    fn slander(&mut self) -> Undo {
        let observers: Vec<WorkerId> = self.controllers.keys().chain(self.gateways.keys()).cloned().collect();
        for _ in 0..5 {
            let observer = self.rng.of(&observers).clone();
            if let Some(of) = self.any_of(Role::Worker).filter(|_| self.awake(&observer)) {
                self.suspect(&observer, &of);
            }
        }
        Undo::Nothing
    }

    /// The order of a rolling restart, last first: every controller and gateway, and some workers.
    fn roll_call(&mut self) -> Vec<WorkerId> {
        let workers = self.some_of(Role::Worker, 10);
        let others = self.names(Role::Gateway).into_iter().chain(self.names(Role::Controller));
        others.chain(workers).collect()
    }

    /// Restarts every node, one after the other.
    pub fn roll_all(&mut self) {
        let nodes: Vec<WorkerId> = self.processes.keys().cloned().collect();
        let id = self.faults.add(Kind::RollingRestart, Undo::Roll(nodes));
        self.schedule(Duration::ZERO, SimEvent::FaultEnds(id));
    }

    /// Stops the next node when the one before is back.
    fn roll(&mut self, kind: Kind, mut nodes: Vec<WorkerId>) {
        let Some(node) = nodes.pop() else { return };
        if self.awake(&node) {
            self.stop(&node);
            self.returning.insert(node.clone());
            self.return_if_gone(&node);
        }
        let next = self.faults.add(kind, Undo::Roll(nodes));
        self.schedule(ROLL, SimEvent::FaultEnds(next));
    }

    /// A node that was stopped to be started again is gone: it starts after a while.
    pub(super) fn return_if_gone(&mut self, node: &WorkerId) {
        if self.processes.get(node).is_some_and(Process::is_gone) && self.returning.remove(node) {
            self.post_restart(node, AWAY);
        }
    }

    fn post_restart(&mut self, node: &WorkerId, after: Duration) {
        let start = self.processes[node].start;
        self.schedule(after, SimEvent::Restart { node: node.clone(), start });
    }
}
