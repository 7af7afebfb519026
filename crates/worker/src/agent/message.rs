//! Events for the agent, and its effects.

use std::{sync::Arc, time::Duration};

use berth_spec::{
    AssignmentChange, ByteSize, Generation, InventoryChange, Load, Revision, RevisionId, Serving, Usage,
    residency::Preparing,
};

use crate::{
    artifacts::Artifact,
    breaker::Dependency,
    fault::Fault,
    prepare::{BlockedDependencies, Miss},
    replica::{Facts, Validated},
    runtime::Health,
};

/// An event for the agent. `ticket` is the one of the effect that is answered; a stale one is ignored.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A controller was connected, perhaps another one than before: say everything.
    Attached,
    /// The controller changed the assignment.
    Assigned(AssignmentChange),
    /// Getting a card ready came to this.
    Preparing {
        /// The replica's revision: its key on this worker.
        revision: RevisionId,
        /// Ticket of the [`Effect`] that this answers.
        ticket: u64,
        /// The part that is being made.
        step: Preparing,
    },
    /// The preparations of a card's model beside its artifact have ended.
    Prepared {
        /// The replica's revision: its key on this worker.
        revision: RevisionId,
        /// Ticket of the [`Effect`] that this answers.
        ticket: u64,
        /// `Err`: the reason why something is missing.
        result: Result<(), Miss>,
        /// The dependencies that were asked, and `true` for those that answered.
        outcomes: Vec<(Dependency, bool)>,
    },
    /// A fetch got further.
    Progress {
        /// The replica's revision: its key on this worker.
        revision: RevisionId,
        /// Ticket of the [`Effect`] that this answers.
        ticket: u64,
        /// Bytes that are here.
        done: ByteSize,
        /// Bytes in all, once known.
        total: Option<ByteSize>,
    },
    /// Answers [`Effect::Fetch`], once.
    Fetched {
        /// The replica's revision: its key on this worker.
        revision: RevisionId,
        /// Ticket of the [`Effect`] that this answers.
        ticket: u64,
        /// The artifact on this machine, or the reason why it could not be fetched.
        result: Result<Artifact, Fault>,
    },
    /// Answers [`Effect::Load`], once, also after [`Effect::GiveUp`].
    Loaded {
        /// The replica's revision: its key on this worker.
        revision: RevisionId,
        /// Ticket of the [`Effect`] that this answers.
        ticket: u64,
        /// The loaded model, or the failure.
        result: Result<Facts, Fault>,
    },
    /// Answers [`Effect::Validate`], once.
    Validated {
        /// The replica's revision: its key on this worker.
        revision: RevisionId,
        /// Ticket of the [`Effect`] that this answers.
        ticket: u64,
        /// Facts of the model after it, or the cause that it did not pass.
        result: Result<Validated, Fault>,
    },
    /// The health of the model of a ready replica.
    Health {
        /// The replica's revision: its key on this worker.
        revision: RevisionId,
        /// Its memory, and how its process died.
        health: Health,
    },
    /// The runtime has lost the model of a ready replica: it is to be loaded again.
    Lost {
        /// The replica's revision: its key on this worker.
        revision: RevisionId,
        /// The reason that the runtime gives, from [`Health::lost`].
        fault: Fault,
    },
    /// A draining replica still has requests in flight.
    Draining {
        /// The replica's revision: its key on this worker.
        revision: RevisionId,
        /// Requests that were begun and are not answered yet.
        in_flight: u32,
    },
    /// A draining replica has none any more, or its time is up.
    Drained {
        /// The replica's revision: its key on this worker.
        revision: RevisionId,
    },
    /// The memory of a replica is free.
    Unloaded {
        /// The replica's revision: its key on this worker.
        revision: RevisionId,
    },
    /// The time that [`Agent::wake_at`] asked for has come.
    Tick,
    /// The load was looked at and is worth telling.
    Load(Load),
    /// Memory of the process beside what its models were measured to take, as the kernel sees it.
    Overhead(ByteSize),
    /// The use of replicas, where it is worth reporting.
    Used(Vec<(RevisionId, Usage)>),
    /// Credentials of this number are in use from now on.
    Credentials(Generation),
    /// The process will end before long: say so, and go on answering until [`Event::Stop`].
    Leave,
    /// The process is to end: drain and unload everything, take nothing new.
    Stop,
}

/// An effect that the driver carries out for the agent.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Make what a card's model needs beside its artifact; answer with [`Event::Preparing`] and [`Event::Prepared`].
    Prepare {
        /// The whole revision, whose id is the replica's key.
        revision: Arc<Revision>,
        /// Ticket to repeat in the answer; the number of the replica's attempt.
        ticket: u64,
        /// The dependencies that must not be asked: use what is here.
        blocked: BlockedDependencies,
    },
    /// Fetch the artifact; answer with [`Event::Progress`] and [`Event::Fetched`].
    Fetch {
        /// The whole revision, whose id is the replica's key.
        revision: Arc<Revision>,
        /// Ticket to repeat in the answer; the number of the replica's attempt.
        ticket: u64,
    },
    /// Stop preparing and fetching if that is under way, and let go of its artifact: it is gone. No answer is needed.
    Forget {
        /// The replica's revision: its key on this worker.
        revision: RevisionId,
    },
    /// Load the model into its runtime, or share it; answer with [`Event::Loaded`].
    Load {
        /// The whole revision, whose id is the replica's key.
        revision: Arc<Revision>,
        /// Ticket to repeat in the answer; the number of the replica's attempt.
        ticket: u64,
        /// The artifact that [`Event::Fetched`] brought.
        artifact: Artifact,
        /// The settings by which it will be served.
        serving: Arc<Serving>,
        /// The GPUs that it may use, by their ids.
        devices: Vec<Arc<str>>,
        /// This replica has the same model in memory: share it instead.
        share: Option<RevisionId>,
    },
    /// End its load, where the engine can do that. No answer is needed but that of the load, whatever becomes of it.
    GiveUp {
        /// The replica's revision: its key on this worker.
        revision: RevisionId,
    },
    /// Run the validation inference; answer with [`Event::Validated`].
    Validate {
        /// The replica's revision: its key on this worker.
        revision: RevisionId,
        /// Ticket to repeat in the answer; the number of the replica's attempt.
        ticket: u64,
        /// Settings of the deployment, of which the warm-up counts here.
        serving: Arc<Serving>,
    },
    /// Make it callable, served like this.
    Announce {
        /// The replica's revision: its key on this worker.
        revision: RevisionId,
        /// Limits and batching.
        serving: Arc<Serving>,
    },
    /// Serve it differently from now on.
    Reconfigure {
        /// The replica's revision: its key on this worker.
        revision: RevisionId,
        /// Limits and batching.
        serving: Arc<Serving>,
    },
    /// Take no new request; answer with [`Event::Drained`] after the last one, or when the time is up.
    Drain {
        /// The replica's revision: its key on this worker.
        revision: RevisionId,
        /// The longest wait for requests in flight.
        timeout: Duration,
    },
    /// Free its memory; answer with [`Event::Unloaded`].
    Unload {
        /// The replica's revision: its key on this worker.
        revision: RevisionId,
    },
    /// Send the controller the changes since the last report; one that finds no controller may be joined with later ones.
    Report(InventoryChange),
}
