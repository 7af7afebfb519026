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
        /// The replica.
        revision: RevisionId,
        /// Of the effect.
        ticket: u64,
        /// The part that is being made.
        step: Preparing,
    },
    /// The preparations of a card's model beside its artifact have ended.
    Prepared {
        /// The replica.
        revision: RevisionId,
        /// Of the effect.
        ticket: u64,
        /// The reason why it is not.
        result: Result<(), Miss>,
        /// The dependencies that were asked, and `true` for those that answered.
        outcomes: Vec<(Dependency, bool)>,
    },
    /// A fetch got further.
    Progress {
        /// The replica.
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
        /// The replica.
        revision: RevisionId,
        /// Of the effect.
        ticket: u64,
        /// The artifact, or why not.
        result: Result<Artifact, Fault>,
    },
    /// A load ended.
    Loaded {
        /// The replica.
        revision: RevisionId,
        /// Of the effect.
        ticket: u64,
        /// The loaded model, or the failure.
        result: Result<Facts, Fault>,
    },
    /// A validation inference ended.
    Validated {
        /// The replica.
        revision: RevisionId,
        /// Of the effect.
        ticket: u64,
        /// Facts of the model after it, or the cause that it did not pass.
        result: Result<Validated, Fault>,
    },
    /// The health of the model of a ready replica.
    Health {
        /// The replica.
        revision: RevisionId,
        /// Its memory, and how its process died.
        health: Health,
    },
    /// The runtime has lost the model of a ready replica: it is to be loaded again.
    Lost {
        /// The replica.
        revision: RevisionId,
        /// The reason.
        fault: Fault,
    },
    /// A draining replica still has requests in flight.
    Draining {
        /// The replica.
        revision: RevisionId,
        /// The requests in flight.
        in_flight: u32,
    },
    /// A draining replica has none any more, or its time is up.
    Drained {
        /// The replica.
        revision: RevisionId,
    },
    /// The memory of a replica is free.
    Unloaded {
        /// The replica.
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
        /// The revision.
        revision: Arc<Revision>,
        /// For the answer.
        ticket: u64,
        /// The dependencies that must not be asked: use what is here.
        blocked: BlockedDependencies,
    },
    /// Fetch the artifact; answer with [`Event::Progress`] and [`Event::Fetched`].
    Fetch {
        /// The revision.
        revision: Arc<Revision>,
        /// For the answer.
        ticket: u64,
    },
    /// Stop preparing and fetching if that is under way, and let go of its artifact: it is gone. No answer is needed.
    Forget {
        /// The replica.
        revision: RevisionId,
    },
    /// Load it; answer with [`Event::Loaded`].
    Load {
        /// The revision.
        revision: Arc<Revision>,
        /// For the answer.
        ticket: u64,
        /// The fetched artifact.
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
        /// The replica.
        revision: RevisionId,
    },
    /// Run the validation inference; answer with [`Event::Validated`].
    Validate {
        /// The replica.
        revision: RevisionId,
        /// For the answer.
        ticket: u64,
        /// With its warm-up.
        serving: Arc<Serving>,
    },
    /// Make it callable, served like this.
    Announce {
        /// The replica.
        revision: RevisionId,
        /// Limits and batching.
        serving: Arc<Serving>,
    },
    /// Serve it differently from now on.
    Reconfigure {
        /// The replica.
        revision: RevisionId,
        /// Limits and batching.
        serving: Arc<Serving>,
    },
    /// Take no new request; answer with [`Event::Drained`] after the last one, or when the time is up.
    Drain {
        /// The replica.
        revision: RevisionId,
        /// The time for it.
        timeout: Duration,
    },
    /// Free its memory; answer with [`Event::Unloaded`].
    Unload {
        /// The replica.
        revision: RevisionId,
    },
    /// Tell the controller.
    Report(InventoryChange),
}
