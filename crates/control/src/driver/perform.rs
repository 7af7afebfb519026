//! Doing what the brain wants done.

use std::sync::Arc;

use berth_plan::{
    drift::{Drift, DriftKind, SchemaViolation},
    world::{Liveness, TrackedWorker},
};
use berth_spec::{GatewayEvent, InventoryChange, Time, WorkerId, WorkerState, event::Severity};

use super::{Driver, connections::ConnectionEvent, persist};
use crate::{
    controller::{Command, Effect, Event},
    store::Rev,
};

impl Driver {
    pub(super) fn perform(&mut self, effects: Vec<Effect>) {
        // Logged when all is sent: a request may wait for it.
        let mut dispatched = Vec::new();
        for effect in effects {
            match effect {
                Effect::Commit(commit) => {
                    self.commit =
                        Some(persist::store_plan(Arc::clone(&self.store), commit, self.key, self.failing.clone()));
                }
                Effect::SendAssignment { worker, change, commands } => {
                    let generation = change.generation;
                    self.connections.send_assignment(&worker, change);
                    dispatched.push((worker, generation, commands));
                }
                Effect::SendRoutes { to, change } => self.connections.send_routes(to, change),
                Effect::HangUp(worker) => self.connections.hang_up(&worker),
                Effect::Emit(event) => {
                    log_event(&event);
                    self.events.push(event);
                }
                Effect::Drifted(drift) => {
                    self.metrics.drifted(drift.kind);
                    log_drift(&drift);
                    self.log_redeployment(&drift);
                }
                Effect::SchemaViolated(violation) => {
                    self.metrics.schema_violation();
                    log_violation(&violation);
                }
                Effect::DriftCount(counted) => self.metrics.drifting(&counted),
                Effect::PersistMeasured(digest, size) => self.background.measured(digest, size),
                Effect::DeploymentsChanged(changes) => {
                    // Nobody may be watching.
                    let _watchers = self.outputs.deployment_changes.send(changes.into()).unwrap_or(0);
                }
                Effect::Readiness(readiness) => {
                    self.outputs.readiness.send_replace(readiness);
                }
                Effect::Seen(rev) => {
                    self.outputs.seen.send_replace(rev);
                }
                Effect::InForce(rev) => {
                    let settled = self.connections.routed(rev);
                    self.in_force(settled);
                }
                Effect::BecameReady { deployment, took } => {
                    self.metrics.time_to_ready.observe(took.as_secs_f64());
                    tracing::info!(
                        event = "deployment_ready",
                        deployment_id = %deployment,
                        duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
                    );
                }
                Effect::Planned(size) => {
                    self.metrics.evicted(size.evictions, &size.ages);
                    self.cycles += 1;
                    let cycle_number = self.cycles;
                    // A plan is one call of a function: both lines can be written when it has returned.
                    tracing::debug!(event = "reconciliation_cycle_started", cycle_number);
                    tracing::debug!(
                        event = "reconciliation_cycle_completed",
                        cycle_number,
                        considered = size.considered,
                        records = size.records,
                        routes = size.routes,
                        evictions = size.evictions
                    );
                }
            }
        }
        for (worker, generation, commands) in dispatched {
            for command in &commands {
                self.metrics.dispatched(command.kind);
                log_command(command, &worker, generation);
            }
        }
    }

    /// Logs where lost replicas are placed, as far as that is decided.
    fn log_redeployment(&self, drift: &Drift) {
        let Some(worker) = drift.worker.as_ref().filter(|_| drift.kind == DriftKind::UnresponsiveWorker) else {
            return;
        };
        let world = self.brain.world();
        let Some(lost) = world.worker(worker) else { return };
        for revision in lost.inventory.keys() {
            let holds =
                |(id, tracked): &(&WorkerId, &TrackedWorker)| *id != worker && tracked.assigned.contains_key(revision);
            let target_workers: Vec<&str> = world.workers().filter(holds).map(|(id, _)| id.as_str()).collect();
            tracing::warn!(
                event = "model_redeployment_triggered",
                deployment_id = %revision.deployment(),
                reason = drift.details,
                worker_id = %worker,
                target_workers = target_workers.join(", ")
            );
        }
    }

    fn in_force(&self, settled: Option<Rev>) {
        if let Some(rev) = settled {
            self.outputs.in_force.send_replace(rev);
        }
    }

    /// Logs a worker's report as its heartbeat.
    fn log_heartbeat(&self, report: &InventoryChange) {
        let tracked = self.brain.world().worker(&report.worker);
        tracing::debug!(
            event = "worker_heartbeat_received",
            worker_id = %report.worker,
            models_loaded = tracked.map_or(0, |tracked| tracked.inventory.len()),
            capacity = tracked.map_or(0, |tracked| tracked.memory().0)
        );
    }

