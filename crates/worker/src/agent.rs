//! The worker's brain: it knows the assignment, diffs it against its replicas, and says what to do next. It reads no
//! clock and does no I/O; `driver` and `sim` do that for it.
//!
//! ```text
//!   on(Assigned) ─▶ retire what is not wanted, queue what is new ─┐
//!   on(Fetched | Loaded | …) ─▶ replica::step ────────────────────┼─▶ order::next ─▶ effects, then one Report
//!   on(Tick) ─▶ retry what is due ────────────────────────────────┘
//! ```
//! Whole state with a number: a change whose base is not held is not applied; the agent reports everything with
//! `seen` 0, which asks for the whole assignment. So does its first report after a start.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use berth_spec::{
    AssignmentChange, ByteSize, FailureCategory, Generation, InventoryChange, Placed, Residency, Revision, RevisionId,
    Serving, Time, WorkerId,
};

use crate::{
    artifacts::{Artifact, origin},
    breaker::Breaker,
    order::{self, Busy, Limits, ModelKey, Start, Twin, Waiting, Want},
    replica::{Action, Facts, Fault, Input, Replica, State},
};

/// What the agent is told. `ticket` is the one of the effect that is answered; a stale one is ignored.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The process has started, or a controller has (re)connected: say everything.
    Started,
    /// The controller changed the assignment.
    Assigned(AssignmentChange),
    /// A fetch got further.
    Progress {
        /// Which replica.
        revision: RevisionId,
        /// Of the effect.
        ticket: u64,
        /// Bytes that are here.
        done: ByteSize,
        /// Bytes in all, once known.
        total: Option<ByteSize>,
    },
    /// A fetch ended.
    Fetched {
        /// Which replica.
        revision: RevisionId,
        /// Of the effect.
        ticket: u64,
        /// The artifact, or why not.
        result: Result<Artifact, Fault>,
    },
    /// A load ended.
    Loaded {
        /// Which replica.
        revision: RevisionId,
        /// Of the effect.
        ticket: u64,
        /// What was loaded, or why not.
        result: Result<Facts, Fault>,
    },
    /// A validation inference ended.
    Validated {
        /// Which replica.
        revision: RevisionId,
        /// Of the effect.
        ticket: u64,
        /// Whether it passed, or why not.
        result: Result<(), Fault>,
    },
    /// A draining replica still has requests in flight.
    Draining {
        /// Which replica.
        revision: RevisionId,
        /// How many.
        in_flight: u32,
    },
    /// A draining replica has none any more, or its time is up.
    Drained {
        /// Which replica.
        revision: RevisionId,
    },
    /// The memory of a replica is free.
    Unloaded {
        /// Which replica.
        revision: RevisionId,
    },
    /// The time that [`Agent::wake_at`] asked for has come.
    Tick,
    /// The process is to end: drain and unload everything, take nothing new.
    Stop,
}

/// What the agent wants done.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Fetch the artifact; answer with [`Event::Progress`] and [`Event::Fetched`].
    Fetch {
        /// What.
        revision: Arc<Revision>,
        /// For the answer.
        ticket: u64,
    },
    /// Stop fetching if it is being fetched, and let go of its artifact: it is gone. No answer is needed.
    Forget {
        /// Which replica.
        revision: RevisionId,
    },
    /// Load it; answer with [`Event::Loaded`].
    Load {
        /// What.
        revision: Arc<Revision>,
        /// For the answer.
        ticket: u64,
        /// The fetched artifact.
        artifact: Artifact,
        /// How it will be served.
        serving: Arc<Serving>,
        /// This replica has the same model in memory: share it instead.
        share: Option<RevisionId>,
    },
    /// Run the validation inference; answer with [`Event::Validated`].
    Validate {
        /// Which replica.
        revision: RevisionId,
        /// For the answer.
        ticket: u64,
        /// With its warm-up.
        serving: Arc<Serving>,
    },
    /// Make it callable, served like this.
    Announce {
        /// Which replica.
        revision: RevisionId,
        /// Limits and batching.
        serving: Arc<Serving>,
    },
    /// Serve it differently from now on.
    Reconfigure {
        /// Which replica.
        revision: RevisionId,
        /// Limits and batching.
        serving: Arc<Serving>,
    },
    /// Take no new request; answer with [`Event::Drained`] after the last one, or when the time is up.
    Drain {
        /// Which replica.
        revision: RevisionId,
        /// The time for it.
        timeout: Duration,
    },
    /// Free its memory; answer with [`Event::Unloaded`].
    Unload {
        /// Which replica.
        revision: RevisionId,
    },
    /// Tell the controller.
    Report(InventoryChange),
}

