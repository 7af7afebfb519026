//! Events of the controller.

use std::{sync::Arc, time::Duration};

use berth_spec::Time;

use super::effect::TaskId;
use crate::{
    deployment::Declared,
    status::{ArtifactStatus, Revision, Status},
    writer::Written,
};

/// News for the controller.
#[derive(Debug)]
pub enum Event {
    /// All objects, by their keys below the prefix.
    Listed(Vec<(String, Declared)>),
    /// An object was written.
    Put(String, Box<Declared>),
    /// An object was deleted.
    Deleted(String),
    /// A build ended.
    Built(TaskId, Box<Result<Built, Failure>>),
    /// A deployment ended.
    Deployed(TaskId, Result<Deployed, Failure>),
    /// Nothing of a function is left.
    Removed(String),
    /// A status was written, or not.
    Written(String, Arc<Status>, Written),
    /// Time for a look at what runs elsewhere.
    Verify,
    /// Time has passed.
    Tick,
}

/// A version that a target serves since before the start, as far as the target knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Served {
    /// URL that answers a POST of JSON.
    pub endpoint: Option<String>,
    /// The artifact that it was started from; `None`: the target does not know it.
    pub artifact: Option<ArtifactStatus>,
    /// The deployed spec; `None`: the target does not know it.
    pub revision: Option<Revision>,
}

/// A successful build.
#[derive(Debug, Clone)]
pub struct Built {
    /// The ZIP file that was stored, new or found again.
    pub artifact: ArtifactStatus,
    /// True if an earlier build of the same inputs was used.
    pub cached: bool,
    /// True if the artifact was deployed before, and nothing was built.
    pub restored: bool,
    /// Time that it took.
    pub took: Duration,
    /// Last lines of its log.
    pub log_tail: String,
    /// Remarks for people.
    pub notes: Vec<String>,
}

/// A successful deployment.
#[derive(Debug, Clone)]
pub struct Deployed {
    /// URL that answers a POST of JSON.
    pub endpoint: String,
    /// Remarks for people; empty: there are none.
    pub note: String,
}

/// Another attempt after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// None: somebody has to change something.
    Never,
    /// After a pause that grows with each failure.
    Later,
    /// At a time: what it needs is left alone until then.
    At(Time),
}

/// A failed build or deployment.
#[derive(Debug, Clone)]
pub struct Failure {
    /// One word for the conditions and events: `NotAllowed`.
    pub reason: &'static str,
    /// A sentence with the remedy.
    pub message: String,
    /// The next attempt: none, after a pause, or at a time.
    pub retry: Retry,
    /// Last lines of the log.
    pub log_tail: String,
    /// Time that it took.
    pub took: Duration,
}
