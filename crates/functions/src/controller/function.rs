//! One function: its state machine, and the status that tells of it. The diagram is in [`super`].

mod takeover;
mod writes;

use std::{sync::Arc, time::Duration};

use berth_control::store::Rev;
use berth_spec::Time;

pub(super) use self::takeover::{FoundBy, RedeployStep};
use self::takeover::{adopt, lacks_last, outlives_leaders};
use super::{
    compact_object::{CompactObject, RunLocation, share},
    effect::{Task, TaskId},
    event::{Built, Deployed, Failure, Retry},
    writing::{Overwrites, Writing},
};
use crate::{
    deployment::{ARTIFACT, Declared, path_of},
    status::{ArtifactStatus, BuildStatus, Condition, Phase, Revision, SpecText, Status},
};

/// First pause after a failure that may pass by itself: a host that restarts is back by then.
const FIRST_PAUSE: Duration = Duration::from_secs(5);

/// Longest pause: a store that is away for an hour is asked a dozen times.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// The annotation with the W3C trace context of who has put an object.
const TRACEPARENT: &str = "traceparent";

/// One function: what its object declares, the stage that it has reached, and the status that it should have.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) declared: CompactObject,
    pub(super) stage: Stage,
    /// The status that its object should have; shared with `declared` where that has it.
    pub(super) status: Arc<Status>,
    pub(super) writing: Writing,
    /// The object is gone.
    pub(super) gone: bool,
    /// The object that came while the earlier one was being removed.
    pub(super) next: Option<Box<Declared>>,
    /// Number of the desired state.
    pub(super) number: i64,
    /// An earlier version answers.
    serves: bool,
    /// The version that served last is to be deployed here first.
    needs_redeploy: bool,
    /// Failures in a row.
    failures: u32,
    /// Overwrites of the status of this desired state.
    overwrites: Overwrites,
    /// Time at which the status is written again that somebody has overwritten.
    mend_at: Option<Time>,
    /// Time at which the desired state was seen.
    seen: Time,
}

/// State of a function.
#[derive(Debug)]
pub(super) enum Stage {
    /// The version that served last is deployed, before the desired state.
    Redeploying {
        step: RedeployStep,
        /// The desired state has failed already, and is not tried again.
        concluded: bool,
    },
    /// Waits for its turn.
    Queued {
        /// The artifact of this very desired state, from before the controller started.
        known: Option<Box<ArtifactStatus>>,
    },
    /// Being built.
    Building { task: TaskId, proved: bool },
    /// Being deployed.
    Deploying { task: TaskId, artifact: Box<ArtifactStatus>, proved: bool },
    /// Answers.
    Serving,
    /// The desired state could not be reached.
    Failed {
        /// Somebody has to change something.
        lasting: bool,
    },
    /// Being removed.
    Removing {
        /// Nothing is left of it but its object.
        done: bool,
    },
}

impl Function {
    /// A function whose object was found.
    pub(super) fn new(declared: Declared, found: FoundBy, now: Time) -> Self {
        let (declared, verdict) = CompactObject::of(declared);
        let mut stored = Arc::clone(&declared.status);
        let (served, needs_redeploy) = match found {
            FoundBy::Listed(served) => {
                let needs_redeploy = lacks_last(&stored, served.as_ref());
                (served, needs_redeploy)
            }
            FoundBy::Put => (None, false),
        };
        let serves = served.is_some() || outlives_leaders(&stored);
        if let Some(served) = served {
            let status = Arc::make_mut(&mut stored);
            adopt(status, served, now);
            share(&declared.text, &mut status.history);
        }
        let last = stored.history.first();
        let same = match &*stored.observed_digest {
            // Nothing was looked at yet: the version that serves keeps its number where it is this one.
            "" => last.is_some_and(|last| last.spec.0 == declared.text),
            digest => *digest == *declared.identity.digest,
        };
        let mut function = Self {
            stage: Stage::Failed { lasting: true },
            number: last.map_or(0, |last| last.generation).max(stored.observed_generation),
            serves,
            needs_redeploy,
            status: stored,
            declared,
            writing: Writing::Due,
            gone: false,
            next: None,
            failures: 0,
            overwrites: Overwrites::default(),
            mend_at: None,
            seen: now,
        };
        function.arrive(same, verdict, now);
        function
    }

