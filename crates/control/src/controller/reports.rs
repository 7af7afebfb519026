//! Taking in what the store, workers and people say. Nothing is decided here: the world learns of it, those who watch are
//! told, and a plan becomes due, at once where somebody may be waiting.

use std::collections::BTreeSet;

use berth_plan::world::Liveness;
use berth_spec::{
    Cordon, DeploymentName, Generation, Health, InventoryChange, Time, WorkerId, WorkerInfo, WorkerState,
    event::Severity,
};

use super::{Attached, ChangeKind, Controller, Declared, Effect, Phase, event};
use crate::store::Rev;

impl Controller {
    pub(super) fn changed(&mut self, rev: Rev, changes: Vec<Declared>, now: Time, out: &mut Vec<Effect>) {
        let mut deployment_changes = Vec::with_capacity(changes.len());
        let mut disables = false;
        for change in changes {
            match change {
                Declared::Set(deployment) => {
                    let name = deployment.name.clone();
                    let before = self.world.deployment(&name).cloned();
                    let known = self.rev_of(&name);
                    out.extend(event::declared(before.as_deref(), &deployment, now).map(Effect::Emit));
                    self.stopwatch.start(&deployment, now);
                    // What is to be nowhere is taken away before anything else is thought about.
                    disables |= before.is_some() && (deployment.deleting || deployment.spec.replicas.max == 0);
                    let endpoint = deployment.spec.endpoint.clone();
                    let moved = before.as_ref().map(|before| &before.spec.endpoint) != Some(&endpoint);
                    self.world.set_deployment(deployment);
                    if moved {
                        out.extend(self.endpoint_taken(&name, now));
                    }
                    deployment_changes
                        .push((name, if known.is_none() { ChangeKind::Added } else { ChangeKind::Modified }));
                }
                Declared::Gone(name) => {
                    self.stopwatch.forget(&name);
                    self.world.remove_deployment(&name);
                    deployment_changes.push((name, ChangeKind::Deleted));
                }
            }
        }
        let routes_as_told = deployment_changes.is_empty() && self.in_force == self.seen;
        self.seen = rev;
        if !deployment_changes.is_empty() {
            if disables {
                self.due.hurry(now);
            } else {
                self.due.change(now);
            }
            out.push(Effect::DeploymentsChanged(deployment_changes));
        }
        out.push(Effect::Seen(rev));
        if routes_as_told {
            self.in_force(rev, out);
        }
    }

    /// Another deployment answers at the path that this one declares.
    fn endpoint_taken(&self, name: &DeploymentName, now: Time) -> Option<Effect> {
        let other = self.world.endpoint_taken_by(name)?;
        let path = self.world.deployment(name)?.spec.endpoint.as_deref()?;
        Some(Effect::Emit(berth_spec::Event {
            at: now,
            severity: Severity::Warning,
            reason: "EndpointTaken",
            message: format!("{name} declares {path}, which {other} declared before for the same region"),
            deployment: Some(name.clone()),
            worker: None,
            function: None,
        }))
    }

    pub(super) fn cordon(&mut self, worker: WorkerId, cordon: Cordon, now: Time, out: &mut Vec<Effect>) {
        self.world.set_cordon(&worker, cordon);
        let before = match cordon {
            Cordon::Open => self.cordons.remove(&worker),
            Cordon::Cordoned | Cordon::Draining => self.cordons.insert(worker.clone(), cordon),
        };
        self.cordon_told(&worker, before.unwrap_or_default(), cordon, now, out);
        self.due.change(now);
    }

    pub(super) fn worker_attached(&mut self, info: WorkerInfo, now: Time, out: &mut Vec<Effect>) {
        let id = info.id.clone();
        self.world.set_worker(info);
        self.unreported.reported(&id);
        if self.world.worker(&id).is_some_and(|tracked| tracked.unlisted) {
            let message = format!("{id} joined, is not named by the registry, and gets no models");
            out.push(Effect::Emit(event::worker(&id, Severity::Warning, "WorkerUnlisted", message, now)));
        }
        self.world.set_cordon(&id, self.cordons.get(&id).copied().unwrap_or_default());
        out.push(Effect::Emit(event::worker(&id, Severity::Normal, "WorkerJoined", format!("{id} joined"), now)));
        // What it should hold it hears when it has said what it holds, and by which number it goes.
        self.workers.insert(id, Attached::default());
        self.due.change(now);
    }

