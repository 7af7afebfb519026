//! Faults of nodes: they die, stop and return, and others notice.

use std::{collections::BTreeSet, time::Duration};

use berth_spec::{Health, WorkerId};

use super::Cluster;
use crate::{
    controller_node::ControllerNode,
    election::Election,
    event_queue::{Ask, SimEvent},
    gateway::Gateway,
    members::Reach,
    net::{Cut, HOP, KEEPALIVE},
    process::{Life, Role},
    request::{Answer, RequestState},
    stream::End,
};

/// The longest wait of a node that leaves, until what it holds has moved away.
const LEAVE: Duration = Duration::from_secs(20);

/// The last message of a machine about a process that is gone: sent, or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LastMessage {
    Said,
    Unsaid,
}

impl Cluster {
    /// A node's process dies, with all that it held; its machine closes its connections.
    pub fn crash(&mut self, id: &WorkerId) {
        self.dies(id, LastMessage::Said, Life::Down);
    }

    /// A node's machine loses power: nobody is told.
    pub fn cut_power(&mut self, id: &WorkerId) {
        self.faults.powered_off.insert(id.clone());
        self.dies(id, LastMessage::Unsaid, Life::Down);
    }

    /// A node's process is stopped, and goes on after a while.
    pub fn pause(&mut self, id: &WorkerId, duration: Duration) {
        let until = self.now + duration;
        let Some(process) = self.processes.get_mut(id).filter(|process| process.awake()) else { return };
        process.life = Life::Paused { until };
        self.log(id.as_str(), "is paused");
        self.rewake(id);
        self.look_around();
        self.doubt_lines();
    }

    /// A node is told to end: it says so first, and waits until it is not needed.
    pub fn stop(&mut self, id: &WorkerId) {
        let Some(process) = self.processes.get(id).filter(|process| process.awake()) else { return };
        let start = process.start;
        match process.role {
            Role::Worker => {
                self.machines.get_mut(id).into_iter().for_each(|machine| machine.leaves = true);
                self.hear(id, berth_worker::Event::Leave);
                let event = berth_worker::Event::Stop;
                self.schedule(LEAVE, SimEvent::Done { worker: id.clone(), start, event });
            }
            Role::Controller => {
                if let Some(epoch) = self.controllers[id].leads().map(|(epoch, _)| epoch) {
                    self.end_term(id, "hands over");
                    self.ask_and_go(id, epoch);
                }
                self.exit(id);
            }
            Role::Gateway => self.exit(id),
        }
    }

    fn ask_and_go(&mut self, id: &WorkerId, epoch: u64) {
        let start = self.processes[id].start;
        let ask = std::sync::Arc::new(Ask::Resign);
        self.schedule(HOP / 2, SimEvent::StoreRequest { from: id.clone(), start, epoch, ask });
    }

    /// A process that was told to end has ended.
    pub(super) fn exit(&mut self, id: &WorkerId) {
        self.dies(id, LastMessage::Said, Life::Left);
    }

    fn dies(&mut self, id: &WorkerId, message: LastMessage, life: Life) {
        let Some(process) = self.processes.get_mut(id).filter(|process| !process.is_gone()) else { return };
        process.life = life;
        let role = process.role;
        self.log(id.as_str(), if life == Life::Left { "has left" } else { "is gone" });
        self.drop_streams(id, message);
        match role {
            Role::Worker => {
                self.machines.remove(id);
                self.break_requests(id, message);
            }
            Role::Controller => {
                if let Some(controller) = self.controllers.get_mut(id) {
                    controller.term = None;
                }
            }
            Role::Gateway => self.lose_clients(id),
        }
        self.rewake(id);
        self.look_around();
        self.return_if_gone(id);
    }

    /// Requests that a worker was answering.
    fn break_requests(&mut self, worker: &WorkerId, message: LastMessage) {
        let there = |state: &RequestState| matches!(state, RequestState::At { worker: at, .. } if at == worker);
        let broken = self.requests.open.iter().filter(|(_, request)| there(&request.state));
        for (id, attempt) in broken.map(|(id, request)| (*id, request.attempt)).collect::<Vec<_>>() {
            let event = match message {
                LastMessage::Said => {
                    SimEvent::AnswerArrives { request: id, attempt, worker: worker.clone(), answer: Answer::Broken }
                }
                LastMessage::Unsaid => SimEvent::Silent { request: id, attempt },
            };
            self.schedule(if message == LastMessage::Said { HOP } else { KEEPALIVE }, event);
        }
    }

