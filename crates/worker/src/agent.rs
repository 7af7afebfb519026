//! The worker's brain: it knows the assignment, diffs it against its replicas, and says what to do next. It reads no
//! clock and does no I/O; `driver` and `sim` do that for it.
//!
//! ```text
//!   on(Assigned) ─▶ retire what is not wanted, queue what is new ─┐
//!   on(Fetched | Loaded | …) ─▶ replica::step ────────────────────┼─▶ order::next ─▶ effects, then one Report
//!   on(Tick) ─▶ retry what is due ────────────────────────────────┘
//! ```
//! Whole state with a number: a change whose base is not held is not applied; the agent reports everything with
//! `seen` 0, which asks for the whole assignment. So does its first report after a start. Whenever a controller is
//! attached it reports everything: one that has just begun to decide knows nothing of it.

mod hosts;
mod memory;
mod message;
mod replica_totals;
mod work;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use berth_spec::{
    AssignmentChange, ByteSize, Generation, Gpu, InventoryChange, Load, Placed, Residency, RevisionId, Time, Usage,
    WorkerId, WorkerLimits, WorkerState, card::SCHEMA_VERSIONS, worker,
};
pub use memory::PATIENCE;
pub use message::{Effect, Event};
pub use replica_totals::Counts;
use replica_totals::ReplicaTotals;
pub(crate) use replica_totals::of_deployment;

use crate::{
    breaker::Breakers,
    order::{Limits, SharedLoad},
    replica::{Action, Input, Replica, Retries, State},
};

/// The worker's brain: keeps what the controller assigned apart from what is here, and decides the next effects.
#[derive(Debug)]
pub struct Agent {
    worker: WorkerId,
    incarnation: u64,
    /// Its own.
    limits: Limits,
    /// Limits of the registry, as it was told last. It keeps to them while no controller is there.
    told_limits: WorkerLimits,
    /// The delays before retries of failed loads.
    retries: Retries,
    /// The versions of model cards that it reads.
    reads: Vec<String>,
    /// The GPUs that replicas are given.
    gpus: Vec<Gpu>,
    seen: Generation,
    /// Only a whole assignment is of use: nothing was received yet, or a change was missed.
    asking: bool,
    stopping: bool,
    state: WorkerState,
    /// The number of the credentials that it was given.
    credentials: Generation,
    /// The memory of the process beside its models, as the driver has seen it.
    beside_models: ByteSize,
    /// The part of that which models cannot have, as last reported.
    overhead: ByteSize,
    /// The last that was told.
    load: Option<Load>,
    replicas: BTreeMap<RevisionId, Replica>,
    /// Sums over `replicas`.
    totals: ReplicaTotals,
    /// The last that was told of each replica's use.
    usage: BTreeMap<RevisionId, Usage>,
    breakers: Breakers,
    /// The breakers as last reported.
    told: Vec<worker::Breaker>,
    arrivals: u64,
    tickets: u64,
    unreported: Unreported,
}

/// Changes that the controller does not know yet.
#[derive(Debug, Default)]
struct Unreported {
    whole: bool,
    seen: bool,
    state: bool,
    credentials: bool,
    overhead: bool,
    load: Option<Load>,
    replicas: BTreeSet<RevisionId>,
    usage: BTreeSet<RevisionId>,
}

impl Unreported {
    fn is_empty(&self) -> bool {
        let said = self.whole || self.seen || self.state || self.credentials || self.overhead;
        !said && self.load.is_none() && self.replicas.is_empty() && self.usage.is_empty()
    }
}

impl Agent {
    /// The agent of a worker that holds nothing. It speaks first when a controller is [`Attached`](Event::Attached).
    #[must_use]
    pub fn new(worker: WorkerId, incarnation: u64, limits: Limits) -> Self {
        Self {
            worker,
            incarnation,
            limits,
            told_limits: WorkerLimits::default(),
            retries: Retries::default(),
            reads: SCHEMA_VERSIONS.map(str::to_owned).to_vec(),
            gpus: Vec::new(),
            seen: Generation(0),
            asking: true,
            stopping: false,
            state: WorkerState::Serving,
            credentials: Generation(0),
            beside_models: ByteSize::ZERO,
            overhead: ByteSize::ZERO,
            load: None,
            replicas: BTreeMap::new(),
            totals: ReplicaTotals::default(),
            usage: BTreeMap::new(),
            breakers: Breakers::default(),
            told: Vec::new(),
            arrivals: 0,
            tickets: 0,
            unreported: Unreported::default(),
        }
    }

    /// The same, reading model cards of these versions alone.
    #[must_use]
    pub fn reading(self, versions: Vec<String>) -> Self {
        Self { reads: versions, ..self }
    }

    /// The same, with other delays before retries of failed loads.
    #[must_use]
    pub fn retrying(self, retries: Retries) -> Self {
        Self { retries, ..self }
    }