    /// Takes another desired state.
    pub(super) fn replace(&mut self, mut declared: Declared, now: Time) {
        // A change outside the spec leaves its text, which the history holds.
        if let Some(past) = self.status.history.iter().find(|past| past.spec.0 == declared.text) {
            declared.text = Arc::clone(&past.spec.0);
        }
        let (declared, verdict) = CompactObject::of(declared);
        self.declared = declared;
        (self.failures, self.seen) = (0, now);
        (self.overwrites, self.mend_at) = (Overwrites::default(), None);
        let same = self.status.observed_digest == self.declared.identity.digest;
        self.arrive(same, verdict, now);
    }

    /// Looks at the desired state. `same`: it is the one that `number` numbers.
    fn arrive(&mut self, same: bool, verdict: Result<Vec<String>, String>, now: Time) {
        let identity = self.declared.identity.clone();
        // A person may have chosen the highest number there is.
        let next = if same { self.number.max(1) } else { self.number.saturating_add(1) };
        self.number = identity.generation.unwrap_or(next);
        if identity.deleting {
            return self.leave(now);
        }
        if !same || self.number != self.status.observed_generation {
            // Failures of an earlier desired state say nothing about this one.
            let is_step = |fact: &Condition| matches!(fact.kind(), "Built" | "Deployed");
            self.status_mut().conditions.retain(|fact| fact.status() != "False" || !is_step(fact));
        }
        let now = now.to_string();
        match verdict {
            Err(wrong) => {
                self.stage = Stage::Failed { lasting: true };
                self.status_mut().set("SpecValid", false, "Invalid", &wrong, &now);
                self.conclude(Phase::Failed, &format!("The spec is invalid: {wrong}.{}", self.remainder()));
            }
            Ok(unknown) => {
                let warning = match unknown.join(", ").as_str() {
                    "" => String::new(),
                    names => format!("Unknown fields are ignored: {names}."),
                };
                self.status_mut().set("SpecValid", true, "Valid", &warning, &now);
                let same = same && self.status.observed_generation == self.number;
                let restored = same && self.status.phase == Phase::Succeeded;
                let known = self.status.artifact.clone().filter(|_| restored).map(Box::new);
                if known.is_none() {
                    self.status_mut().say(Phase::Pending, "Waits for its turn.");
                }
                self.stage = Stage::Queued { known };
            }
        }
        self.redeploy_first(&now);
    }

    /// Removal begins.
    pub(super) fn leave(&mut self, _now: Time) {
        self.stage = Stage::Removing { done: false };
        self.serves = false;
        let status = self.status_mut();
        status.endpoint = None;
        status.say(Phase::Terminating, "Is being removed.");
    }

    /// Notes the same desired state at another revision, with the status that stands there. The rest is the same.
    pub(super) fn note(&mut self, declared: Declared) {
        (self.declared.status, self.declared.rev) = (Arc::new(declared.status), declared.rev);
    }

    /// The status, to be changed: a copy of its own, where the object has this one.
    fn status_mut(&mut self) -> &mut Status {
        Arc::make_mut(&mut self.status)
    }

    /// True of the same desired state at a revision before the known one: the echo of an earlier write.
    pub(super) fn is_echo(&self, declared: &Declared) -> bool {
        !self.gone && self.declared.identity == declared.identity && declared.rev < self.declared.rev
    }

    /// Notes that a status was written at `rev`, unless something later has been seen.
    pub(super) fn wrote(&mut self, status: Arc<Status>, rev: Rev) {
        self.writing = if status == self.status { Writing::Done } else { Writing::Due };
        self.mend_at = None;
        if rev >= self.declared.rev {
            (self.declared.status, self.declared.rev) = (status, rev);
        }
    }

