//! Events.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Kind, Metadata, Timestamp};

/// An event that people may want to know of, as the control API shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `Event`.
    pub kind: String,
    /// Named by its number: grows by one per event since the process started.
    pub metadata: Metadata,
    /// Time of the event.
    pub at: Timestamp,
    /// Severity: things as they should be, or something to look at.
    pub severity: SeverityView,
    /// One CamelCase word for machines: `Placed`, `Loaded`, `Evicted`, `RolloutStarted`, `LoadFailed`, …
    pub reason: String,
    /// A sentence for people.
    pub message: String,
    /// Deployment concerned, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment: Option<String>,
    /// Worker concerned, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// Function concerned, if any: its name, in another namespace than `default` as `NAMESPACE/NAME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
}

impl Kind for EventView {
    const KIND: &'static str = "Event";
}

/// Severity of an event, in two levels as in Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum SeverityView {
    /// Things go as they should.
    Normal,
    /// Deserves attention.
    Warning,
}
