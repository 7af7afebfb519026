//! What the driver tells of its work: metrics, and log events under the names of the Git PRD (seed G §9.2).

use std::time::Duration;

use berth_spec::{AssignmentChange, ByteSize, InventoryChange, Residency, RevisionId};

use super::hands::Hands;
use crate::{
    agent::{Agent, Event},
    artifacts::Artifact,
    replica::State,
};

impl Hands {
    /// What the agent holds, as numbers.
    pub(super) fn gauge(&self, agent: &Agent, memory: ByteSize) {
        let count = |is: fn(&State) -> bool| {
            i64::try_from(agent.replicas().filter(|(_, replica)| is(replica.state())).count()).unwrap_or(i64::MAX)
        };
        self.metrics.loaded.set(count(|state| matches!(state, State::Ready(_) | State::Draining { .. })));
        self.metrics.failed.set(count(|state| matches!(state, State::Failed(_) | State::Refused(..))));
        let held = agent.held();
        self.metrics.memory_used.set(i64::try_from(held.0).unwrap_or(i64::MAX));
        self.metrics.memory_available.set(i64::try_from(memory.saturating_sub(held).0).unwrap_or(i64::MAX));
    }

    /// What the controller wants.
    pub(super) fn log_command(&self, change: &AssignmentChange) {
        let correlation_id = change.generation.0;
        for placed in &change.set {
            let id = &placed.revision.id;
            if !self.slots.contains_key(id) {
                tracing::info!(event = "command_received", command_type = "LOAD", deployment_id = %id.deployment(), revision = %id, correlation_id);
            }
        }
        for id in &change.unset {
            tracing::info!(event = "command_received", command_type = "UNLOAD", deployment_id = %id.deployment(), revision = %id, correlation_id);
        }
    }

    /// Failures and phases, where they are first known.
    pub(super) fn log_report(&self, change: &InventoryChange) {
        // A whole report repeats what was said already.
        for (id, residency) in change.replicas.iter().filter(|_| !change.whole) {
            match residency {
                Some(Residency::Failed(failure)) => {
                    self.metrics.failed_load(failure.category.as_str());
                    tracing::error!(
                        event = "model_load_failed",
                        deployment_id = %id.deployment(),
                        revision = %id,
                        error_type = failure.category.as_str(),
                        error_message = failure.message,
                        attempts = failure.attempts,
                        retry_at = failure.retry_at.map(|at| at.to_string()),
                    );
                }
                Some(Residency::Ready(ready)) => {
                    let phases = &ready.phases;
                    self.metrics.phase("queued", phases.queued_ms);
                    self.metrics.phase("fetch", phases.fetch_ms);
                    self.metrics.phase("load", phases.load_ms);
                    self.metrics.phase("validate", phases.validate_ms);
                }
                _ => {}
            }
        }
    }

    pub(super) fn log_outcome(&self, event: &Event) {
        match event {
            Event::Fetched { revision: id, ticket, result: Ok(Artifact { size, .. }) } => {
                let took = self.slots.get(id).and_then(|slot| slot.begun).map(|begun| millis(begun.elapsed()));
                tracing::debug!(
                    event = "artifact_download_completed",
                    deployment_id = %id.deployment(),
                    size_bytes = size.0,
                    duration_ms = took,
                    correlation_id = correlation(id, *ticket),
                );
            }
            Event::Validated { revision: id, ticket, result } => match result {
                Ok(()) => tracing::info!(
                    event = "model_validation_success",
                    deployment_id = %id.deployment(),
                    correlation_id = correlation(id, *ticket),
                ),
                Err(fault) => tracing::error!(
                    event = "model_validation_failed",
                    deployment_id = %id.deployment(),
                    correlation_id = correlation(id, *ticket),
                    validation_error = %fault,
                ),
            },
            _ => {}
        }
    }
}

/// Ties together the log lines of one attempt.
pub(super) fn correlation(id: &RevisionId, ticket: u64) -> String {
    format!("{id}#{ticket}")
}

pub(super) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