    /// True while it is only looked at: it was deployed before.
    pub(super) const fn is_proved(&self) -> bool {
        matches!(self.stage, Stage::Deploying { proved: true, .. })
    }

    /// True while a cloud or workers deploy it.
    pub(super) fn waits_elsewhere(&self) -> bool {
        matches!(self.stage, Stage::Deploying { .. }) && self.declared.location == RunLocation::Remote
    }

    pub(super) fn task(&self) -> Option<TaskId> {
        match self.stage {
            Stage::Building { task, .. } | Stage::Deploying { task, .. } => Some(task),
            Stage::Redeploying { step: RedeployStep::Building(task) | RedeployStep::Deploying(task, _), .. } => {
                Some(task)
            }
            _ => None,
        }
    }

    /// The task of a turn, or the failure where its spec cannot be read again.
    fn work(&self, key: &str, known: Option<ArtifactStatus>, proved: bool) -> Result<Task, Failure> {
        let spec = Arc::new(self.declared.spec(key).map_err(unread)?);
        let traceparent = self.declared.metadata.annotations.get(TRACEPARENT).cloned();
        Ok(Task {
            spec,
            text: Arc::clone(&self.declared.text),
            known,
            proved,
            kept: self.kept(),
            generation: self.number,
            seen: self.seen,
            traceparent,
        })
    }

    /// The artifact that the object asks for, if this generation does so and the spec was deployed with it.
    fn kept(&self) -> Option<String> {
        let wanted = self.declared.metadata.annotations.get(ARTIFACT)?;
        let (digest, generation) = wanted.split_once(' ')?;
        let asks = generation.parse::<i64>() == Ok(self.number);
        let is_it = |past: &Revision| past.artifact == digest && past.spec.0 == self.declared.text;
        (asks && self.status.history.iter().any(is_it)).then(|| digest.to_owned())
    }

    /// Its turn has come; `None` where it waits for none.
    pub(super) fn start(&mut self, key: &str, task: TaskId, now: Time) -> Result<Option<Task>, Failure> {
        if matches!(self.stage, Stage::Redeploying { .. }) {
            return self.start_redeploy(key, task);
        }
        let Stage::Queued { known } = &mut self.stage else { return Ok(None) };
        let known = known.take();
        let work = self.work(key, known.as_deref().cloned(), known.is_some())?;
        self.stage = Stage::Building { task, proved: known.is_some() };
        if known.is_none() {
            let message = format!("Builds {}.{}", work.spec.source, self.remainder());
            let build = BuildStatus {
                id: task.to_string().into(),
                started: now.to_string().into(),
                log: format!("/v1{}/log", path_of(key)).into(),
                ..BuildStatus::default()
            };
            let status = self.status_mut();
            status.build = Some(build);
            status.say(Phase::Building, &message);
        }
        Ok(Some(work))
    }

    /// Its artifact is there; `None` where it waits for none.
    pub(super) fn built(&mut self, key: &str, built: &Built, now: Time) -> Result<Option<Task>, Failure> {
        if matches!(self.stage, Stage::Redeploying { .. }) {
            return self.redeploy_built(key, built);
        }
        let Stage::Building { task, proved } = self.stage else { return Ok(None) };
        let proved = proved && built.restored;
        if !proved {
            self.note_build(&built.log_tail, built.took);
            let message = format!("Starts the new version.{}", self.remainder());
            let status = self.status_mut();
            if let Some(build) = &mut status.build {
                build.cached = built.cached;
            }
            let reason = match built {
                Built { restored: true, .. } => "Kept",
                Built { cached: true, .. } => "Cached",
                _ => "Built",
            };
            status.set("Built", true, reason, &built.notes.join(" "), &now.to_string());
            status.say(Phase::Deploying, &message);
        }
        self.stage = Stage::Deploying { task, artifact: Box::new(built.artifact.clone()), proved };
        self.work(key, None, proved).map(Some)
    }

