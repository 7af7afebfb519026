//! The life of one replica on its worker.
//!
//! A model card's code and environment are made before its artifact is fetched:
//!
//! ```text
//!         prepare           prepared          fetch
//! Queued ────────▶ Preparing ──────▶ Prepared ─────▶ Fetching   (for all others: Queued ──▶ Fetching)
//!                      └─ failed ─▶ Failed;  held off: Failed until then, and it was no attempt
//! ```
//!
//! ```text
//!          fetch           fetched            load           loaded             validated
//! Queued ────────▶ Fetching ──────▶ Fetched ────────▶ Loading ──────▶ Validating ─────────▶ Ready
//!    ▲                │               │  ▲  refused      │                 │                   │ retire
//!    │                │               └──┴─▶ Refused     │                 │ failed, retired   ▼
//!    │                │ failed                           │ failed          ▼    drained     Draining
//!    │ retry          ▼                                  ▼             Unloading ◀─────────────┘
//!    └───────────── Failed ◀─────────────────────────────┘                 │ unloaded
//!                     ▲────────────────────────────────────────────────────┴──▶ gone, Failed, or Queued again
//! ```
//! A retired replica (no longer assigned) that is in nobody's hands is gone at once, and a fetch is cancelled. A load
//! is given up where the engine can do that (a process of its own is ended); elsewhere it ends by itself, and then the
//! model is unloaded. A replica that is assigned again while it goes away goes away first and starts over. A ready
//! replica whose model the runtime has lost is unloaded and starts over, too.

mod health;
mod input;
mod retries;

use std::{sync::Arc, time::Duration};

use berth_spec::{
    ByteSize, Digest, Failure, FailureCategory, Placed, Residency, Signature, Time,
    residency::{Attempt, Phases, Preparing, Ready},
    shortened,
};

pub use self::{
    input::{Action, Input, Validated},
    retries::{MAX_RETRIES, RETRY_BASE, RETRY_CAP, Retries},
};
pub use crate::fault::Fault;
use crate::{agent::PATIENCE, artifacts::Artifact, runtime::Validation};

/// A model that its runtime loses sooner than this after it became ready is loaded again only after [`RETRY_BASE`]: a
/// minute is long for a load that works, and short for an engine that restarts.
pub const LOST_EARLY: Duration = Duration::from_secs(60);

/// The facts about a model that the runtime has loaded.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// Bytes of memory that the loaded model takes.
    pub memory: ByteSize,
    /// True if `memory` was measured.
    pub measured: bool,
    /// The inputs and outputs, where the runtime knows them.
    pub signature: Option<Arc<Signature>>,
    /// Something worth knowing that did not stop it.
    pub note: Option<String>,
    /// The reason why its validation inference proves nothing, once it has run.
    pub unvalidated: Option<String>,
}

/// The state of a replica: a box in the diagram of this module.
#[derive(Debug, Clone, PartialEq)]
pub enum State {
    /// Waits for its turn to be fetched; a model card, to be prepared.
    Queued,
    /// Prepares what its card needs beside the artifact.
    Preparing(Preparing),
    /// Its code and environment are here; waits for its turn to be fetched.
    Prepared,
    /// The artifact is on its way.
    Fetching {
        /// Bytes that are here.
        done: ByteSize,
        /// Bytes in all, once known.
        total: Option<ByteSize>,
    },
    /// The artifact is here; waits for memory, a slot, or another replica of the model that is being loaded.
    Fetched(Artifact),
    /// As `Fetched`, but there is no memory for it and none is about to be freed.
    Refused(Artifact, Arc<Failure>),
    /// The runtime is loading it.
    Loading(Artifact),
    /// The validation inference is running.
    Validating(Artifact, Facts),
    /// Answers requests.
    Ready(Arc<Ready>),
    /// Takes no new request and finishes those in flight.
    Draining {
        /// Time at which the state began.
        since: Time,
        /// Requests that were not answered at the last look.
        in_flight: u32,
        /// The model that it holds meanwhile.
        ready: Arc<Ready>,
    },
    /// The model is being freed; then it has failed, or is gone.
    Unloading {
        /// Time at which the state began.
        since: Time,
        /// The bytes that it holds until then.
        memory: ByteSize,
        /// Whose weights they are.
        digest: Digest,
        /// The failed validation, if that is the reason.
        failure: Option<Arc<Failure>>,
    },
    /// Could not be made ready.
    Failed(Arc<Failure>),
}

