//! The clock: what happens next, who hears of it, and what the linter says.

use std::time::Duration;

use berth_plan::{lint, plan};
use berth_spec::{Time, WorkerId};

use super::Cluster;
use crate::{
    controller_node::ControllerNode,
    election::Election,
    event_queue::SimEvent,
    process::{Life, Role},
};

/// The most steps at one moment; beyond that somebody asks to be woken for nothing. Half of all workers that return at
/// once stay below it.
const AT_ONCE: u32 = 20_000;

impl Cluster {
    pub(super) fn schedule(&mut self, after: Duration, event: SimEvent) {
        self.queue.send(self.now + after, event);
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
                (Some(event), _) => self.deliver(event),
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

    /// Runs the linter on what the leader would decide now.
    pub fn lint(&mut self) {
        let Some(world) = self.world() else { return };
        let violations = lint::lint(world, &plan(world, &berth_plan::Scope::All, self.now));
        self.broken.extend(violations.into_iter().map(|violation| violation.0));
    }

    /// Asks a node again when it has something to do.
    pub(super) fn rewake(&mut self, node: &WorkerId) {
        let Some(process) = self.processes.get(node) else { return };
        let (rank, at) = match process.role {
            Role::Controller => (0, self.controllers.get(node).and_then(ControllerNode::brain_wakes_at)),
            Role::Gateway => (1, self.gateways.get(node).and_then(|gateway| gateway.flush_at)),
            Role::Worker => (2, self.machines.get(node).and_then(|machine| machine.agent.wake_at())),
        };
        // An election is timed by a clock that does not jump.
        let election =
            self.controllers.get(node).and_then(|controller| controller.election.as_ref()).map(Election::wake_at);
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

    fn deliver(&mut self, event: SimEvent) {
        if let Some(until) = self.sleeps(&event) {
            // In the order in which it came.
            self.queue.send(until, event);
            return;
        }
        match event {
            SimEvent::Message { stream, message } => self.message_arrives(stream, message),
            SimEvent::Keepalive { stream, end } => self.keepalive(stream, end),
            SimEvent::Closed { stream, end } => self.close(stream, end),
            SimEvent::Seek { node, start } if self.is(&node, start) => self.seek(&node),
            SimEvent::Dial { node, start, attempt, to } if self.is(&node, start) => self.dialled(&node, attempt, &to),
            SimEvent::Declined { node, start, attempt, leader } if self.is(&node, start) => {
                self.declined(&node, attempt, leader);
            }
            SimEvent::Done { worker, start, event } if self.is(&worker, start) => self.hear(&worker, event),
            SimEvent::StoreRequest { from, start, epoch, ask } => self.store_request(&from, start, epoch, &ask),
            SimEvent::StoreReply { to, start, epoch, answer } if self.is(&to, start) => {
                self.store_reply(&to, epoch, &answer)
            }
            SimEvent::Watched { to, start, rev } if self.is(&to, start) => self.watched(&to, rev),
            SimEvent::Health { observer, of, health, news } => self.health(&observer, &of, health, news),
            SimEvent::RequestArrives { request, attempt, worker, revision } => {
                self.request_arrives(request, attempt, &worker, revision)
            }
            SimEvent::RequestRan { request, attempt, worker, start, revision } if self.is(&worker, start) => {
                self.request_ran(request, attempt, &worker, revision);
            }
            SimEvent::AnswerArrives { request, attempt, worker, answer } => {
                self.answer_arrives(request, attempt, &worker, answer)
            }
            SimEvent::Silent { request, attempt } => self.silent(request, attempt),
            SimEvent::Patience { request } => self.impatient(request),
            SimEvent::FaultEnds(fault) => self.end_fault(fault),
            SimEvent::Restart { node, start } if self.was(&node, start) => self.restart(&node),
            _ => {}
        }
    }

    /// Until when the node sleeps that has to be awake for this.
    fn sleeps(&self, event: &SimEvent) -> Option<Time> {
        let node = match event {
            SimEvent::Message { stream, message } => {
                let stream = self.streams.get(stream)?;
                stream.ends(message.to()).0
            }
            SimEvent::Keepalive { stream, end } | SimEvent::Closed { stream, end } => {
                self.streams.get(stream)?.ends(*end).0
            }
            SimEvent::AnswerArrives { request, .. } | SimEvent::Silent { request, .. } => {
                &self.requests.open.get(request)?.gateway_id
            }
            other => other.wakes()?,
        };
        match self.processes.get(node)?.life {
            Life::Paused { until } => Some(until),
            Life::Running | Life::Down | Life::Left => None,
        }
    }

    /// True if this is the process that something was meant for.
    fn is(&self, node: &WorkerId, start: u64) -> bool {
        self.processes.get(node).is_some_and(|process| process.start == start && !process.is_gone())
    }

    /// True if this process was the last, and runs no more.
    fn was(&self, node: &WorkerId, start: u64) -> bool {
        self.processes.get(node).is_some_and(|process| process.start == start && process.is_gone())
    }
}
