//! A function that a new leader takes over: which version of it serves, and the redeployment of the one that served last where this node
//! has not deployed it.
//!
//! ```text
//! found ──the last version serves──────────────────────────────────────────────────▶ the desired state has its turn
//!   └────it does not──▶ Queued ─▶ Building (the artifact that is kept, else its code) ─▶ Deploying ──▶ ▲
//!                          ▲                    └──────────────── failed ───────────────────┴────────▶ ┘
//!                          └─ its time comes, where the failure may pass and nothing newer serves by then
//! ```
//! A redeployment concludes nothing: generation, history and the facts `Built` and `Deployed` are those of the desired state.

use std::{sync::Arc, time::Duration};

use berth_spec::Time;

use super::{Function, Stage};
use crate::{
    controller::{Built, Deployed, Failure, Retry, Served, Task, TaskId},
    deployment::FunctionSpec,
    status::{ArtifactStatus, Phase, Revision, Status, TAKING_OVER},
};

/// The way in which an object was found.
#[derive(Debug)]
pub(in crate::controller) enum FoundBy {
    /// In a listing, with the version that a target serves since before the start.
    Listed(Option<Served>),
    /// Somebody has put it since.
    Put,
}

/// Step of the redeployment of the version that served last.
#[derive(Debug)]
pub(in crate::controller) enum RedeployStep {
    /// Waits for its turn.
    Queued,
    /// Its artifact is looked for, or built.
    Building(TaskId),
    /// Being deployed.
    Deploying(TaskId, Box<ArtifactStatus>),
}

impl Function {
    /// Has the version that served last deployed before the desired state, where this node lacks it.
    pub(super) fn redeploy_first(&mut self, now: &str) {
        if !self.needs_redeploy {
            return;
        }
        if matches!(self.stage, Stage::Queued { known: Some(_) }) {
            // It is the desired state.
            self.needs_redeploy = false;
            return;
        }
        let concluded = matches!(self.stage, Stage::Failed { .. });
        self.stage = Stage::Redeploying { step: RedeployStep::Queued, concluded };
        let (serves, message) = (self.serves, format!("Waits for its turn.{}", self.remainder()));
        let status = self.status_mut();
        if !serves {
            let told = "The version that served under another leader is being started on this node.";
            status.set("Ready", false, TAKING_OVER, told, now);
        }
        if !concluded {
            status.say(Phase::Pending, &message);
        }
    }

    /// The turn of a redeployment has come; `None` where it waits for none.
    pub(super) fn start_redeploy(&mut self, key: &str, task: TaskId) -> Result<Option<Task>, Failure> {
        let work = self.redeploy_task(key)?;
        let Stage::Redeploying { step: step @ RedeployStep::Queued, .. } = &mut self.stage else { return Ok(None) };
        *step = RedeployStep::Building(task);
        Ok(Some(work))
    }

    /// The artifact of a redeployment is there; `None` where it waits for none.
    pub(super) fn redeploy_built(&mut self, key: &str, built: &Built) -> Result<Option<Task>, Failure> {
        let work = self.redeploy_task(key)?;
        let Stage::Redeploying { step, .. } = &mut self.stage else { return Ok(None) };
        let RedeployStep::Building(task) = *step else { return Ok(None) };
        *step = RedeployStep::Deploying(task, Box::new(built.artifact.clone()));
        Ok(Some(work))
    }

    /// The version that served last serves again.
    pub(super) fn redeployed(&mut self, deployed: &Deployed, now: Time) {
        let Stage::Redeploying { step: RedeployStep::Deploying(_, artifact), concluded } = &self.stage else { return };
        let (artifact, concluded) = (ArtifactStatus::clone(artifact), *concluded);
        let (before, now) = (self.remainder(), now.to_string());
        (self.serves, self.needs_redeploy, self.failures) = (true, false, 0);
        let last = self.status.history.first().cloned();
        let status = self.status_mut();
        if let Some(last) = last {
            status.remember(Revision { artifact: artifact.digest.clone(), deployed: now.clone(), ..last });
        }
        (status.artifact, status.endpoint) = (Some(artifact), Some(deployed.endpoint.clone()));
        status.set("Ready", true, "Serving", "", &now);
        self.go_on(concluded, before);
    }

