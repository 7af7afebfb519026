//! Streams between nodes and the leader: found, made, used, given up.

use std::time::Duration;

use berth_control::controller::Event;
use berth_spec::{GatewayId, WorkerId};

use super::Cluster;
use crate::{
    event_queue::SimEvent,
    net::{HOP, KEEPALIVE},
    process::{Role, Uplink},
    stream::{End, Message, Stream, StreamId},
};

/// The time that a node waits for a controller's answer: enough for a slow one, and little to lose on a dead one.
const DIAL: Duration = Duration::from_secs(1);

impl Cluster {
    /// A node tries a controller: the one that it was told leads, or any.
    pub(super) fn seek(&mut self, node: &WorkerId) {
        let controllers: Vec<WorkerId> = self.controllers.keys().cloned().collect();
        let Some(process) = self.processes.get_mut(node) else { return };
        if matches!(process.uplink, Uplink::Up(_)) || controllers.is_empty() {
            return;
        }
        let to = process.hint.take().unwrap_or_else(|| self.rng.of(&controllers).clone());
        self.last_stream += 1;
        let attempt = StreamId(self.last_stream);
        process.uplink = Uplink::Dialling(attempt);
        let start = process.start;
        if self.net.joined(node, &to) {
            let after = self.net.delay(HOP, &mut self.rng);
            self.schedule(after, SimEvent::Dial { node: node.clone(), start, attempt, to });
        }
        self.schedule(DIAL, SimEvent::Declined { node: node.clone(), start, attempt, leader: None });
    }

    /// A node's attempt arrives at a controller.
    pub(super) fn dialled(&mut self, node: &WorkerId, attempt: StreamId, to: &WorkerId) {
        let Some(process) = self.processes.get(node) else { return };
        if process.uplink != Uplink::Dialling(attempt) || !self.net.joined(node, to) {
            return;
        }
        let (start, best) = (process.start, process.best);
        let controller = self.controllers.get(to).filter(|_| self.awake(to));
        let epoch = controller.and_then(|controller| controller.leads()).map(|(epoch, _)| epoch);
        match epoch.filter(|epoch| *epoch >= best) {
            Some(epoch) => self.connect(node, to, attempt, epoch),
            None => {
                let leader = controller.and_then(|controller| controller.election.as_ref()?.leader().cloned());
                self.schedule(HOP, SimEvent::Declined { node: node.clone(), start, attempt, leader });
            }
        }
    }

    /// A node's attempt failed: it goes where it was sent, or tries again after a while.
    pub(super) fn declined(&mut self, node: &WorkerId, attempt: StreamId, leader: Option<WorkerId>) {
        let Some(process) = self.processes.get_mut(node) else { return };
        if process.uplink != Uplink::Dialling(attempt) {
            return;
        }
        process.uplink = Uplink::Seeking;
        let after = process.back_off();
        process.tries += 1;
        let start = process.start;
        let after = match leader {
            // Straight there, unless it goes round in circles.
            Some(leader) if process.tries <= 2 => {
                process.hint = Some(leader);
                Duration::ZERO
            }
            hint => {
                process.hint = hint;
                self.rng.between(after / 2, after)
            }
        };
        self.schedule(after, SimEvent::Seek { node: node.clone(), start });
    }

    fn connect(&mut self, node: &WorkerId, to: &WorkerId, id: StreamId, epoch: u64) {
        let Some(process) = self.processes.get_mut(node) else { return };
        process.uplink = Uplink::Up(id);
        process.best = epoch;
        process.tries = 0;
        let (role, region) = (process.role, process.region.clone());
        self.streams.insert(id, Stream::new(node.clone(), to.clone(), epoch));
        let Some(term) = self.controllers.get_mut(to).and_then(|controller| controller.term.as_mut()) else { return };
        match role {
            Role::Worker => {
                let before = term.workers.insert(node.clone(), id);
                before.into_iter().for_each(|stream| self.drop_end(stream, End::Controller));
                let Some(info) = self.machines.get(node).map(|machine| machine.info.clone()) else { return };
                self.brain_hears(to, Event::WorkerAttached(info));
                self.hear(node, berth_worker::Event::Attached);
            }
            Role::Gateway => {
                term.gateways.insert(id, node.clone());
                self.brain_hears(to, Event::GatewayAttached { id: GatewayId(id.0), node: node.clone(), region });
                self.tell_all_demand(node);
            }
            Role::Controller => {}
        }
    }

