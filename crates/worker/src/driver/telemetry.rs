//! Telemetry of the driver: metrics, and log events under the names of docs/observability.md.

use std::{collections::BTreeMap, time::Duration};

use berth_spec::{
    AssignmentChange, Breaker, Generation, InventoryChange, Residency, RevisionId, WorkerId, correlation_id,
    worker::BreakerState,
};

use super::effects::EffectRunner;
use crate::{
    agent::{Agent, Event, of_deployment},
    artifacts::Artifact,
    replica::Validated,
    runtime::Validation,
};

impl EffectRunner {
    /// Sets the gauges of what the agent holds.
    pub(super) fn gauge(&self, agent: &Agent) {
        let counts = agent.counts();
        self.metrics().loaded.set(counts.loaded.into());
        self.metrics().restarting.set(counts.restarting.into());
        self.metrics().failed.set(counts.failed.into());
        let (held, limits, overhead) = (agent.held(), agent.limits(), agent.overhead());
        self.metrics().memory_overhead.set(i64::try_from(overhead.0).unwrap_or(i64::MAX));
        self.metrics().most_models.set(limits.models.map_or(f64::INFINITY, f64::from));
        self.metrics().memory_used.set(i64::try_from(held.0).unwrap_or(i64::MAX));
        self.metrics()
            .memory_available
            .set(i64::try_from(limits.memory.saturating_sub(held + overhead).0).unwrap_or(i64::MAX));
    }

    /// Logs the controller's commands.
    pub(super) fn log_command(&mut self, change: &AssignmentChange) {
        for placed in &change.set {
            let id = &placed.revision.id;
            if !self.slots.contains_key(id) {
                let beside = of_deployment(&self.slots, id.deployment()).next().is_some();
                self.commands.receive(if beside { "RELOAD" } else { "LOAD" }, id, change.generation);
            }
        }
        for id in change.unset.iter().filter(|id| self.slots.contains_key(*id)) {
            self.commands.receive("UNLOAD", id, change.generation);
        }
    }

    /// Failures, phases, load and breakers, where they are first known.
    pub(super) fn log_report(&mut self, change: &InventoryChange) {
        if let Some(breakers) = &change.breakers {
            self.log_breakers(breakers);
        }
        if let Some(load) = &change.load {
            self.metrics().system_memory.set(i64::try_from(load.memory_used.0).unwrap_or(i64::MAX));
            if std::mem::replace(&mut self.degraded, load.degraded) != load.degraded {
                let event = if load.degraded { "worker_degraded" } else { "worker_recovered" };
                tracing::warn!(event, worker_id = %self.commands.worker, memory_used = %load.memory_used);
            }
            self.metrics().degraded.set(i64::from(load.degraded));
            self.metrics().gpu_load(&load.gpus);
        }
        // A whole report repeats what was said already.
        for (id, residency) in change.replicas.iter().filter(|_| !change.whole) {
            match residency {
                Some(Residency::Failed(failure)) => {
                    self.metrics().failed_load(failure.category.as_str());
                    tracing::error!(
                        event = "model_load_failed",
                        deployment_id = %id.deployment(),
                        revision = %id,
                        error_type = failure.category.as_str(),
                        error_message = failure.message,
                        stack_trace = failure.trace.as_deref(),
                        attempts = failure.attempts,
                        correlation_id = self.commands.of(id),
                        retry_at = failure.retry_at.map(|at| at.to_string()),
                    );
                }
                Some(Residency::Ready(ready)) => {
                    self.metrics().model_bytes.observe(ready.memory.0 as f64);
                    let phases = &ready.phases;
                    self.metrics().phase("queued", phases.queued_ms);
                    self.metrics().phase("fetch", phases.fetch_ms);
                    self.metrics().phase("load", phases.load_ms);
                    self.metrics().phase("validate", phases.validate_ms);
                }
                _ => {}
            }
        }
    }

    /// A report went out, or nobody took it.
    pub(super) fn log_heartbeat(&self, agent: &Agent, sent: bool) {
        let worker_id = &self.commands.worker;
        let models_count = agent.len();
        if sent {
            self.metrics().heartbeats_sent.inc();
            tracing::debug!(event = "heartbeat_sent", worker_id = %worker_id, models_count);
        } else {
            self.metrics().heartbeats_failed.inc();
            tracing::warn!(event = "heartbeat_failed", worker_id = %worker_id, error = "no controller listens");
        }
    }

