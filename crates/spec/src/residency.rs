//! Residency: the state of one replica as its worker reports it, and the whole set of a worker.
//!
//! ```text
//! Queued → Preparing → Fetching → Loading → Validating → Ready → Draining → (gone)      Preparing: model cards only
//!    │        │           │         │           │         ▲ │ its process died
//!    │        │           │         │           │      up │ ▼
//!    │        │           │         │           │     Restarting
//!    └────────┴───────────┴─────────┴───────────┴──→ Failed ──(retry)──→ Queued
//! ```
//! Restarting is a ready replica whose process is not there just now ([`Ready::is_up`]): it keeps its place and its memory,
//! and answers nobody.
//!
//! Only the worker that holds the replica writes this.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use crate::{Breaker, ByteSize, Digest, Generation, Load, RevisionId, Signature, Time, WorkerId, WorkerState};

/// The state of one replica.
#[derive(Debug, Clone, PartialEq)]
pub enum Residency {
    /// Accepted; waits for memory to be freed or for a free loading slot.
    Queued,
    /// The artifact is being fetched.
    Fetching {
        /// Bytes that the worker has already.
        done: ByteSize,
        /// Bytes in all, once known.
        total: Option<ByteSize>,
    },
    /// Preparation: the runtime's needs beside the artifact are being made.
    Preparing(Preparing),
    /// The runtime reads the artifact into memory.
    Loading,
    /// The validation inference is running.
    Validating,
    /// Ready: answers requests.
    Ready(Arc<Ready>),
    /// Draining: takes no new request and finishes those in flight.
    Draining {
        /// The time at which it began to drain.
        since: Time,
        /// Requests that it still has to finish.
        in_flight: u32,
    },
    /// Failed: could not be made ready.
    Failed(Arc<Failure>),
}

/// Step of the preparation of a model card, before its model can be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Preparing {
    /// Its artifact is fetched first: a file in it lists the packages.
    Artifact,
    /// Its code is checked out at the exact commit.
    Code,
    /// Its packages of the operating system are looked for, or installed.
    SystemPackages,
    /// Its Python environment is made. The present activity is told to people, where it is known.
    Environment(Option<Arc<str>>),
}

impl Preparing {
    /// The most bytes of an activity: a few names and numbers, in a line of a terminal.
    pub const MAX_ACTIVITY: usize = 200;

    /// The word in status, metrics and logs.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Artifact => "artifact",
            Self::Code => "code",
            Self::SystemPackages => "system_packages",
            Self::Environment(_) => "environment",
        }
    }
}

/// For people: the activity where it is known, else the step.
impl fmt::Display for Preparing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SystemPackages => f.write_str("system packages"),
            Self::Environment(Some(activity)) => f.write_str(activity),
            step => f.write_str(step.as_str()),
        }
    }
}

/// Facts of a ready replica.
#[derive(Debug, Clone, PartialEq)]
pub struct Ready {
    /// The time at which it became ready.
    pub since: Time,
    /// The most memory that it was seen to take; the prediction where `measured` is false.
    pub memory: ByteSize,
    /// True if `memory` was measured.
    pub measured: bool,
    /// The digest of the artifact that was loaded.
    pub digest: Digest,
    /// Inputs and outputs, where the runtime knows them.
    pub signature: Option<Arc<Signature>>,
    /// The GPUs that it has, by their [ids](crate::Gpu::id).
    pub devices: Vec<Arc<str>>,
    /// Durations of the phases of the load that made it ready.
    pub phases: Phases,
    /// Something worth knowing that did not stop it, e.g. why batching is off.
    pub note: Option<String>,
    /// The reason why its validation inference proves nothing: a generated request was refused, which a good model may do.
    pub unvalidated: Option<String>,
    /// Deaths of its process, if there were any.
    pub deaths: Option<Arc<Deaths>>,
}

impl Ready {
    /// True if its process is there, where it has one: it answers requests.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.deaths.as_ref().is_none_or(|deaths| deaths.again_at.is_none())
    }
}