    pub(super) fn worker_detached(&mut self, id: &WorkerId, now: Time, out: &mut Vec<Effect>) {
        if self.workers.remove(id).is_some() {
            // What others still see goes on answering: only we have lost it.
            if self.members.get(id).is_some_and(|health| health.is_there()) {
                self.detach(id, now, out);
            } else {
                self.lose(id, now, out);
            }
            self.due.hurry(now);
        }
    }

    fn detach(&mut self, worker: &WorkerId, now: Time, out: &mut Vec<Effect>) {
        self.world.detach_worker(worker, now);
        let message =
            format!("{worker} lost its connection to the leader; the members see it, and it goes on answering");
        out.push(Effect::Emit(event::worker(worker, Severity::Warning, "WorkerDetached", message, now)));
    }

    /// Told once: also who has long been dead is said to be gone when the members forget it.
    fn lose(&mut self, worker: &WorkerId, now: Time, out: &mut Vec<Effect>) {
        let Some(tracked) = self.world.worker(worker) else { return };
        if matches!(tracked.liveness, Liveness::Lost { .. }) {
            return;
        }
        let (leaves, held) = (tracked.state == WorkerState::Leaving, self.replicas_on(worker));
        self.world.lose_worker(worker, now);
        let (severity, reason, message) = if leaves && held == 0 {
            (Severity::Normal, "WorkerLeft", format!("{worker} left, as it said"))
        } else {
            let held = format!("{held} {}", if held == 1 { "replica" } else { "replicas" });
            (Severity::Warning, "WorkerLost", format!("{worker} cannot be reached any more; it held {held}"))
        };
        out.push(Effect::Emit(event::worker(worker, severity, reason, message, now)));
    }

    pub(super) fn member(&mut self, worker: WorkerId, health: Health, now: Time, out: &mut Vec<Effect>) {
        self.wait_longer();
        if self.world.worker(&worker).is_none_or(|tracked| tracked.info.is_none()) {
            self.unreported.member(&worker, health);
        }
        if !health.is_there() {
            if self.workers.remove(&worker).is_some() {
                out.push(Effect::HangUp(worker.clone()));
            }
            self.lose(&worker, now, out);
            self.due.hurry(now);
        }
        if health.is_there() && !matches!(self.phase, Phase::Settling { .. }) {
            self.world.assume(&worker, now);
            self.due.hurry(now);
        }
        // One that is back is not there before it is attached: nobody else can say what it holds.
        self.members.insert(worker, health);
    }

    pub(super) fn reported(&mut self, change: &InventoryChange, now: Time, out: &mut Vec<Effect>) {
        let stays = self.world.worker(&change.worker).map(|tracked| tracked.state);
        let observed = self.world.observe(change, now);
        if observed.resync {
            tracing::warn!(event = "inventory_incomplete", worker_id = %change.worker, "a worker reported a part of its inventory before the whole");
        } else if let Some(attached) = self.workers.get_mut(&change.worker)
            && (change.whole || attached.reported)
        {
            self.last_reports.insert(change.worker.clone(), now);
            let first = !std::mem::replace(&mut attached.reported, true);
            let asks = change.whole && change.seen == Generation(0) && attached.greeted;
            if asks && !first {
                tracing::info!(event = "assignment_asked", worker_id = %change.worker, "a worker asks for its whole assignment");
            }
            if asks || (first && matches!(self.phase, Phase::Idle)) {
                self.greet(&change.worker, out);
            }
            if first {
                self.watch_emptying(&change.worker);
            }
        }
        if stays.is_some_and(|state| state != change.state) {
            self.leaving_told(&change.worker, change.state, now, out);
            self.due.hurry(now);
        }
        out.extend(observed.measured.into_iter().map(|(digest, size)| Effect::PersistMeasured(digest, size)));
        out.extend(observed.events.into_iter().map(Effect::Emit));
        // Also those that only moved on, e.g. bytes fetched: nothing to decide, but somebody may be watching.
        let names: BTreeSet<&DeploymentName> =
            change.replicas.iter().map(|(revision, _)| revision.deployment()).chain(&observed.changed).collect();
        if !names.is_empty() {
            out.push(Effect::DeploymentsChanged(
                names.into_iter().map(|name| (name.clone(), ChangeKind::Modified)).collect(),
            ));
        }
        if !observed.changed.is_empty() {
            self.due.hurry(now);
        }
    }
}