    pub(super) fn deployed(&mut self, deployed: &Deployed, now: Time) {
        if matches!(self.stage, Stage::Redeploying { .. }) {
            return self.redeployed(deployed, now);
        }
        let Stage::Deploying { artifact, .. } = &self.stage else { return };
        let artifact = ArtifactStatus::clone(artifact);
        self.stage = Stage::Serving;
        (self.serves, self.needs_redeploy, self.failures) = (true, false, 0);
        let now = now.to_string();
        let spec = SpecText(Arc::clone(&self.declared.text));
        let revision =
            Revision { generation: self.number, deployed: now.clone(), artifact: artifact.digest.clone(), spec };
        let status = self.status_mut();
        (status.artifact, status.endpoint) = (Some(artifact), Some(deployed.endpoint.clone()));
        status.remember(revision);
        status.set("Deployed", true, "Deployed", &deployed.note, &now);
        status.set("Ready", true, "Serving", "", &now);
        self.conclude(Phase::Succeeded, "Deployment is active and healthy.");
    }

    /// A build or deployment failed; returns the time of the next attempt.
    pub(super) fn failed(&mut self, failure: Failure, now: Time) -> Option<Time> {
        if failure.retry == Retry::Later {
            self.failures += 1;
        }
        if let Stage::Redeploying { concluded, .. } = self.stage {
            return self.redeploy_failed(&failure, concluded, now);
        }
        let lasting = failure.retry == Retry::Never;
        let before = std::mem::replace(&mut self.stage, Stage::Failed { lasting });
        let built = matches!(before, Stage::Deploying { .. });
        // A turn that did not begin leaves what is told of the last build.
        if matches!(before, Stage::Building { .. }) {
            self.note_build(&failure.log_tail, failure.took);
        }
        let (fact, at) = (if built { "Deployed" } else { "Built" }, now.to_string());
        let serves = self.serves;
        let status = self.status_mut();
        status.set(fact, false, failure.reason, &failure.message, &at);
        if !serves {
            (status.endpoint, status.artifact) = (None, None);
            status.set("Ready", false, failure.reason, "", &at);
        }
        let again = self.next_attempt(failure.retry, now);
        let hint = again.map(|at| format!(" Tried again in {} s.", at.since(now).as_secs())).unwrap_or_default();
        self.conclude(Phase::Failed, &sentences(&failure.message, &format!("{hint}{}", self.remainder())));
        let redeploy_at = self.needs_redeploy.then(|| now + self.pause());
        again.or(redeploy_at)
    }

    /// Pause after failures that may pass.
    fn pause(&self) -> Duration {
        FIRST_PAUSE.saturating_mul(1 << self.failures.min(10).saturating_sub(1)).min(LONGEST_PAUSE)
    }

    fn next_attempt(&self, retry: Retry, now: Time) -> Option<Time> {
        match retry {
            Retry::Never => None,
            Retry::Later => Some(now + self.pause()),
            Retry::At(at) => Some(at),
        }
    }

    /// The time of the next attempt has come.
    pub(super) fn again(&mut self) -> bool {
        let Stage::Failed { lasting } = self.stage else { return false };
        self.stage = match (self.needs_redeploy, lasting) {
            (true, concluded) => Stage::Redeploying { step: RedeployStep::Queued, concluded },
            (false, false) => Stage::Queued { known: None },
            (false, true) => return false,
        };
        true
    }

    /// Goes through its target once more, if that is elsewhere and somebody else may have changed it.
    pub(super) fn verify(&mut self) -> bool {
        if !matches!(self.stage, Stage::Serving) || self.declared.location != RunLocation::Remote {
            return false;
        }
        self.stage = Stage::Queued { known: self.status.artifact.clone().map(Box::new) };
        true
    }

