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
}

/// Severity of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Things go as they should.
    Normal,
    /// Somebody should look.
    Warning,
}