    /// The same, giving replicas these GPUs. One without any leaves their number to the plan.
    #[must_use]
    pub fn with_gpus(self, gpus: Vec<Gpu>) -> Self {
        Self { gpus, ..self }
    }

    /// Takes what happened and returns what to do, in this order.
    pub fn on(&mut self, event: Event, now: Time) -> Vec<Effect> {
        self.on_all([event], now)
    }

    /// The same of several events: it looks for work and reports once, however many there are.
    pub fn on_all(&mut self, events: impl IntoIterator<Item = Event>, now: Time) -> Vec<Effect> {
        let (mut effects, mut finds_work) = (Vec::new(), false);
        for event in events {
            // Progress frees nothing and finishes nothing: looking for work would find none.
            finds_work |= !matches!(
                event,
                Event::Progress { .. }
                    | Event::Preparing { .. }
                    | Event::Health { .. }
                    | Event::Draining { .. }
                    | Event::Load(_)
                    | Event::Used(_)
            );
            self.take(event, now, &mut effects);
        }
        if finds_work {
            self.refresh_overhead();
            self.start_work(now, &mut effects);
        }
        effects.extend(self.report());
        debug_assert_eq!(self.totals, ReplicaTotals::of(&self.replicas), "a replica changed and was not counted");
        effects
    }

    /// When to send [`Event::Tick`].
    #[must_use]
    pub fn wake_at(&self) -> Option<Time> {
        self.totals.wake_at()
    }