/// The brain.
#[derive(Debug)]
pub struct Agent {
    worker: WorkerId,
    incarnation: u64,
    limits: Limits,
    seen: Generation,
    /// Only a whole assignment is of use: nothing was received yet, or a change was missed.
    asking: bool,
    stopping: bool,
    replicas: BTreeMap<RevisionId, Replica>,
    breakers: BTreeMap<String, Breaker>,
    arrivals: u64,
    tickets: u64,
    unreported: Unreported,
}

/// What the controller does not know yet.
#[derive(Debug, Default)]
struct Unreported {
    whole: bool,
    seen: bool,
    replicas: BTreeSet<RevisionId>,
}

impl Agent {
    /// The agent of a worker that holds nothing. Send it [`Event::Started`] first.
    #[must_use]
    pub fn new(worker: WorkerId, incarnation: u64, limits: Limits) -> Self {
        Self {
            worker,
            incarnation,
            limits,
            seen: Generation(0),
            asking: true,
            stopping: false,
            replicas: BTreeMap::new(),
            breakers: BTreeMap::new(),
            arrivals: 0,
            tickets: 0,
            unreported: Unreported::default(),
        }
    }

    /// Takes what happened and returns what to do, in this order.
    pub fn on(&mut self, event: Event, now: Time) -> Vec<Effect> {
        let mut effects = Vec::new();
        // Progress frees nothing and finishes nothing: looking for work would find none.
        let idle_news = matches!(event, Event::Progress { .. } | Event::Draining { .. });
        self.take(event, now, &mut effects);
        if !idle_news {
            self.start_work(now, &mut effects);
        }
        effects.extend(self.report());
        effects
    }

    /// When to send [`Event::Tick`].
    #[must_use]
    pub fn wake_at(&self) -> Option<Time> {
        self.replicas.values().filter_map(Replica::wake_at).min()
    }