/// Deaths of the process of a ready replica, where it has one. The process is started again, after a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deaths {
    /// Number of deaths since it was loaded.
    pub count: u32,
    /// Number of deaths without a long life in between.
    pub in_a_row: u32,
    /// The time of the last death.
    pub at: Time,
    /// Cause of the last death, for people: `it was killed by signal 9`.
    pub cause: String,
    /// When it is started again, or was: it is up some time after that, once its model is loaded. `None`: it is up.
    pub again_at: Option<Time>,
}

impl Deaths {
    /// Deaths in a row after which a process counts as one that dies again and again: more than one bad minute brings, and
    /// few enough that people hear of it within minutes.
    pub const CRASH_LOOP_DEATHS: u32 = 5;

    /// The time that such a process must live to be trusted again: longer than the pause between deaths of one that dies
    /// every few minutes.
    pub const CRASH_LOOP_RESET: Duration = Duration::from_secs(5 * 60);

    /// True for a process that dies again and again: a crash loop. Does not change with each start, so that it can be told.
    #[must_use]
    pub fn is_crash_looping(&self, now: Time) -> bool {
        self.in_a_row >= Self::CRASH_LOOP_DEATHS && (self.again_at.is_some() || now < self.at + Self::CRASH_LOOP_RESET)
    }
}

/// Durations of the phases of a load, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Phases {
    /// Waiting for memory or a slot.
    pub queued_ms: f64,
    /// Fetching and checking the artifact.
    pub fetch_ms: f64,
    /// The runtime's own load.
    pub load_ms: f64,
    /// The validation inference.
    pub validate_ms: f64,
}

/// A load that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The category, which decides the next step.
    pub category: FailureCategory,
    /// For people: what went wrong and what to do. Bounded by [`MAX_MESSAGE`](Failure::MAX_MESSAGE) bytes: a model's process, or a model
    /// server, may say anything.
    pub message: String,
    /// Attempts so far, the last one included.
    pub attempts: u32,
    /// When the last one ended.
    pub at: Time,
    /// When the worker tries again by itself; `None`: it does not.
    pub retry_at: Option<Time>,
    /// Output of the model's own code: a Python traceback, its last words on standard error. Bounded by
    /// [`MAX_TRACE`](Failure::MAX_TRACE) bytes.
    pub trace: Option<Box<str>>,
    /// The attempts before the last one, the oldest first; at most [`MAX_HISTORY`](Failure::MAX_HISTORY).
    pub history: Vec<Attempt>,
    /// The memory that the worker counted for the model, where that is more than it can give: the model's declared or predicted size, or
    /// the default of its runtime.
    pub needs: Option<ByteSize>,
}

/// An attempt to load that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The time at which it ended.
    pub at: Time,
    /// The category of its failure.
    pub category: FailureCategory,
    /// The message of its failure.
    pub message: String,
}

impl Failure {
    /// The most bytes of a trace: the cause at the end of a long Python traceback fits, and a worker full of failed models
    /// does not report megabytes.
    pub const MAX_TRACE: usize = 16 << 10;
    /// The most bytes of a message, and of a note about a model that serves.
    pub const MAX_MESSAGE: usize = 4 << 10;
    /// The most attempts that are remembered. An operation has four (one, and three more).
    pub const MAX_HISTORY: usize = 4;
}

/// The categories of failure (docs/failures.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FailureCategory {
    /// The artifact's store did not answer or answered with a passing fault, or a model server cannot be reached.
    Network,
    /// The artifact's store refused the credentials.
    Auth,
    /// There is no such artifact.
    NotFound,
    /// The artifact is not what its digest says.
    Checksum,
    /// The artifact is not a model that the runtime can load.
    InvalidModel,
    /// The model card's schema version is not one that the worker reads.
    Schema,
    /// The environment of a model card cannot be made: packages that do not exist or do not go together, no such Python.
    Dependencies,
    /// The model card's own code failed: it cannot be imported, lacks a function, or raised an error while it loaded.
    Code,
    /// Not enough memory.
    Memory,
    /// Not enough disk.
    Disk,
    /// The validation inference failed.
    Validation,
    /// The runtime is missing or broken.
    Runtime,
    /// The model or its server was not ready in time.
    Timeout,
    /// A fault of ours.
    Internal,
}

