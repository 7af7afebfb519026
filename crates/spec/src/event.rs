//! Events, for people: `berth get events`. Kept in memory, bounded, by the controller that saw them.

use crate::{DeploymentName, Time, WorkerId};

/// Something worth telling.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// When.
    pub at: Time,
    /// The severity.
    pub severity: Severity,
    /// One CamelCase word for machines: `Placed`, `Loaded`, `Evicted`, `RolloutStarted`, `LoadFailed`, …
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
    /// Which deployment, if it is about one.
    pub deployment: Option<DeploymentName>,
    /// Which worker, if it is about one.
    pub worker: Option<WorkerId>,
    /// Which function, if it is about one. Functions are in no namespace.
    pub function: Option<String>,
}

impl Event {
    /// The most bytes of a message that is kept. Those that pass on the words of models, and of objects of others, may be longer.
    pub const MAX_MESSAGE: usize = 6 << 10;
}

/// Severity of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Things go as they should.
    Normal,
    /// Somebody should look.
    Warning,
}