    /// A gateway is gone, and with it whoever was connected to it.
    fn lose_clients(&mut self, gateway_id: &WorkerId) {
        self.requests.open.retain(|_, request| request.gateway_id != *gateway_id);
        let Some(before) = self.gateways.remove(gateway_id) else { return };
        // It finds the routes on its disk.
        let mut again = Gateway::new(before.region);
        again.routes = before.routes;
        self.gateways.insert(gateway_id.clone(), again);
    }

    /// A node starts again.
    pub fn restart(&mut self, id: &WorkerId) {
        self.faults.powered_off.remove(id);
        let Some(process) = self.processes.get_mut(id).filter(|process| process.is_gone()) else { return };
        process.starts();
        let role = process.role;
        let incarnation = process.start;
        if let Some(members) = &mut self.members {
            members.forget(id);
        }
        match role {
            Role::Worker => {
                if let Some(info) = self.infos.get_mut(id) {
                    info.incarnation = incarnation;
                }
                self.boot_worker(id);
            }
            Role::Controller => {
                let elected = self.controllers.get(id).is_some_and(|controller| controller.election.is_some());
                self.controllers.insert(id.clone(), ControllerNode::new(elected.then(|| Election::new(self.now))));
                if !elected {
                    self.store.vacate();
                    self.lead_alone(id);
                }
            }
            Role::Gateway => self.seek(id),
        }
        self.look_around();
        self.rewake(id);
    }

    /// Some nodes do not hear others any more.
    pub fn cut(&mut self, name: &str, cut: Cut) {
        self.net.cut(name, cut);
        self.log("network", &format!("cut {name}"));
        self.look_around();
        self.doubt_lines();
    }

    /// Reconnects a node with the others.
    pub fn heal(&mut self, name: &str) {
        if self.net.heal(name) {
            self.log("network", &format!("healed {name}"));
            self.look_around();
            self.unstick();
            self.pump_watches();
        }
    }

    /// Every stream of a node breaks, and what was on its way is lost.
    pub fn reconnect(&mut self, id: &WorkerId) {
        let streams: Vec<_> = self.streams.iter().filter(|(_, stream)| stream.node == *id).map(|(id, _)| *id).collect();
        for stream in streams {
            self.close(stream, End::Node);
        }
    }

    /// The members compare what they think with what is.
    pub(super) fn look_around(&mut self) {
        let Some(mut members) = self.members.take() else { return };
        let awake: BTreeSet<&WorkerId> =
            self.processes.iter().filter(|(_, process)| process.awake()).map(|(name, _)| name).collect();
        let mut events = Vec::new();
        for observer in self.controllers.keys().chain(self.gateways.keys()).filter(|name| awake.contains(name)) {
            for (of, process) in self.processes.iter().filter(|(of, _)| *of != observer) {
                let direct = || self.net.joined(observer, of);
                let indirect = || awake.iter().any(|by| self.net.joined(observer, by) && self.net.joined(by, of));
                let reach = match process.life {
                    Life::Left => Reach::Left,
                    Life::Running if direct() || indirect() => Reach::Answers,
                    Life::Running | Life::Paused { .. } | Life::Down => Reach::Silent,
                };
                let Some((news, next)) = members.look(observer, of, reach) else { continue };
                for (health, (least, most)) in next {
                    let after = self.rng.between(least, most);
                    let event = SimEvent::Health { observer: observer.clone(), of: of.clone(), health, news };
                    events.push((after, event));
                }
            }
        }
        self.members = Some(members);
        for (after, event) in events {
            self.schedule(after, event);
        }
    }

    /// An observer comes to think something of a node.
    pub(super) fn health(&mut self, observer: &WorkerId, of: &WorkerId, health: Health, news: u64) {
        let Some(members) = &self.members else { return };
        if !self.awake(observer) || !members.is_news(observer, of, news) {
            return;
        }
        if let Some(controller) = self.controllers.get_mut(observer) {
            if controller.members.insert(of.clone(), health) != Some(health) {
                self.member_heard(observer, of.clone(), health);
            }
            return;
        }
        let Some(gateway) = self.gateways.get_mut(observer) else { return };
        if health.is_there() {
            if gateway.gone.remove(of) {
                self.retry_parked(observer);
            }
        } else if gateway.gone.insert(of.clone()) {
            let flying = gateway.flying.get(of).cloned().unwrap_or_default();
            flying.into_iter().for_each(|request| self.broke(request));
        }
    }

    /// One observer suspects a node that is well, which refutes it.
    pub(super) fn suspect(&mut self, observer: &WorkerId, of: &WorkerId) {
        let Some(members) = &self.members else { return };
        let news = members.news(observer, of);
        for (after, health) in [(HOP, Health::Suspect), (Duration::from_millis(600), Health::Alive)] {
            self.schedule(after, SimEvent::Health { observer: observer.clone(), of: of.clone(), health, news });
        }
    }
}
