//! Events.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Kind, Metadata, Timestamp};

/// Event in the system.
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
    /// Severity of the event.
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
}

impl Kind for EventView {
    const KIND: &'static str = "Event";
}

/// Message of an event that is about a function. [`EventView::function`] reads the name in it.
#[must_use]
pub fn about_function(name: &str, message: &str) -> String {
    format!("function {name}: {message}")
}

impl EventView {
    /// Function concerned, if any: its name is in the message, since functions are in no namespace.
    #[must_use]
    pub fn function(&self) -> Option<&str> {
        let (name, _) = self.message.strip_prefix("function ")?.split_once(": ")?;
        let is_one = self.reason.starts_with("Function") && !name.is_empty() && !name.contains(char::is_whitespace);
        is_one.then_some(name)
    }
}

/// Severity of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum SeverityView {
    /// Things go as they should.
    Normal,
    /// Deserves attention.
    Warning,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_tells_its_function() {
        let event = |reason: &str, message: String| EventView {
            api_version: String::new(),
            kind: String::new(),
            metadata: Metadata::named("1".to_owned()),
            at: "2026-01-01T00:00:00.000Z".parse().expect("a time"),
            severity: SeverityView::Normal,
            reason: reason.to_owned(),
            message,
            deployment: None,
            worker: None,
        };
        let built = event("FunctionBuilt", about_function("w.ords-1", "was built: in 2 s"));
        assert_eq!(built.function(), Some("w.ords-1"));
        assert_eq!(event("Loaded", about_function("words", "x")).function(), None);
        assert_eq!(event("FunctionBuilt", "function of nobody: x".to_owned()).function(), None);
    }
}