    /// Feeds what was heard about a worker, and logs what it has become by that: a line that broke is a suspicion as long
    /// as others see the worker, and one that said that it would go has not failed.
    pub(super) fn feed_about(&mut self, id: &WorkerId, event: Event) {
        let before = self.brain.world().worker(id).map(|tracked| (tracked.liveness, tracked.state));
        self.feed(event);
        let (Some((before, state)), Some(tracked)) = (before, self.brain.world().worker(id)) else { return };
        let loaded_models = tracked.inventory.len();
        let last_heartbeat = last_heartbeat(tracked);
        match (before, tracked.liveness) {
            (Liveness::Lost { .. }, _) => {}
            (_, Liveness::Lost { .. }) if state == WorkerState::Leaving => {
                tracing::info!(event = "worker_left", worker_id = %id, loaded_models);
            }
            (_, Liveness::Lost { .. }) => {
                tracing::error!(event = "worker_marked_failed", worker_id = %id, last_heartbeat, loaded_models);
            }
            (Liveness::Alive, Liveness::Detached { .. }) if state != WorkerState::Leaving => {
                tracing::warn!(event = "worker_marked_suspect", worker_id = %id, last_heartbeat);
            }
            _ => {}
        }
    }

    pub(super) fn connection(&mut self, woke: ConnectionEvent) {
        match woke {
            ConnectionEvent::WorkerRoom(id, connection, permit) => {
                self.connections.worker_room(&id, connection, permit)
            }
            ConnectionEvent::CredentialsRoom(id, connection, permit) => {
                self.connections.credentials_room(&id, connection, permit);
            }
            ConnectionEvent::WorkerReport(connection, report) => {
                if self.connections.is_latest(&report.worker, connection) {
                    self.log_heartbeat(&report);
                    self.feed(Event::Reported(report));
                }
            }
            ConnectionEvent::GatewayRoom(id, permit) => self.connections.gateway_room(id, permit),
            ConnectionEvent::GatewayEvent(id, GatewayEvent::Applied(seq)) => {
                let settled = self.connections.applied(id, seq);
                self.in_force(settled);
            }
            // It is given what one that has just come is given.
            ConnectionEvent::GatewayEvent(id, event) => self.feed(Event::Gateway(id, event)),
            ConnectionEvent::GatewayGone(id) => {
                self.feed(Event::GatewayDetached(id));
                let settled = self.connections.gateway_gone(id);
                self.in_force(settled);
            }
            ConnectionEvent::WorkerGone(id, connection) => {
                if self.connections.worker_gone(&id, connection) {
                    self.feed_about(&id, Event::WorkerDetached(id.clone()));
                }
            }
        }
    }
}

/// Time of the worker's last report of its load, for logs; `None` where it has told none yet.
pub(super) fn last_heartbeat(worker: &TrackedWorker) -> Option<String> {
    (worker.load.at != Time::ZERO).then(|| worker.load.at.to_string())
}

/// Logs a command as the event `command_dispatched` (docs/observability.md).
fn log_command(command: &Command, worker: &berth_spec::WorkerId, generation: berth_spec::Generation) {
    tracing::info!(
        event = "command_dispatched",
        command_type = command.kind.as_str(),
        deployment_id = %command.revision.deployment(),
        worker_id = %worker,
        correlation_id = berth_spec::correlation_id(worker, generation, &command.revision),
        revision = %command.revision
    );
}

/// Logs a difference as the event `state_drift_detected` (docs/observability.md).
fn log_drift(drift: &Drift) {
    let deployment_id = drift.deployment.as_ref().map(berth_spec::DeploymentName::as_str);
    let worker_id = drift.worker.as_ref().map(berth_spec::WorkerId::as_str);
    let (drift_type, details) = (drift.kind.as_str(), &drift.details);
    tracing::info!(event = "state_drift_detected", drift_type, deployment_id, worker_id, details);
}

/// Logs a card that no worker reads as the event `schema_compatibility_violation` (docs/observability.md).
fn log_violation(violation: &SchemaViolation) {
    let worker_versions = violation.reads.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    tracing::error!(
        event = "schema_compatibility_violation",
        deployment_id = %violation.deployment,
        schema_version = violation.version,
        worker_versions
    );
}

/// Events for people appear in the log as well, under their own word.
fn log_event(event: &berth_spec::Event) {
    let deployment_id = event.deployment.as_ref().map(berth_spec::DeploymentName::as_str);
    let worker_id = event.worker.as_ref().map(berth_spec::WorkerId::as_str);
    match (event.severity, event.reason) {
        (_, "Evicted") => {
            tracing::warn!(event = "eviction_triggered", deployment_id, worker_id, reason = event.message);
        }
        (Severity::Normal, reason) => {
            tracing::info!(event = "deployment_event", reason, deployment_id, worker_id, details = event.message);
        }
        (Severity::Warning, reason) => {
            tracing::warn!(event = "deployment_event", reason, deployment_id, worker_id, details = event.message);
        }
    }
}