/// One replica: where it stands, what it is for, and the clock readings along the way.
#[derive(Debug, Clone, PartialEq)]
pub struct Replica {
    /// As it was assigned last.
    pub placed: Placed,
    /// True if it is assigned; otherwise it is on its way out.
    pub wanted: bool,
    /// When it was assigned among others: the first goes first.
    pub arrival: u64,
    /// The GPUs that it has, from the beginning of its load on.
    pub devices: Vec<Arc<str>>,
    /// Since when there is no memory for it, though nothing is about to leave.
    pub without_room: Option<Time>,
    /// Number of the attempt to get it ready: results of earlier ones are ignored.
    pub ticket: u64,
    /// The delays before retries.
    retries: Retries,
    state: State,
    /// Its load was told to end: a failure then says nothing of the model.
    given_up: bool,
    /// Failures in a row.
    attempts: u32,
    /// The last of them, the oldest first.
    history: Vec<Attempt>,
    /// When it came into its state.
    since: Time,
    phases: Phases,
}

impl Replica {
    /// A replica that was just assigned.
    #[must_use]
    pub fn new(placed: Placed, arrival: u64, retries: Retries, now: Time) -> Self {
        Self {
            placed,
            retries,
            wanted: true,
            arrival,
            devices: Vec::new(),
            without_room: None,
            ticket: 0,
            state: State::Queued,
            given_up: false,
            attempts: 0,
            history: Vec::new(),
            since: now,
            phases: Phases::default(),
        }
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// When it came into its state.
    #[must_use]
    pub fn since(&self) -> Time {
        self.since
    }

    /// The state in the form in which the controller and people see it.
    #[must_use]
    pub fn residency(&self) -> Residency {
        match &self.state {
            State::Queued | State::Prepared | State::Fetched(_) => Residency::Queued,
            State::Preparing(step) => Residency::Preparing(step.clone()),
            State::Fetching { done, total } => Residency::Fetching { done: *done, total: *total },
            State::Loading(_) => Residency::Loading,
            State::Validating(..) => Residency::Validating,
            State::Ready(ready) => Residency::Ready(Arc::clone(ready)),
            State::Draining { since, in_flight, .. } => Residency::Draining { since: *since, in_flight: *in_flight },
            State::Unloading { failure: Some(failure), .. } => Residency::Failed(Arc::clone(failure)),
            State::Unloading { since, failure: None, .. } => Residency::Draining { since: *since, in_flight: 0 },
            State::Refused(_, failure) | State::Failed(failure) => Residency::Failed(Arc::clone(failure)),
        }
    }

    /// The memory that it holds, or is about to take. The author's word counts as it is; otherwise the larger of the
    /// claim and what was measured, as the plan will see it once it has heard of the measurement.
    #[must_use]
    pub fn held(&self) -> ByteSize {
        let claim = self.placed.claim;
        let with = |measured: ByteSize| {
            if self.placed.revision.memory.is_some() { claim } else { claim.max(measured) }
        };
        match &self.state {
            State::Queued
            | State::Preparing(_)
            | State::Prepared
            | State::Fetching { .. }
            | State::Fetched(_)
            | State::Refused(..)
            | State::Failed(_) => ByteSize::ZERO,
            State::Loading(_) => claim,
            State::Validating(_, facts) => with(facts.memory),
            State::Ready(ready) | State::Draining { ready, .. } => with(ready.memory),
            State::Unloading { memory, .. } => with(*memory),
        }
    }

    /// The memory that its model was found to take, while it has it.
    #[must_use]
    pub fn taken(&self) -> ByteSize {
        match &self.state {
            State::Validating(_, facts) => facts.memory,
            State::Ready(ready) | State::Draining { ready, .. } => ready.memory,
            State::Unloading { memory, .. } => *memory,
            // Not known yet: as much as was set aside.
            _ => self.held(),
        }
    }

    /// The artifact, from when it was fetched until it is in memory.
    #[must_use]
    pub fn artifact(&self) -> Option<&Artifact> {
        match &self.state {
            State::Fetched(artifact)
            | State::Refused(artifact, _)
            | State::Loading(artifact)
            | State::Validating(artifact, _) => Some(artifact),
            _ => None,
        }
    }

    /// The digest of the weights that it holds or is about to.
    #[must_use]
    pub fn digest(&self) -> Option<Digest> {
        match &self.state {
            State::Ready(ready) | State::Draining { ready, .. } => Some(ready.digest),
            State::Unloading { digest, .. } => Some(*digest),
            _ => self.artifact().map(|artifact| artifact.digest),
        }
    }

    /// Tests for GPUs that are not free for others: from the beginning of its load until it is unloaded.
    #[must_use]
    pub fn holds_devices(&self) -> bool {
        matches!(
            self.state,
            State::Loading(_)
                | State::Validating(..)
                | State::Ready(_)
                | State::Draining { .. }
                | State::Unloading { .. }
        )
    }

    /// When it wants to be woken.
    #[must_use]
    pub fn wake_at(&self) -> Option<Time> {
        match &self.state {
            State::Failed(failure) | State::Refused(_, failure) => failure.retry_at,
            State::Fetched(_) => self.without_room.map(|since| since + PATIENCE),
            _ => None,
        }
    }

    /// The next state and what is to be done. `None` as state: it is gone. An input that means nothing where the
    /// replica stands changes nothing.
    pub fn step(&mut self, input: Input, now: Time) -> Step {
        let before = std::mem::replace(&mut self.state, State::Queued);
        let elapsed = now.since(self.since).as_secs_f64() * 1_000.0;
        let discriminant = std::mem::discriminant(&before);
        let (state, action) = match self.next(before, input, elapsed, now) {
            Next::To(state, action) => (state, action),
            Next::Gone(action) => return Step { action, gone: true },
        };
        if std::mem::discriminant(&state) != discriminant {
            self.since = now;
        }
        self.state = state;
        Step { action, gone: false }
    }

    fn next(&mut self, state: State, input: Input, elapsed_ms: f64, now: Time) -> Next {
        use Action as A;
        match (state, input) {
            (State::Queued, Input::Prepare(blocked)) => {
                self.phases = Phases { queued_ms: elapsed_ms, ..Phases::default() };
                Next::To(State::Preparing(Preparing::Code), Some(A::Prepare(blocked)))
            }
            (State::Preparing(_), Input::Preparing(step)) => Next::To(State::Preparing(step), None),
            (State::Preparing(_), Input::Prepared) => Next::To(State::Prepared, None),
            (state @ (State::Queued | State::Prepared), Input::Fetch) => {
                let before = if matches!(state, State::Prepared) { self.phases.queued_ms } else { 0.0 };
                self.phases = Phases { queued_ms: before + elapsed_ms, ..Phases::default() };
                Next::To(State::Fetching { done: ByteSize::ZERO, total: None }, Some(A::Fetch))
            }
            (State::Fetching { .. }, Input::Progress { done, total }) => {
                Next::To(State::Fetching { done, total }, None)
            }
            (State::Fetching { .. }, Input::Fetched(artifact)) => {
                self.phases.fetch_ms = elapsed_ms;
                Next::To(State::Fetched(artifact), None)
            }
            (State::Preparing(_) | State::Prepared | State::Fetching { .. }, Input::Retire) => {
                Next::Gone(Some(A::Forget))
            }
            (State::Fetched(artifact) | State::Refused(artifact, _), Input::Load) => {
                self.phases.queued_ms += elapsed_ms;
                Next::To(State::Loading(artifact), Some(A::Load))
            }
            (State::Fetched(artifact) | State::Refused(artifact, _), Input::Refuse(fault)) => {
                Next::To(State::Refused(artifact, self.failure(fault, now)), None)
            }
            (State::Loading(artifact), input) => self.loading(artifact, input, elapsed_ms, now),
            (State::Validating(artifact, mut facts), Input::Validated(Validated { memory, outcome })) => {
                self.phases.validate_ms = elapsed_ms;
                facts.memory = facts.memory.max(memory.unwrap_or_default());
                facts.unvalidated = match outcome {
                    Validation::Inconclusive(why) => Some(why),
                    Validation::Passed | Validation::NotRun => None,
                };
                match self.wanted {
                    true => self.ready(&artifact, facts, now),
                    false => unload(facts.memory, artifact.digest, None, now),
                }
            }
            (State::Validating(artifact, facts), Input::Fail(fault)) => {
                let failure = self.failure(fault, now);
                unload(facts.memory, artifact.digest, Some(failure), now)
            }
            // Before anything is fetched: what is wanted cannot be done here.
            (State::Queued, Input::Fail(fault)) => Next::To(State::Failed(self.failure(fault, now)), None),
            (State::Preparing(_) | State::Fetching { .. }, Input::Fail(fault)) => self.failed(fault, now),
            (State::Queued | State::Preparing(_) | State::Prepared, Input::HoldOff(fault, until)) => {
                Next::To(State::Failed(self.held_off(fault, until, now)), None)
            }
            (State::Failed(_), Input::Retry) => Next::To(State::Queued, None),
            (State::Refused(artifact, _), Input::Retry) => Next::To(State::Fetched(artifact), None),
            (State::Ready(ready), Input::Health(health)) => {
                Next::To(State::Ready(health::taken_in(ready, health)), None)
            }
            (State::Ready(ready), Input::Lost(fault)) => {
                let failure = self.lost(fault, ready.since, now);
                unload(ready.memory, ready.digest, failure, now)
            }
            (State::Ready(ready), Input::Retire) => {
                Next::To(State::Draining { since: now, in_flight: 0, ready }, Some(A::Drain))
            }
            (State::Draining { since, ready, .. }, Input::Draining(in_flight)) => {
                Next::To(State::Draining { since, in_flight, ready }, None)
            }
            (State::Draining { ready, .. }, Input::Drained) => unload(ready.memory, ready.digest, None, now),
            (State::Unloading { failure, .. }, Input::Unloaded) => match (self.wanted, failure) {
                (true, Some(failure)) => Next::To(State::Failed(failure), None),
                (true, None) => Next::To(State::Queued, None),
                (false, _) => Next::Gone(None),
            },
            (State::Queued | State::Fetched(_) | State::Refused(..) | State::Failed(_), Input::Retire) => {
                Next::Gone(Some(A::Forget))
            }
            (state, _) => Next::To(state, None),
        }
    }

    /// The transitions while it is being loaded.
    fn loading(&mut self, artifact: Artifact, input: Input, elapsed_ms: f64, now: Time) -> Next {
        match input {
            Input::Loaded(facts) => {
                self.given_up = false;
                self.phases.load_ms = elapsed_ms;
                match self.wanted {
                    true => Next::To(State::Validating(artifact, facts), Some(Action::Validate)),
                    false => unload(facts.memory, artifact.digest, None, now),
                }
            }
            Input::Retire => {
                self.given_up = true;
                Next::To(State::Loading(artifact), Some(Action::GiveUp))
            }
            Input::Fail(_) if self.wanted && self.given_up => {
                self.given_up = false;
                Next::To(State::Queued, None)
            }
            Input::Fail(fault) => self.failed(fault, now),
            _ => Next::To(State::Loading(artifact), None),
        }
    }

    fn failed(&mut self, fault: Fault, now: Time) -> Next {
        match self.wanted {
            true => Next::To(State::Failed(self.failure(fault, now)), None),
            false => Next::Gone(Some(Action::Forget)),
        }
    }

    fn ready(&mut self, artifact: &Artifact, facts: Facts, now: Time) -> Next {
        self.attempts = 0;
        self.history.clear();
        let Facts { memory, measured, signature, note, unvalidated } = facts;
        let [note, unvalidated] =
            [note, unvalidated].map(|told| told.map(|told| shortened(told, Failure::MAX_MESSAGE)));
        let digest = artifact.digest;
        let phases = self.phases;
        let devices = self.devices.clone();
        let ready =
            Ready { since: now, memory, measured, digest, signature, phases, note, unvalidated, deaths: None, devices };
        Next::To(State::Ready(Arc::new(ready)), Some(Action::Announce))
    }

    /// The failure of a model that its runtime has lost. One that served for a while is loaded again at once (`None`);
    /// one that is lost as soon as it is ready waits, so that it is not loaded all the time, and so does one whose runtime cannot be
    /// reached: the controller may have it loaded elsewhere.
    fn lost(&self, fault: Fault, ready_since: Time, now: Time) -> Option<Arc<Failure>> {
        let message = format!("the runtime lost the model: {fault}");
        let waits = now < ready_since + LOST_EARLY || fault.category == FailureCategory::Network;
        waits.then(|| self.held_off(Fault::new(fault.category, message), now + RETRY_BASE, now))
    }

    /// The failure of an operation that was not tried: no attempt, and nothing to remember.
    fn held_off(&self, fault: Fault, until: Time, now: Time) -> Arc<Failure> {
        let Fault { category, message, trace, needs } = fault;
        let (attempts, retry_at, history) = (self.attempts, Some(until), self.history.clone());
        Arc::new(Failure { category, message, attempts, at: now, retry_at, trace, history, needs })
    }

    fn failure(&mut self, fault: Fault, now: Time) -> Arc<Failure> {
        self.attempts += 1;
        let Fault { category, message, trace, needs } = fault;
        let delay = if category.transient() { self.retries.delay(self.attempts) } else { None };
        let retry_at = delay.map(|d| now + d);
        let history = self.history.clone();
        self.history.push(Attempt { at: now, category, message: message.clone() });
        let surplus = self.history.len().saturating_sub(Failure::MAX_HISTORY);
        self.history.drain(..surplus);
        Arc::new(Failure { category, message, attempts: self.attempts, at: now, retry_at, trace, history, needs })
    }
}

fn unload(memory: ByteSize, digest: Digest, failure: Option<Arc<Failure>>, since: Time) -> Next {
    Next::To(State::Unloading { since, memory, digest, failure }, Some(Action::Unload))
}

enum Next {
    To(State, Option<Action>),
    Gone(Option<Action>),
}

/// The result of [`Replica::step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Work for the driver; `None`: nothing is to be done.
    pub action: Option<Action>,
    /// True if the replica is to be removed: it holds nothing any more.
    pub gone: bool,
}
