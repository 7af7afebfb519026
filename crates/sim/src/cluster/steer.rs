//! Controllers: their terms, what their brains want done, and what the store answers.

use std::{sync::Arc, time::Duration};

use berth_control::controller::{Controller, Effect, Event, RouteRecipients};
use berth_plan::Policy;
use berth_spec::{Health, WorkerId};

use super::Cluster;
use crate::{
    controller_node::Term,
    election::{Election, ElectionStep},
    event_queue::{Ask, SimEvent},
    net::{HOP, TO_STORE},
    store::{Quorum, STORE, Stored},
    stream::{End, Message, StreamId},
};

/// The time that a controller waits for the store: enough for a slow one, and a dead one is noticed soon.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) fn store() -> WorkerId {
    WorkerId::new(STORE).expect("a word is a name")
}

impl Cluster {
    /// The only controller leads without being elected.
    pub(super) fn lead_alone(&mut self, name: &WorkerId) {
        if self.controllers.get(name).is_some_and(|controller| controller.election.is_none())
            && let Some(epoch) = self.store.campaign(name, self.now, None)
        {
            self.begin_term(name, epoch);
            self.read_store(name);
        }
    }

    /// The controller's process ends and another one starts from the store.
    pub fn restart_controller(&mut self) {
        let Some(name) = self.controllers.keys().next().cloned() else { return };
        self.crash(&name);
        self.restart(&name);
        self.log(name.as_str(), "restarted");
    }

    pub(super) fn store_answers(&self, asking: &WorkerId) -> bool {
        self.store.quorum != Quorum::Lost && self.net.joined(asking, &store())
    }

    fn store_takes(&self) -> Duration {
        match self.store.quorum {
            Quorum::Whole | Quorum::Lost => TO_STORE,
            Quorum::Slow(more) => TO_STORE + more,
        }
    }

    /// A controller looks at the time: whether it still leads, and whether there is something to decide.
    pub(super) fn tick_controller(&mut self, name: &WorkerId) {
        let seen = self.store_answers(name).then(|| self.store.leader(self.now).map(|leader| leader.name.clone()));
        // Its lease is counted by a clock that does not jump.
        let now = self.now;
        let Some(controller) = self.controllers.get_mut(name) else { return };
        let wish = controller.election.as_mut().and_then(|election| election.tick(now, seen));
        match wish {
            Some(ElectionStep::Campaign) => self.ask(name, 0, Ask::Campaign),
            Some(ElectionStep::Renew) => {
                let epoch = controller.term.as_ref().map_or(0, |term| term.epoch);
                self.ask(name, epoch, Ask::Renew(now));
            }
            Some(ElectionStep::StepDown) => self.end_term(name, "steps down"),
            None => {}
        }
        let clock = self.processes[name].clock(now);
        let controller = self.controllers.get(name);
        let due = controller.and_then(|controller| controller.leads()).and_then(|(_, brain)| brain.wake_at());
        if due.is_some_and(|at| at <= clock) {
            self.brain_hears(name, Event::Tick);
        }
    }

    pub(super) fn begin_term(&mut self, name: &WorkerId, epoch: u64) {
        if let Some(controller) = self.controllers.get_mut(name) {
            controller.term = Some(Term::new(epoch));
        }
    }

    /// A new leader knows what the store holds.
    fn read_store(&mut self, name: &WorkerId) {
        let now = self.processes[name].clock(self.now);
        let restored = self.store.restore();
        let Some(controller) = self.controllers.get_mut(name) else { return };
        let Some(term) = &mut controller.term else { return };
        (term.told, term.sent) = (restored.rev.0, restored.rev.0);
        term.brain = Some(Controller::new(Policy::default(), restored, now));
        let members: Vec<(WorkerId, Health)> =
            controller.members.iter().map(|(of, health)| (of.clone(), *health)).collect();
        if controller.election.is_some() {
            self.log(name.as_str(), "leads");
        }
        for (worker, health) in members {
            self.member_heard(name, worker, health);
        }
        self.rewake(name);
    }

    /// A controller leads no longer: all its streams end.
    pub(super) fn end_term(&mut self, name: &WorkerId, why: &str) {
        let Some(term) = self.controllers.get_mut(name).and_then(|controller| controller.term.take()) else { return };
        self.log(name.as_str(), why);
        for stream in term.workers.into_values().chain(term.gateways.into_keys()) {
            self.drop_end(stream, End::Controller);
        }
        self.rewake(name);
    }

