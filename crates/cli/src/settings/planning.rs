//! Settings of the planner that other commands than `berth up` and `berth node` give.

use std::time::Duration;

use berth_plan::{Policy, TypeRules};
use berth_spec::deployment::Selector;
use tokio::sync::watch;

/// Differences to the planner's defaults.
#[derive(Debug, Clone, Default)]
pub(crate) struct Planning {
    /// Requests per minute that one copy should have at most.
    pub(crate) target_rate: Option<f32>,
    /// Time that a failed load keeps a model off a worker, and before it is tried again.
    pub(crate) failure_expiry: Option<Duration>,
    /// Selector for models of types that `--model-type` does not name.
    pub(crate) other_types: Option<Selector>,
    /// Selectors by type that change while the node runs, in place of all others; `None`: they do not.
    pub(crate) type_rules: Option<watch::Receiver<TypeRules>>,
}

impl Planning {
    /// The policy with what differs.
    pub(crate) fn apply(&self, mut policy: Policy) -> Policy {
        policy.copies.target_rate = self.target_rate.unwrap_or(policy.copies.target_rate);
        policy.failure_memory = self.failure_expiry.unwrap_or(policy.failure_memory);
        policy.other_types.clone_from(&self.other_types);
        policy
    }
}