    fn note_build(&mut self, log_tail: &str, took: Duration) {
        if self.status.build.is_none() {
            // Nothing to change, hence no copy of a shared status.
            return;
        }
        if let Some(build) = &mut self.status_mut().build {
            build.log_tail = log_tail.into();
            build.took = format!("{:.1}s", took.as_secs_f64()).into();
        }
    }

    /// A sentence about the version that still answers, or is to answer again.
    fn remainder(&self) -> &'static str {
        match (self.needs_redeploy, self.serves) {
            (true, _) => " The version that served last is being started on this node.",
            (false, true) => " The previous version keeps serving.",
            (false, false) => "",
        }
    }

    /// The desired state was carried out, or failed.
    fn conclude(&mut self, phase: Phase, message: &str) {
        let (number, digest) = (self.number, Arc::clone(&self.declared.identity.digest));
        let status = self.status_mut();
        (status.observed_generation, status.observed_digest) = (number, digest);
        status.say(phase, message);
    }
}

/// The failure of a function whose spec was read before, and cannot be read now.
fn unread(wrong: String) -> Failure {
    Failure {
        reason: "Internal",
        message: format!("A valid spec cannot be read again: {wrong}. Report this, and change the spec to try again"),
        retry: Retry::Never,
        log_tail: String::new(),
        took: Duration::ZERO,
    }
}

/// A message and the sentences after it.
fn sentences(message: &str, after: &str) -> String {
    let message = message.trim_end();
    let stop = if after.is_empty() || message.ends_with(['.', '!', '?', '…']) { "" } else { "." };
    format!("{message}{stop}{after}")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::controller::Served;

    fn read(object: &Value, rev: u64) -> Declared {
        Declared::read("f", object.to_string().as_bytes(), Rev(rev))
    }

    #[test]
    fn a_status_and_a_spec_that_stand_in_the_object_are_held_once() {
        let mut object = json!({
            "apiVersion": "v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "f"},
            "spec": {"type": "python", "sourceUri": "file:/a.zip", "entrypoint": "a.b", "target": {"platform": "local"}},
        });
        let is_shared = |function: &Function| Arc::ptr_eq(&function.status, &function.declared.status);
        let (mut effects, now) = (Vec::new(), Time(1));
        let mut function = Function::new(read(&object, 1), FoundBy::Put, now);
        function.write("f", &mut effects);
        function.wrote(Arc::clone(&function.status), Rev(2));
        assert!(is_shared(&function), "written");
        let spec = SpecText(object["spec"].to_string().into());
        let past = Revision { generation: 1, deployed: "t".to_owned(), artifact: "sha256:1".to_owned(), spec };
        function.status_mut().history = vec![past.clone()];
        object["status"] = serde_json::to_value(&*function.status).expect("JSON");
        function.note(read(&object, 3));
        function.write_if_new("f", &mut effects);
        assert!(is_shared(&function), "echoed");
        let holds_one_text =
            |function: &Function| Arc::ptr_eq(&function.status.history[0].spec.0, &function.declared.text);
        let mut function = Function::new(read(&object, 3), FoundBy::Put, now);
        function.write_if_new("f", &mut effects);
        assert!(is_shared(&function), "read after a restart");
        assert!(holds_one_text(&function), "read after a restart");
        assert_eq!(effects.len(), 1, "written once");
        object["metadata"]["labels"] = json!({"team": "a"});
        function.replace(read(&object, 4), now);
        assert!(holds_one_text(&function), "put with another label");
        let of_object = &function.declared.status.history[0].spec.0;
        assert!(Arc::ptr_eq(of_object, &function.declared.text), "in the status of the object, too");
        object.as_object_mut().expect("an object").remove("status");
        let served = Served { revision: Some(past), ..Served::default() };
        let function = Function::new(read(&object, 5), FoundBy::Listed(Some(served)), now);
        assert!(holds_one_text(&function), "adopted");
    }
}
