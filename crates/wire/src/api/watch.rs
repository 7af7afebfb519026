//! One line of a watch: `GET /v1/deployments?watch=true` answers newline-delimited JSON of these.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{DeploymentView, ErrorInfo, EventView};

/// One line of a watch of deployments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", content = "object", rename_all = "UPPERCASE")]
pub enum WatchEvent {
    /// Created, or present when the watch began.
    Added(Box<DeploymentView>),
    /// Its spec or status changed.
    Modified(Box<DeploymentView>),
    /// Deleted. The object has its name and version, and an empty spec.
    Deleted(Box<DeploymentView>),
    /// Nothing changed, but everything up to this version has been told: resume from here.
    Bookmark(Bookmark),
    /// The watch ends; list again and watch from there.
    Error(ErrorInfo),
}

/// One line of a watch of events: `GET /v1/events?watch=true`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", content = "object", rename_all = "UPPERCASE")]
pub enum EventWatch {
    /// An event: those that are kept come first, then new ones.
    Added(Box<EventView>),
    /// End of the watch.
    Error(ErrorInfo),
}

/// Position of a watch, from which it can be resumed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Bookmark {
    /// Version to send as `resourceVersion` when the watch is begun again.
    pub resource_version: String,
}