    /// True once [`Event::Stop`] was obeyed: nothing is left.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.stopping && self.replicas.is_empty()
    }

    /// The residency of each replica, as the controller gets it, in the order of revisions.
    pub fn residencies(&self) -> impl Iterator<Item = (&RevisionId, Residency)> {
        self.replicas.iter().map(|(id, replica)| (id, replica.residency()))
    }

    /// The number of its replicas in any state, those on their way out included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.replicas.len()
    }

    /// True if it has no replica.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.replicas.is_empty()
    }

    /// Numbers of its replicas by state.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.totals.counts()
    }

    /// Number of replicas whose turn has not come.
    #[must_use]
    pub fn queued(&self) -> usize {
        let moving = self.totals.moving().filter_map(|id| self.replicas.get(id));
        moving.filter(|replica| matches!(replica.residency(), Residency::Queued)).count()
    }

    /// Every replica in any state, in the order of revisions.
    pub fn replicas(&self) -> impl Iterator<Item = (&RevisionId, &Replica)> {
        self.replicas.iter()
    }

    /// Dependencies that are not well, with their breakers.
    #[must_use]
    pub fn breakers(&self) -> &Breakers {
        &self.breakers
    }

    fn take(&mut self, event: Event, now: Time, effects: &mut Vec<Effect>) {
        match event {
            Event::Attached => self.attached(),
            Event::Load(load) => self.unreported.load = Some(load),
            Event::Overhead(bytes) => self.beside_models = bytes,
            Event::Used(used) => {
                for (revision, usage) in used.into_iter().filter(|(id, _)| self.replicas.contains_key(id)) {
                    self.unreported.usage.insert(revision.clone());
                    self.usage.insert(revision, usage);
                }
            }
            Event::Credentials(generation) => {
                self.credentials = generation;
                self.unreported.credentials = true;
            }
            Event::Leave => self.leave(),
            Event::Assigned(change) => self.assign(change, now, effects),
            Event::Progress { revision, ticket, done, total } => {
                self.answer(&revision, ticket, Input::Progress { done, total }, now, effects);
            }
            Event::Preparing { revision, ticket, step } => {
                self.answer(&revision, ticket, Input::Preparing(step), now, effects);
            }
            Event::Prepared { revision, ticket, result, outcomes } => {
                let current = self.answers(&revision, ticket);
                self.record_outcomes(&revision, &outcomes, current, now, effects);
                self.answer(&revision, ticket, result.map_or_else(Input::from, |()| Input::Prepared), now, effects);
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
                self.answer(&revision, ticket, result.map_or_else(Input::Fail, Input::Validated), now, effects);
            }
            Event::Lost { revision, fault } => self.step(&revision, Input::Lost(fault), now, effects),
            Event::Health { revision, health } => self.step(&revision, Input::Health(health), now, effects),
            Event::Draining { revision, in_flight } => self.step(&revision, Input::Draining(in_flight), now, effects),
            Event::Drained { revision } => self.step(&revision, Input::Drained, now, effects),
            Event::Unloaded { revision } => self.step(&revision, Input::Unloaded, now, effects),
            Event::Tick => self.retry_due(now, effects),
            Event::Stop => {
                self.stopping = true;
                self.leave();
                self.unreported.whole = true;
                let all: Vec<_> = self.replicas.keys().cloned().collect();
                all.iter().for_each(|revision| self.retire(revision, now, effects));
            }
        }
    }

    /// A controller hears everything. A number that no leader can have got to is forgotten, and the whole assignment asked for:
    /// whoever gave it would keep all later leaders from being followed.
    fn attached(&mut self) {
        self.unreported.whole = true;
        if self.seen.believed().is_none() {
            (self.seen, self.asking) = (Generation(0), true);
        }
    }

    fn leave(&mut self) {
        self.unreported.state |= self.state != WorkerState::Leaving;
        self.state = WorkerState::Leaving;
    }

    fn assign(&mut self, change: AssignmentChange, now: Time, effects: &mut Vec<Effect>) {
        let AssignmentChange { generation, base, limits, set, unset } = change;
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
        self.told_limits = limits;
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
            self.replicas.insert(id.clone(), Replica::new(placed, self.arrivals, self.retries, now));
            self.totals.recount(&self.replicas, &id);
            return;
        };
        replica.wanted = true;
        let served = matches!(replica.state(), State::Ready(_));
        if served && *replica.placed.serving != *placed.serving {
            effects.push(Effect::Reconfigure { revision: id.clone(), serving: Arc::clone(&placed.serving) });
        }
        replica.placed = placed;
        self.totals.recount(&self.replicas, &id);
    }

    fn retire(&mut self, revision: &RevisionId, now: Time, effects: &mut Vec<Effect>) {
        if let Some(replica) = self.replicas.get_mut(revision) {
            replica.wanted = false;
            self.step(revision, Input::Retire, now, effects);
        }
    }

    fn retry_due(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.totals.due(now).iter().for_each(|revision| self.step(revision, Input::Retry, now, effects));
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
            self.usage.remove(revision);
        }
        self.totals.recount(&self.replicas, revision);
    }

    fn effect(&self, id: &RevisionId, action: Action) -> Effect {
        let replica = &self.replicas[id];
        let (revision, ticket) = (id.clone(), replica.ticket);
        let serving = Arc::clone(&replica.placed.serving);
        match action {
            Action::Prepare(blocked) => {
                Effect::Prepare { revision: Arc::clone(&replica.placed.revision), ticket, blocked }
            }
            Action::Fetch => Effect::Fetch { revision: Arc::clone(&replica.placed.revision), ticket },
            Action::Forget => Effect::Forget { revision },
            Action::Load => {
                let artifact = replica.artifact().expect("it loads what was fetched").clone();
                let share = self
                    .shared_loads(id, replica)
                    .find(|(_, shared)| *shared == SharedLoad::Loaded)
                    .map(|(id, _)| id.clone());
                let devices = replica.devices.clone();
                Effect::Load {
                    revision: Arc::clone(&replica.placed.revision),
                    ticket,
                    artifact,
                    serving,
                    devices,
                    share,
                }
            }
            Action::GiveUp => Effect::GiveUp { revision },
            Action::Validate => Effect::Validate { revision, ticket, serving },
            Action::Announce => Effect::Announce { revision, serving },
            Action::Drain => Effect::Drain { revision, timeout: replica.placed.serving.drain_timeout },
            Action::Unload => Effect::Unload { revision },
        }
    }

    fn report(&mut self) -> Option<Effect> {
        let breakers = self.breakers.told();
        let changed = breakers != self.told;
        if self.unreported.is_empty() && !changed {
            return None;
        }
        let Unreported { whole, load, replicas, usage, .. } = std::mem::take(&mut self.unreported);
        // Whoever hears everything anew does not know the load either.
        let load = if whole { load.or_else(|| self.load.take()) } else { load };
        self.load = load.clone().or_else(|| self.load.take());
        // The last word of a worker that stops is a whole one.
        let whole = whole || self.stopped();
        let breakers = (whole || changed).then_some(breakers);
        let replicas = if whole {
            self.residencies().map(|(id, residency)| (id.clone(), Some(residency))).collect()
        } else {
            let now = |id: RevisionId| {
                let residency = self.replicas.get(&id).map(Replica::residency);
                (id, residency)
            };
            replicas.into_iter().map(now).collect()
        };
        // What is gone by now takes its count with it.
        let usage = if whole {
            self.usage.iter().map(|(id, usage)| (id.clone(), *usage)).collect()
        } else {
            usage.into_iter().filter_map(|id| self.usage.get(&id).copied().map(|usage| (id, usage))).collect()
        };
        if let Some(breakers) = &breakers {
            self.told.clone_from(breakers);
        }
        let (worker, incarnation) = (self.worker.clone(), self.incarnation);
        Some(Effect::Report(InventoryChange {
            worker,
            incarnation,
            seen: self.seen,
            whole,
            state: self.state,
            load,
            breakers,
            credentials: self.credentials,
            overhead: self.overhead,
            replicas,
            usage,
        }))
    }
}