    /// Says something over a stream, if this end of it is open.
    pub(super) fn say(&mut self, id: StreamId, message: Message) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let to = message.to();
        let from = if to == End::Node { End::Controller } else { End::Node };
        if !stream.is_open(from) {
            return;
        }
        let at = self.now + self.net.delay(HOP, &mut self.rng);
        let Some(side) = stream.open.get_mut(&to) else { return };
        side.last = side.last.max(at);
        self.queue.send(side.last, SimEvent::Message { stream: id, message });
    }

    /// Says something over a node's stream to the leader, if it has one.
    pub(super) fn say_up(&mut self, node: &WorkerId, message: Message) {
        if let Some(Uplink::Up(id)) = self.processes.get(node).map(|process| process.uplink) {
            self.say(id, message);
        }
    }

    pub(super) fn message_arrives(&mut self, id: StreamId, message: Message) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let end = message.to();
        if !stream.is_open(end) {
            return;
        }
        let (here, there) = stream.ends(end);
        if !self.net.passes(there, here) || stream.stuck.iter().any(|stuck| stuck.to() == end) {
            stream.stuck.push(message);
            return;
        }
        let (node, controller, epoch) = (stream.node.clone(), stream.controller.clone(), stream.epoch);
        match message {
            Message::Assigned(change) => self.hear(&node, berth_worker::Event::Assigned(change)),
            Message::Routes(change) => self.routes_arrive(&node, change),
            Message::Report(change) if self.in_term(&controller, epoch) => {
                self.brain_hears(&controller, Event::Reported(change));
            }
            Message::Gateway(event) if self.in_term(&controller, epoch) => {
                self.brain_hears(&controller, Event::Gateway(GatewayId(id.0), event));
            }
            Message::Report(_) | Message::Gateway(_) => {}
        }
    }

    fn in_term(&self, controller: &WorkerId, epoch: u64) -> bool {
        self.controllers
            .get(controller)
            .and_then(|controller| controller.term.as_ref())
            .is_some_and(|term| term.epoch == epoch)
    }

    /// Whatever a cut held up and lets through now goes on.
    pub(super) fn unstick(&mut self) {
        for (id, stream) in &mut self.streams {
            if stream.stuck.is_empty() {
                continue;
            }
            let (mut stuck, mut free) = (Vec::new(), Vec::new());
            for message in std::mem::take(&mut stream.stuck) {
                let (here, there) = stream.ends(message.to());
                if self.net.passes(there, here) { free.push(message) } else { stuck.push(message) }
            }
            stream.stuck = stuck;
            for message in free {
                self.queue.send(self.now, SimEvent::Message { stream: *id, message });
            }
        }
    }

    /// Both ends of every stream that is cut, or whose other end is silent, look after a while whether it still is.
    pub(super) fn doubt_lines(&mut self) {
        let mut doubts = Vec::new();
        for (id, stream) in &self.streams {
            let dead = |end| self.is_silent(stream, end);
            doubts.extend([End::Node, End::Controller].into_iter().filter(|end| dead(*end)).map(|end| (*id, end)));
        }
        for (stream, end) in doubts {
            let after = self.rng.between(KEEPALIVE, KEEPALIVE * 3 / 2);
            self.schedule(after, SimEvent::Keepalive { stream, end });
        }
    }

    /// True if an open end hears nothing from the other.
    fn is_silent(&self, stream: &Stream, end: End) -> bool {
        let (here, there) = stream.ends(end);
        let other = if end == End::Node { End::Controller } else { End::Node };
        stream.is_open(end) && (!stream.is_open(other) || !self.net.joined(here, there) || !self.awake(there))
    }

    pub(super) fn keepalive(&mut self, id: StreamId, end: End) {
        if self.streams.get(&id).is_some_and(|stream| self.is_silent(stream, end)) {
            self.close(id, end);
        }
    }

    /// One end closes: its node hears of it, and the other end as soon as it can.
    pub(super) fn close(&mut self, id: StreamId, end: End) {
        let Some(stream) = self.streams.get(&id).filter(|stream| stream.is_open(end)) else { return };
        let (node, controller, epoch) = (stream.node.clone(), stream.controller.clone(), stream.epoch);
        self.drop_end(id, end);
        match end {
            End::Node => {
                let Some(process) = self.processes.get_mut(&node) else { return };
                if process.uplink == Uplink::Up(id) {
                    process.uplink = Uplink::Seeking;
                    self.seek(&node);
                }
            }
            End::Controller if self.in_term(&controller, epoch) => self.stream_is_gone(&controller, &node, id),
            End::Controller => {}
        }
    }

    /// The leader lost a stream.
    fn stream_is_gone(&mut self, controller: &WorkerId, node: &WorkerId, id: StreamId) {
        let Some(term) = self.controllers.get_mut(controller).and_then(|controller| controller.term.as_mut()) else {
            return;
        };
        if term.workers.get(node) == Some(&id) {
            term.workers.remove(node);
            self.brain_hears(controller, Event::WorkerDetached(node.clone()));
        } else if term.gateways.remove(&id).is_some() {
            self.brain_hears(controller, Event::GatewayDetached(GatewayId(id.0)));
        }
    }

    /// One end is gone, without a message to its node; the other hears of it if the network lets it.
    pub(super) fn drop_end(&mut self, id: StreamId, end: End) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.open.remove(&end);
        let other = if end == End::Node { End::Controller } else { End::Node };
        if stream.open.is_empty() {
            self.streams.remove(&id);
            return;
        }
        let (there, here) = stream.ends(other);
        let heard = self.net.passes(here, there);
        let after = if heard { HOP } else { KEEPALIVE };
        let event = if heard {
            SimEvent::Closed { stream: id, end: other }
        } else {
            SimEvent::Keepalive { stream: id, end: other }
        };
        self.schedule(after, event);
    }

    /// The process of a node is gone: with a message from its machine, or (power lost) without any.
    pub(super) fn drop_streams(&mut self, node: &WorkerId, message: super::fate::LastMessage) {
        let ends = self.streams.iter().filter_map(|(id, stream)| {
            let end = if stream.node == *node { End::Node } else { End::Controller };
            (*stream.ends(end).0 == *node && stream.is_open(end)).then_some((*id, end))
        });
        for (id, end) in ends.collect::<Vec<_>>() {
            match message {
                super::fate::LastMessage::Said => self.drop_end(id, end),
                super::fate::LastMessage::Unsaid => {
                    if let Some(stream) = self.streams.get_mut(&id) {
                        stream.open.remove(&end);
                        if stream.open.is_empty() {
                            self.streams.remove(&id);
                        }
                    }
                }
            }
        }
        self.doubt_lines();
    }
}