    /// Breakers that stand otherwise than when they were told last.
    fn log_breakers(&mut self, now: &[Breaker]) {
        let before = std::mem::replace(&mut self.breakers, now.to_vec());
        let same = |a: &Breaker, b: &Breaker| (a.kind, &a.dependency) == (b.kind, &b.dependency);
        for breaker in now {
            self.metrics().breaker(breaker, Some(breaker.state));
            let old = before.iter().find(|old| same(old, breaker)).map_or(BreakerState::Closed, |old| old.state);
            if old != breaker.state {
                tracing::warn!(
                    event = "circuit_breaker_changed",
                    dependency = %breaker.dependency,
                    dependency_type = breaker.kind.as_str(),
                    from = old.as_str(),
                    to = breaker.state.as_str(),
                    failures = breaker.failures,
                    retry_at = breaker.retry_at.map(|at| at.to_string()),
                );
            }
        }
        for gone in before.iter().filter(|old| !now.iter().any(|breaker| same(old, breaker))) {
            self.metrics().breaker(gone, None);
            if gone.state != BreakerState::Closed {
                tracing::info!(
                    event = "circuit_breaker_changed",
                    dependency = %gone.dependency,
                    dependency_type = gone.kind.as_str(),
                    from = gone.state.as_str(),
                    to = BreakerState::Closed.as_str(),
                );
            }
        }
    }

    pub(super) fn log_outcome(&self, event: &Event) {
        match event {
            Event::Fetched { revision: id, result: Ok(Artifact { size, .. }), .. } => {
                let took = self.slots.get(id).and_then(|slot| slot.fetching).map(|begun| millis(begun.elapsed()));
                tracing::debug!(
                    event = "artifact_download_completed",
                    deployment_id = %id.deployment(),
                    size_bytes = size.0,
                    duration_ms = took,
                    correlation_id = self.commands.of(id),
                );
            }
            Event::Validated { revision: id, result, .. } => match result {
                Ok(Validated { outcome: Validation::Inconclusive(why), .. }) => tracing::warn!(
                    event = "model_validation_inconclusive",
                    deployment_id = %id.deployment(),
                    correlation_id = self.commands.of(id),
                    why,
                ),
                Ok(Validated { outcome: Validation::NotRun, .. }) => tracing::info!(
                    event = "model_validation_skipped",
                    deployment_id = %id.deployment(),
                    correlation_id = self.commands.of(id),
                ),
                Ok(Validated { outcome: Validation::Passed, .. }) => tracing::info!(
                    event = "model_validation_success",
                    deployment_id = %id.deployment(),
                    validation_duration_ms = self
                        .slots
                        .get(id)
                        .and_then(|slot| slot.validating)
                        .map(|begun| millis(begun.elapsed())),
                    correlation_id = self.commands.of(id),
                ),
                Err(fault) => tracing::error!(
                    event = "model_validation_failed",
                    deployment_id = %id.deployment(),
                    correlation_id = self.commands.of(id),
                    validation_error = %fault,
                ),
            },
            _ => {}
        }
    }
}

/// The last command for each revision that is here, as the controller numbered it: the same id, `WORKER-GENERATION`, is
/// in its log and ours.
pub(super) struct Commands {
    worker: WorkerId,
    last: BTreeMap<RevisionId, (&'static str, Generation)>,
}

impl Commands {
    pub(super) fn new(worker: WorkerId) -> Self {
        Self { worker, last: BTreeMap::new() }
    }

    fn receive(&mut self, kind: &'static str, id: &RevisionId, generation: Generation) {
        self.last.insert(id.clone(), (kind, generation));
        tracing::info!(
            event = "command_received",
            command_type = kind,
            deployment_id = %id.deployment(),
            worker_id = %self.worker,
            revision = %id,
            correlation_id = self.of(id),
        );
    }

    /// The id of the last command for a revision.
    pub(super) fn of(&self, id: &RevisionId) -> Option<String> {
        self.last.get(id).map(|(_, generation)| correlation_id(&self.worker, *generation, id))
    }

    /// A model was unloaded. Where nobody asked for that a load has failed, which is yet to be told.
    pub(super) fn unloaded(&mut self, id: &RevisionId) {
        if self.last.get(id).is_some_and(|(kind, _)| *kind == "UNLOAD") {
            self.forget(id);
        }
    }

    pub(super) fn forget(&mut self, id: &RevisionId) {
        self.last.remove(id);
    }
}

pub(super) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_goes_by_the_id_that_the_controller_gave_it() {
        let mut commands = Commands::new(WorkerId::new("w-1").expect("a name"));
        let id: RevisionId = "iris@000000000000".parse().expect("a revision");
        commands.receive("LOAD", &id, Generation(7));
        assert_eq!(
            commands.of(&id).as_deref(),
            Some("w-1-7-000000000000"),
            "as in the controller's command_dispatched"
        );
        commands.receive("UNLOAD", &id, Generation(9));
        assert_eq!(commands.of(&id).as_deref(), Some("w-1-9-000000000000"));
        commands.unloaded(&id);
        assert_eq!(commands.of(&id), None);
        // A load that failed after the model was there is told with the id of its command.
        commands.receive("LOAD", &id, Generation(11));
        commands.unloaded(&id);
        assert_eq!(commands.of(&id).as_deref(), Some("w-1-11-000000000000"));
        commands.forget(&id);
        assert_eq!(commands.of(&id), None);
    }
}