    /// The brain of a controller that leads hears something.
    pub(super) fn brain_hears(&mut self, name: &WorkerId, event: Event) {
        let Some(process) = self.processes.get(name) else { return };
        let now = process.clock(self.now);
        let Some(term) = self.controllers.get_mut(name).and_then(|controller| controller.term.as_mut()) else { return };
        let epoch = term.epoch;
        let Some(brain) = &mut term.brain else { return };
        let effects = brain.on(event, now);
        for effect in effects {
            self.perform(name, epoch, effect);
        }
        self.rewake(name);
    }

    fn perform(&mut self, name: &WorkerId, epoch: u64, effect: Effect) {
        let Some(term) = self.controllers.get(name).and_then(|controller| controller.term.as_ref()) else { return };
        let world = term.brain.as_ref().map(Controller::world);
        match effect {
            Effect::Commit(commit) => self.ask(name, epoch, Ask::Commit(commit)),
            Effect::SendAssignment { worker, change, .. } => {
                let stream = term.workers.get(&worker).copied();
                if let Some(world) = world.filter(|_| self.store.is_led_by(name, epoch)) {
                    self.audit.told(&worker, world, &mut self.broken);
                }
                stream.into_iter().for_each(|stream| self.say(stream, Message::Assigned(change.clone())));
            }
            Effect::SendRoutes { to, change } => {
                let streams: Vec<StreamId> = match to {
                    RouteRecipients::All => term.gateways.keys().copied().collect(),
                    RouteRecipients::One(id) => vec![StreamId(id.0)],
                };
                if self.store.is_led_by(name, epoch) {
                    self.audit.routed(&change, &mut self.broken);
                }
                streams.into_iter().for_each(|stream| self.say(stream, Message::Routes(change.clone())));
            }
            Effect::HangUp(worker) => {
                let term = self.controllers.get_mut(name).and_then(|controller| controller.term.as_mut());
                let stream = term.and_then(|term| term.workers.remove(&worker));
                stream.into_iter().for_each(|stream| self.drop_end(stream, End::Controller));
            }
            Effect::Emit(event) => self.log(event.reason, &event.message),
            Effect::PersistMeasured(digest, size) => self.ask(name, epoch, Ask::Measure(digest, size)),
            _ => {}
        }
    }

    /// A controller asks something of the store.
    fn ask(&mut self, from: &WorkerId, epoch: u64, ask: Ask) {
        let start = self.processes[from].start;
        if self.store_answers(from) {
            let after = self.net.delay(self.store_takes(), &mut self.rng);
            self.schedule(after, SimEvent::StoreRequest { from: from.clone(), start, epoch, ask: Arc::new(ask) });
        } else {
            self.unanswered(from, start, epoch, &ask);
        }
    }

    /// Nothing comes of a question: whoever asked gives up waiting.
    fn unanswered(&mut self, to: &WorkerId, start: u64, epoch: u64, ask: &Ask) {
        let answer = match ask {
            Ask::Commit(_) => Stored::Refused,
            Ask::Campaign => Stored::Taken,
            Ask::Read => Stored::Content { rev: 0 },
            Ask::Renew(_) | Ask::Resign | Ask::Measure(..) => return,
        };
        self.schedule(STORE_TIMEOUT, SimEvent::StoreReply { to: to.clone(), start, epoch, answer });
    }

    /// A question arrives at the store.
    pub(super) fn store_request(&mut self, from: &WorkerId, start: u64, epoch: u64, ask: &Ask) {
        let now = self.now;
        if self.store.quorum == Quorum::Lost || !self.net.passes(from, &store()) {
            return self.unanswered(from, start, epoch, ask);
        }
        let answer = match ask {
            Ask::Campaign => match self.store.campaign(from, now, Some(crate::store::LEASE)) {
                Some(epoch) => Stored::Won { epoch },
                None => Stored::Taken,
            },
            Ask::Renew(asked) if self.store.renew(epoch, now) => Stored::Renewed { asked: *asked },
            Ask::Renew(_) => Stored::Deposed,
            Ask::Resign => return self.store.resign(epoch, now),
            Ask::Read => Stored::Content { rev: self.store.rev() },
            Ask::Measure(digest, size) => return self.store.measure(*digest, *size),
            Ask::Commit(_) if self.faults.refuses(&mut self.rng) => Stored::Refused,
            Ask::Commit(commit) => self.commit(from, epoch, commit),
        };
        if self.net.passes(&store(), from) {
            let after = self.net.delay(self.store_takes(), &mut self.rng);
            self.schedule(after, SimEvent::StoreReply { to: from.clone(), start, epoch, answer });
        } else {
            self.unanswered(from, start, epoch, ask);
        }
    }