    /// A redeployment failed; returns the time of the next attempt, unless the desired state has its turn before.
    pub(super) fn redeploy_failed(&mut self, failure: &Failure, concluded: bool, now: Time) -> Option<Time> {
        let (before, again) = (self.remainder(), self.next_attempt(failure.retry, now));
        self.needs_redeploy = again.is_some();
        if !self.serves {
            let gone = again.is_none();
            let status = self.status_mut();
            if gone {
                (status.endpoint, status.artifact) = (None, None);
            }
            status.set("Ready", false, failure.reason, &failure.message, &now.to_string());
        }
        self.go_on(concluded, before);
        again.filter(|_| concluded)
    }

    /// Goes on with the desired state. `before`: the end of the message so far.
    fn go_on(&mut self, concluded: bool, before: &str) {
        let after = self.remainder();
        if !concluded {
            self.stage = Stage::Queued { known: None };
            let message = format!("Waits for its turn.{after}");
            self.status_mut().say(Phase::Pending, &message);
            return;
        }
        self.stage = Stage::Failed { lasting: true };
        if before == after {
            return;
        }
        // A message that was shortened has no such end.
        if let Some(message) = self.status.message.strip_suffix(before).map(|message| format!("{message}{after}")) {
            let phase = self.status.phase;
            self.status_mut().say(phase, &message);
        }
    }

    /// The task of a redeployment, or the failure where its spec cannot be read.
    fn redeploy_task(&self, key: &str) -> Result<Task, Failure> {
        let Some(last) = self.status.history.first() else { return Err(unreadable("it is not in the history")) };
        let spec = FunctionSpec::reread(key, &last.spec.0).map_err(|wrong| unreadable(&wrong))?;
        Ok(Task {
            spec: Arc::new(spec),
            text: Arc::clone(&last.spec.0),
            known: None,
            proved: false,
            kept: Some(last.artifact.clone()),
            generation: last.generation,
            seen: self.seen,
            // The trace is that of who has put the desired state.
            traceparent: None,
        })
    }
}

/// True if the version that served last is not the one that serves, as far as this node knows. `served`: the one that it has deployed
/// itself.
pub(super) fn lacks_last(status: &Status, served: Option<&Served>) -> bool {
    let Some(last) = status.history.first().filter(|_| !outlives_leaders(status)) else { return false };
    match served {
        // An earlier one, from a term that this node had before.
        Some(served) => served.revision.as_ref().is_some_and(|here| here.generation < last.generation),
        None => true,
    }
}

/// True of a status whose version answers elsewhere than at a gateway, and so under any leader. Those behind a gateway are told by their
/// target.
pub(super) fn outlives_leaders(status: &Status) -> bool {
    status.endpoint.as_ref().is_some_and(|endpoint| !endpoint.contains("/functions/"))
}

/// Takes the version that serves into a status that names none: somebody has put the object while Berth was away. The status
/// speaks of no generation yet.
pub(super) fn adopt(status: &mut Status, served: Served, now: Time) {
    // Of an app of Azure that an earlier version of Berth deployed it is known that it is there, and not that it answers.
    let is_known = served.endpoint.is_some() || served.revision.is_some();
    if !is_known || !status.history.is_empty() || status.endpoint.is_some() {
        return;
    }
    let mut since = now.to_string();
    (status.endpoint, status.artifact) = (served.endpoint, served.artifact);
    if let Some(revision) = served.revision {
        since.clone_from(&revision.deployed);
        status.remember(revision);
    }
    status.set("Ready", true, "Serving", "", &since);
}

/// The failure of a redeployment without a spec.
fn unreadable(wrong: &str) -> Failure {
    Failure {
        reason: "NotRevived",
        message: format!("The spec of the version that served last cannot be read: {wrong}"),
        retry: Retry::Never,
        log_tail: String::new(),
        took: Duration::ZERO,
    }
}
