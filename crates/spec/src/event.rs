//! Events, for people: `berth get events`. Kept in memory, bounded, by the controller that saw them.

use crate::{DeploymentName, Namespace, Time, WorkerId, id::DEFAULT_NAMESPACE};

/// Something worth telling.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// When it happened, by the controller's clock.
    pub at: Time,
    /// The severity: things as they should be, or something to look at.
    pub severity: Severity,
    /// One CamelCase word for machines: `Placed`, `Loaded`, `Evicted`, `RolloutStarted`, `LoadFailed`, …
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
    /// The deployment, if it is about one.
    pub deployment: Option<DeploymentName>,
    /// The worker, if it is about one.
    pub worker: Option<WorkerId>,
    /// The function, if it is about one: its key, which is its name in the written form where it is a name.
    pub function: Option<String>,
}

impl Event {
    /// The namespace of the deployment or the function that it is about. A key that begins with no namespace is shown in the default
    /// one, here as in lists of functions.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        match (&self.deployment, &self.function) {
            (Some(deployment), _) => Some(deployment.namespace()),
            (None, Some(key)) => {
                let begins = key.split_once('/').map(|(namespace, _)| namespace);
                Some(begins.filter(|namespace| Namespace::new(namespace).is_ok()).unwrap_or(DEFAULT_NAMESPACE))
            }
            (None, None) => None,
        }
    }

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