    fn commit(&mut self, from: &WorkerId, epoch: u64, commit: &berth_control::controller::PlanCommit) -> Stored {
        let answer = self.store.commit(commit, epoch, self.now);
        if matches!(answer, Stored::Committed) {
            let term = self.controllers.get(from).and_then(|controller| controller.term.as_ref());
            if let Some(brain) = term.filter(|term| term.epoch == epoch).and_then(|term| term.brain.as_ref()) {
                self.audit.stored(commit, brain.world(), &mut self.broken);
            } else {
                self.audit.stored_unseen(commit);
            }
            let lost = self.oracle.forgotten(commit.forget.iter().map(|(name, _)| name));
            self.broken.extend(lost);
            self.pump_watches();
        }
        answer
    }

    /// The store's answer arrives.
    pub(super) fn store_reply(&mut self, to: &WorkerId, epoch: u64, answer: &Stored) {
        let now = self.now;
        let Some(controller) = self.controllers.get_mut(to) else { return };
        let current = controller.term.as_ref().is_some_and(|term| term.epoch == epoch);
        let leads_now = match answer {
            Stored::Won { epoch } => Some(*epoch),
            _ => None,
        };
        let campaigned = matches!(controller.election, Some(Election::Campaigning { .. }));
        let wish = controller.election.as_mut().and_then(|election| election.answered(answer, now));
        match answer {
            // It has given up campaigning meanwhile: the key goes with its lease.
            Stored::Won { .. } if !campaigned => {}
            Stored::Won { .. } => {
                let epoch = leads_now.unwrap_or_default();
                self.begin_term(to, epoch);
                self.ask(to, epoch, Ask::Read);
            }
            Stored::Content { rev: 0 } if current => self.ask(to, epoch, Ask::Read),
            Stored::Content { .. } if current => self.read_store(to),
            Stored::Committed if current => self.brain_hears(to, Event::Committed),
            Stored::Refused if current => self.brain_hears(to, Event::Refused),
            Stored::Deposed if current && wish == Some(ElectionStep::StepDown) => self.end_term(to, "was deposed"),
            _ => {}
        }
        self.pump_watches();
        self.rewake(to);
    }

    /// Whoever leads and was not told the last changes is told them.
    pub(super) fn pump_watches(&mut self) {
        let last = self.store.last_change();
        let mut behind = Vec::new();
        for (name, controller) in &mut self.controllers {
            let Some(term) = controller.term.as_mut().filter(|term| term.brain.is_some() && term.sent < last) else {
                continue;
            };
            if self.net.joined(name, &store()) {
                term.sent = last;
                behind.push(name.clone());
            }
        }
        for to in behind {
            let start = self.processes[&to].start;
            let more = self.store_takes().saturating_sub(TO_STORE);
            let after = self.net.delay(HOP + more, &mut self.rng);
            self.schedule(after, SimEvent::Watched { to, start, rev: last });
        }
    }

    /// The store's changes arrive at a controller.
    pub(super) fn watched(&mut self, to: &WorkerId, rev: u64) {
        let passes = self.net.passes(&store(), to);
        let Some(term) = self.controllers.get_mut(to).and_then(|controller| controller.term.as_mut()) else { return };
        if !passes {
            term.sent = term.told;
            return;
        }
        let events = self.store.changes(term.told, rev);
        term.told = term.told.max(rev);
        for event in events {
            self.brain_hears(to, event);
        }
    }

    /// The members think something of a node: a leader's brain hears of it.
    pub(super) fn member_heard(&mut self, controller: &WorkerId, worker: WorkerId, health: Health) {
        if self.infos.contains_key(&worker) {
            self.brain_hears(controller, Event::Member { worker, health });
        }
    }
}