    /// Whether [`Event::Stop`] was obeyed: nothing is left.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.stopping && self.replicas.is_empty()
    }

    /// What is true of each replica.
    pub fn residencies(&self) -> impl Iterator<Item = (&RevisionId, Residency)> {
        self.replicas.iter().map(|(id, replica)| (id, replica.residency()))
    }

    /// Every replica.
    pub fn replicas(&self) -> impl Iterator<Item = (&RevisionId, &Replica)> {
        self.replicas.iter()
    }

    /// The memory that is held: resident, being loaded, draining or being unloaded. Shared weights count once.
    #[must_use]
    pub fn held(&self) -> ByteSize {
        let mut by_model: BTreeMap<ModelKey, ByteSize> = BTreeMap::new();
        for replica in self.replicas.values() {
            let (held, Some(digest)) = (replica.held(), replica.digest()) else { continue };
            if held > ByteSize::ZERO {
                let entry = by_model.entry(ModelKey::of(&replica.placed.revision, &digest)).or_default();
                *entry = held.max(*entry);
            }
        }
        by_model.into_values().sum()
    }

    /// Hosts that are being left alone or probed, with the breaker's state.
    pub fn breakers(&self) -> impl Iterator<Item = (&str, &Breaker)> {
        self.breakers.iter().map(|(origin, breaker)| (origin.as_str(), breaker))
    }

    fn take(&mut self, event: Event, now: Time, effects: &mut Vec<Effect>) {
        match event {
            Event::Started => self.unreported.whole = true,
            Event::Assigned(change) => self.assign(change, now, effects),
            Event::Progress { revision, ticket, done, total } => {
                self.answer(&revision, ticket, Input::Progress { done, total }, now, effects);
            }
            Event::Fetched { revision, ticket, result } => {
                if self.answers(&revision, ticket) {
                    self.judge_host(&revision, result.as_ref().err(), now, effects);
                }
                self.answer(&revision, ticket, result.map_or_else(Input::Fail, Input::Fetched), now, effects);
            }
            Event::Loaded { revision, ticket, result } => {
                self.answer(&revision, ticket, result.map_or_else(Input::Fail, Input::Loaded), now, effects);
            }
            Event::Validated { revision, ticket, result } => {
                self.answer(&revision, ticket, result.map_or_else(Input::Fail, |()| Input::Validated), now, effects);
            }
            Event::Draining { revision, in_flight } => self.step(&revision, Input::Draining(in_flight), now, effects),
            Event::Drained { revision } => self.step(&revision, Input::Drained, now, effects),
            Event::Unloaded { revision } => self.step(&revision, Input::Unloaded, now, effects),
            Event::Tick => self.retry_due(now, effects),
            Event::Stop => {
                self.stopping = true;
                self.unreported.whole = true;
                let all: Vec<_> = self.replicas.keys().cloned().collect();
                all.iter().for_each(|revision| self.retire(revision, now, effects));
            }
        }
    }

    fn assign(&mut self, change: AssignmentChange, now: Time, effects: &mut Vec<Effect>) {
        let AssignmentChange { generation, base, set, unset } = change;
        let whole = base.is_none();
        let stale = generation < self.seen || (generation == self.seen && !whole);
        if self.stopping || (stale && !self.asking) {
            return;
        }
        if !whole && (self.asking || base != Some(self.seen)) {
            self.asking = true;
            self.seen = Generation(0);
            self.unreported.whole = true;
            return;
        }
        self.asking = false;
        self.seen = generation;
        self.unreported.seen = true;
        let unset = if whole {
            let kept: BTreeSet<_> = set.iter().map(|placed| &placed.revision.id).collect();
            self.replicas.keys().filter(|id| !kept.contains(id)).cloned().collect()
        } else {
            unset
        };
        unset.iter().for_each(|revision| self.retire(revision, now, effects));
        set.into_iter().for_each(|placed| self.place(placed, now, effects));
    }

    fn place(&mut self, placed: Placed, now: Time, effects: &mut Vec<Effect>) {
        let id = placed.revision.id.clone();
        let Some(replica) = self.replicas.get_mut(&id) else {
            self.arrivals += 1;
            self.unreported.replicas.insert(id.clone());
            self.replicas.insert(id, Replica::new(placed, self.arrivals, now));
            return;
        };
        replica.wanted = true;
        let served = matches!(replica.state(), State::Ready(_));
        if served && *replica.placed.serving != *placed.serving {
            effects.push(Effect::Reconfigure { revision: id, serving: Arc::clone(&placed.serving) });
        }
        replica.placed = placed;
    }

    fn retire(&mut self, revision: &RevisionId, now: Time, effects: &mut Vec<Effect>) {
        if let Some(replica) = self.replicas.get_mut(revision) {
            replica.wanted = false;
            self.step(revision, Input::Retire, now, effects);
        }
    }

    fn retry_due(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let due = |replica: &Replica| replica.wake_at().is_some_and(|at| at <= now);
        let due: Vec<_> = self.replicas.iter().filter(|(_, r)| due(r)).map(|(id, _)| id.clone()).collect();
        due.iter().for_each(|revision| self.step(revision, Input::Retry, now, effects));
    }

    fn answers(&self, revision: &RevisionId, ticket: u64) -> bool {
        self.replicas.get(revision).is_some_and(|replica| replica.ticket == ticket)
    }

    fn answer(&mut self, revision: &RevisionId, ticket: u64, input: Input, now: Time, effects: &mut Vec<Effect>) {
        if self.answers(revision, ticket) {
            self.step(revision, input, now, effects);
        }
    }

    fn step(&mut self, revision: &RevisionId, input: Input, now: Time, effects: &mut Vec<Effect>) {
        let Some(replica) = self.replicas.get_mut(revision) else { return };
        let before = replica.residency();
        let step = replica.step(input, now);
        if step.gone || replica.residency() != before {
            self.unreported.replicas.insert(revision.clone());
        }
        if let Some(action) = step.action {
            effects.push(self.effect(revision, action));
        }
        if step.gone {
            self.replicas.remove(revision);
        }
    }

    fn effect(&self, id: &RevisionId, action: Action) -> Effect {
        let replica = &self.replicas[id];
        let (revision, ticket) = (id.clone(), replica.ticket);
        let serving = Arc::clone(&replica.placed.serving);
        match action {
            Action::Fetch => Effect::Fetch { revision: Arc::clone(&replica.placed.revision), ticket },
            Action::Forget => Effect::Forget { revision },
            Action::Load => {
                let State::Loading(artifact) = replica.state() else { unreachable!("only a loading replica loads") };
                let share = self.twins(id, replica).find(|(_, twin)| *twin == Twin::Loaded).map(|(id, _)| id.clone());
                let artifact = artifact.clone();
                Effect::Load { revision: Arc::clone(&replica.placed.revision), ticket, artifact, serving, share }
            }
            Action::Validate => Effect::Validate { revision, ticket, serving },
            Action::Announce => Effect::Announce { revision, serving },
            Action::Drain => Effect::Drain { revision, timeout: replica.placed.serving.drain_timeout },
            Action::Unload => Effect::Unload { revision },
        }
    }

    /// The other replicas of the same model that have it in memory or are getting it there.
    fn twins<'a>(&'a self, id: &'a RevisionId, of: &'a Replica) -> impl Iterator<Item = (&'a RevisionId, Twin)> {
        let key = of.digest().map(|digest| (digest, ModelKey::of(&of.placed.revision, &digest)));
        self.replicas.iter().filter_map(move |(other, replica)| {
            let (digest, key) = key.as_ref()?;
            let standing = match replica.state() {
                State::Ready(_) | State::Draining { .. } => Twin::Loaded,
                State::Loading(_) | State::Validating(..) | State::Unloading { .. } => Twin::OnItsWay,
                State::Queued | State::Fetching { .. } | State::Fetched(_) | State::Refused(..) | State::Failed(_) => {
                    return None;
                }
            };
            let same = other != id
                && replica.digest() == Some(*digest)
                && ModelKey::of(&replica.placed.revision, digest) == *key;
            same.then_some((other, standing))
        })
    }

    /// Learns from a fetch how its host does. Only silence and passing faults count against it.
    fn judge_host(&mut self, id: &RevisionId, fault: Option<&Fault>, now: Time, effects: &mut Vec<Effect>) {
        let Some(host) = self.replicas.get(id).and_then(|replica| origin(&replica.placed.revision.uri)) else { return };
        let breaker = self.breakers.entry(host.clone()).or_default();
        match fault.map(|fault| fault.category) {
            Some(FailureCategory::Network | FailureCategory::Timeout) => breaker.failed(now),
            // Said nothing about the host: the fault was on this side.
            Some(FailureCategory::Disk | FailureCategory::Internal) => {}
            _ => {
                let recovered = matches!(breaker, Breaker::HalfOpen { .. });
                self.breakers.remove(&host);
                if recovered {
                    self.retry_host(&host, now, effects);
                }
            }
        }
    }

    /// The host is back: who was held off need not wait any longer.
    fn retry_host(&mut self, host: &str, now: Time, effects: &mut Vec<Effect>) {
        let held_off = |replica: &Replica| match replica.state() {
            State::Failed(failure) => {
                failure.retry_at.is_some()
                    && failure.category == FailureCategory::Network
                    && origin(&replica.placed.revision.uri).as_deref() == Some(host)
            }
            _ => false,
        };
        let again: Vec<_> = self.replicas.iter().filter(|(_, r)| held_off(r)).map(|(id, _)| id.clone()).collect();
        again.iter().for_each(|revision| self.step(revision, Input::Retry, now, effects));
    }

    fn start_work(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.stopping {
            return;
        }
        let (waiting, busy) = self.survey();
        if waiting.is_empty() {
            return;
        }
        for start in order::next(waiting, busy, &self.limits) {
            match start {
                Start::Fetch(revision) => self.start_fetch(&revision, now, effects),
                Start::Load(revision) => self.step(&revision, Input::Load, now, effects),
                Start::Refuse { revision, need, free } => self.refuse(&revision, need, free, now, effects),
            }
        }
    }

    fn survey(&self) -> (Vec<Waiting>, Busy) {
        let mut busy = Busy { held: self.held(), ..Busy::default() };
        let mut waiting = Vec::new();
        for (id, replica) in &self.replicas {
            let want = match replica.state() {
                State::Queued => Want::Fetch { uri: replica.placed.revision.uri.clone() },
                State::Fetched(artifact) | State::Refused(artifact, _) => {
                    let twin = self.twins(id, replica).map(|(_, twin)| twin).max().unwrap_or(Twin::Absent);
                    let key = ModelKey::of(&replica.placed.revision, &artifact.digest);
                    Want::Load { claim: replica.placed.claim, key, twin }
                }
                State::Fetching { .. } => {
                    busy.fetching.insert(replica.placed.revision.uri.clone());
                    continue;
                }
                State::Loading(_) | State::Validating(..) => {
                    busy.loading += 1;
                    busy.freeing |= !replica.wanted;
                    continue;
                }
                State::Draining { .. } | State::Unloading { .. } => {
                    busy.freeing = true;
                    continue;
                }
                State::Ready(_) | State::Failed(_) => continue,
            };
            let (urgent, arrival) = (replica.placed.urgent, replica.arrival);
            waiting.push(Waiting { revision: id.clone(), urgent, arrival, want });
        }
        (waiting, busy)
    }

    fn start_fetch(&mut self, revision: &RevisionId, now: Time, effects: &mut Vec<Effect>) {
        let Some(replica) = self.replicas.get_mut(revision) else { return };
        if let Some(host) = origin(&replica.placed.revision.uri)
            && let Err(until) = self.breakers.get_mut(&host).map_or(Ok(()), |breaker| breaker.admit(now))
        {
            let message =
                format!("{host} failed again and again and is left alone until {until}; then one fetch probes it");
            let fault = Fault::new(FailureCategory::Network, message);
            return self.step(revision, Input::HoldOff(fault, until), now, effects);
        }
        self.tickets += 1;
        replica.ticket = self.tickets;
        self.step(revision, Input::Fetch, now, effects);
    }

    fn refuse(&mut self, id: &RevisionId, need: ByteSize, free: ByteSize, now: Time, effects: &mut Vec<Effect>) {
        // One that was refused already stays so until its next attempt is due.
        let again = !matches!(self.replicas.get(id).map(Replica::state), Some(State::Refused(..)));
        if again {
            let message = format!(
                "needs {need} of memory and {free} of {} is free: unload others, give the worker more (--memory), or \
                 declare what it really needs (spec.resources.memory)",
                self.limits.memory
            );
            self.step(id, Input::Refuse(Fault::new(FailureCategory::Memory, message)), now, effects);
        }
    }

    fn report(&mut self) -> Option<Effect> {
        let Unreported { whole, seen, replicas } = std::mem::take(&mut self.unreported);
        if !whole && !seen && replicas.is_empty() {
            return None;
        }
        // The last word of a worker that stops is a whole one.
        let whole = whole || self.stopped();
        let replicas = if whole {
            self.residencies().map(|(id, residency)| (id.clone(), Some(residency))).collect()
        } else {
            let now = |id: RevisionId| {
                let residency = self.replicas.get(&id).map(Replica::residency);
                (id, residency)
            };
            replicas.into_iter().map(now).collect()
        };
        let (worker, incarnation) = (self.worker.clone(), self.incarnation);
        Some(Effect::Report(InventoryChange { worker, incarnation, seen: self.seen, whole, replicas }))
    }
}
