//! Events for people about workers that are to be empty: cordoned, drained, or about to leave by themselves.
//!
//! ```text
//! berth drain, or the worker says that it leaves ──▶ WorkerDraining | WorkerLeaving (so many replicas)
//!                                                        └── the last one has gone ──▶ WorkerDrained
//! ```
//! What happens to its replicas is decided by the plan, from the same facts.

use berth_spec::{Cordon, Time, WorkerId, WorkerState, event::Severity};

use super::{Controller, Effect, event};

impl Controller {
    /// Tells of a worker's new cordon, where it is another than `before`.
    pub(super) fn cordon_told(
        &mut self,
        worker: &WorkerId,
        before: Cordon,
        cordon: Cordon,
        now: Time,
        out: &mut Vec<Effect>,
    ) {
        if before == cordon {
            return;
        }
        let (reason, message) = match cordon {
            Cordon::Open => ("WorkerUncordoned", format!("{worker} takes new replicas again")),
            Cordon::Cordoned => ("WorkerCordoned", format!("{worker} takes no new replicas")),
            Cordon::Draining => {
                ("WorkerDraining", format!("{worker} is being drained of {} replicas", self.replicas_on(worker)))
            }
        };
        out.push(Effect::Emit(event::worker(worker, Severity::Normal, reason, message, now)));
        self.watch_emptying(worker);
    }

    /// A worker said that it leaves, or, started anew, that it stays.
    pub(super) fn leaving_told(&mut self, worker: &WorkerId, state: WorkerState, now: Time, out: &mut Vec<Effect>) {
        if state == WorkerState::Leaving {
            let message = format!("{worker} will leave: its {} replicas move elsewhere", self.replicas_on(worker));
            out.push(Effect::Emit(event::worker(worker, Severity::Normal, "WorkerLeaving", message, now)));
        }
        self.watch_emptying(worker);
    }

    /// Follows whether it becomes empty, if it should.
    pub(super) fn watch_emptying(&mut self, worker: &WorkerId) {
        let drains = self.cordons.get(worker) == Some(&Cordon::Draining);
        let leaves = self.world.worker(worker).is_some_and(|tracked| tracked.state == WorkerState::Leaving);
        if drains || leaves {
            // How many it has is said with the next plan.
            self.emptying.entry(worker.clone()).or_insert(usize::MAX);
        } else {
            self.emptying.remove(worker);
        }
    }

    /// After a plan or a report: how far are they?
    pub(super) fn emptying_told(&mut self, now: Time, out: &mut Vec<Effect>) {
        let workers: Vec<WorkerId> = self.emptying.keys().cloned().collect();
        for worker in workers {
            let left = self.replicas_on(&worker);
            let before = self.emptying.insert(worker.clone(), left);
            if left == 0 && before != Some(0) {
                let message = format!("{worker} holds nothing any more: it may be stopped");
                out.push(Effect::Emit(event::worker(&worker, Severity::Normal, "WorkerDrained", message, now)));
            } else if before != Some(left) {
                tracing::info!(event = "worker_draining", worker_id = %worker, replicas = left);
            }
        }
    }

    /// Replicas that it should hold or still holds.
    pub(super) fn replicas_on(&self, worker: &WorkerId) -> usize {
        self.world.worker(worker).map_or(0, |tracked| {
            let leftover =
                tracked.inventory.keys().filter(|revision| !tracked.assigned.contains_key(*revision)).count();
            tracked.assigned.len() + leftover
        })
    }
}