impl FailureCategory {
    /// All of them, in the order of the documents.
    pub const ALL: [Self; 14] = [
        Self::Network,
        Self::Auth,
        Self::NotFound,
        Self::Checksum,
        Self::InvalidModel,
        Self::Schema,
        Self::Dependencies,
        Self::Code,
        Self::Memory,
        Self::Disk,
        Self::Validation,
        Self::Runtime,
        Self::Timeout,
        Self::Internal,
    ];

    /// The one that is written so.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|category| category.as_str() == word)
    }

    /// True if the same worker may succeed later without anybody changing anything.
    #[must_use]
    pub const fn transient(self) -> bool {
        matches!(self, Self::Network | Self::Memory | Self::Disk | Self::Timeout | Self::Internal)
    }

    /// True if the model itself is wrong: its owners mend it, not those who run the fleet.
    #[must_use]
    pub const fn is_the_models(self) -> bool {
        matches!(
            self,
            Self::NotFound
                | Self::Checksum
                | Self::InvalidModel
                | Self::Schema
                | Self::Dependencies
                | Self::Code
                | Self::Validation
        )
    }

    /// The word in status, metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::Auth => "auth",
            Self::NotFound => "not_found",
            Self::Checksum => "checksum",
            Self::InvalidModel => "invalid_model",
            Self::Schema => "schema",
            Self::Dependencies => "dependencies",
            Self::Code => "code",
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Validation => "validation",
            Self::Runtime => "runtime",
            Self::Timeout => "timeout",
            Self::Internal => "internal",
        }
    }
}

impl Residency {
    /// The word in status, metrics and logs.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Queued => "Queued",
            Self::Fetching { .. } => "Fetching",
            Self::Preparing(_) => "Preparing",
            Self::Loading => "Loading",
            Self::Validating => "Validating",
            Self::Ready(ready) if ready.is_up() => "Ready",
            Self::Ready(_) => "Restarting",
            Self::Draining { .. } => "Draining",
            Self::Failed(_) => "Failed",
        }
    }

    /// True if it answers requests.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self, Self::Ready(ready) if ready.is_up())
    }

    /// True if it has become ready, be its process there just now or not.
    #[must_use]
    pub const fn is_loaded(&self) -> bool {
        matches!(self, Self::Ready(_))
    }
}

/// All that a worker holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Inventory {
    /// The worker that holds it.
    pub worker: WorkerId,
    /// Number of the process's start.
    pub incarnation: u64,
    /// The assignment that it works towards.
    pub seen: Generation,
    /// Every replica that takes up anything.
    pub replicas: BTreeMap<RevisionId, Residency>,
}

/// An [`Inventory`] on the wire: what changed since the last report. Whole when `whole`: what is not named is gone.
#[derive(Debug, Clone, PartialEq)]
pub struct InventoryChange {
    /// The worker that reports.
    pub worker: WorkerId,
    /// Number of the process's start.
    pub incarnation: u64,
    /// The assignment that the worker works towards. 0 in a whole report: it asks for the whole assignment.
    pub seen: Generation,
    /// True if this names everything.
    pub whole: bool,
    /// The worker's intention to stay or leave.
    pub state: WorkerState,
    /// Its load, if there is news of it.
    pub load: Option<Load>,
    /// Circuit breakers that are not simply closed, if there is news of them.
    pub breakers: Option<Vec<Breaker>>,
    /// The number of the credentials that it has; 0: none.
    pub credentials: Generation,
    /// Memory of its process that no replica accounts for: program, engine and allocator. Models cannot have it.
    pub overhead: ByteSize,
    /// Replicas that changed; `None`: gone.
    pub replicas: Vec<(RevisionId, Option<Residency>)>,
    /// Use of ready replicas, where that is news. Told now and then, not request by request.
    pub usage: Vec<(RevisionId, Usage)>,
}

/// Use of one replica since it was loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Requests that it was given, whatever came of them.
    pub requests: u64,
    /// When one was last seen; `None`: there was none.
    pub last: Option<Time>,
}
