//! One function: its state machine, and the status that tells of it. The diagram is in [`super`].

use std::{sync::Arc, time::Duration};

use berth_control::store::Rev;
use berth_spec::Time;

use super::{
    effect::{Effect, Task, TaskId},
    event::{Built, Deployed, Failure, Retry, Served},
    writing::{CONTENDED, Overwrites, Writing},
};
use crate::{
    deployment::{ARTIFACT, Declared, FunctionSpec, Platform},
    status::{ArtifactStatus, BuildStatus, Condition, Phase, Revision, SpecText, Status},
};

/// First pause after a failure that may pass by itself.
const FIRST_PAUSE: Duration = Duration::from_secs(5);

/// Longest pause: a store that is away for an hour is asked a dozen times.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// The annotation with the W3C trace context of who has put an object.
const TRACEPARENT: &str = "traceparent";

/// A function that is known.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) declared: Declared,
    pub(super) stage: Stage,
    /// The status that its object should have.
    pub(super) status: Status,
    pub(super) writing: Writing,
    /// The object is gone.
    pub(super) gone: bool,
    /// The object that came while the earlier one was being removed.
    pub(super) next: Option<Declared>,
    /// Number of the desired state.
    number: i64,
    /// An earlier version answers.
    serves: bool,
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
    /// Waits for its turn.
    Queued {
        /// The artifact of this very desired state, from before the controller started.
        known: Option<ArtifactStatus>,
    },
    /// Being built.
    Building { task: TaskId, proved: bool },
    /// Being deployed.
    Deploying { task: TaskId, artifact: ArtifactStatus, proved: bool },
    /// Answers.
    Serving,
    /// The desired state could not be reached.
    Failed,
    /// Being removed.
    Removing {
        /// Nothing is left of it but its object.
        done: bool,
    },
}

/// A function, for people.
#[derive(Debug)]
pub struct View<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its spec, where it is valid.
    pub spec: Option<&'a Arc<FunctionSpec>>,
    /// Its status.
    pub status: &'a Status,
    /// Number of the desired state.
    pub generation: i64,
    /// The object as it was found.
    pub declared: &'a Declared,
}

impl Function {
    /// A function whose object was found; `served` is the version of it that a target serves since before the start.
    pub(super) fn new(declared: Declared, served: Option<Served>, now: Time) -> Self {
        let mut stored = declared.status.clone();
        let serves = served.is_some();
        if let Some(served) = served {
            adopt(&mut stored, served, now);
        }
        let last = stored.history.first();
        let same = match stored.observed_digest.as_str() {
            // Nothing was looked at yet: the version that serves keeps its number where it is this one.
            "" => last.is_some_and(|last| last.spec.0 == declared.text),
            digest => digest == declared.identity.digest,
        };
        let mut function = Self {
            stage: Stage::Failed,
            number: last.map_or(0, |last| last.generation).max(stored.observed_generation),
            serves,
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
        function.arrive(same, now);
        function
    }

    /// Takes another desired state.
    pub(super) fn replace(&mut self, declared: Declared, now: Time) {
        self.declared = declared;
        (self.failures, self.seen) = (0, now);
        (self.overwrites, self.mend_at) = (Overwrites::default(), None);
        let same = self.status.observed_digest == self.declared.identity.digest;
        self.arrive(same, now);
    }

    /// Looks at the desired state. `same`: it is the one that `number` numbers.
    fn arrive(&mut self, same: bool, now: Time) {
        let identity = self.declared.identity.clone();
        self.number = identity.generation.unwrap_or(if same { self.number.max(1) } else { self.number + 1 });
        if identity.deleting {
            return self.leave(now);
        }
        if !same || self.number != self.status.observed_generation {
            // Failures of an earlier desired state say nothing about this one.
            let is_step = |fact: &Condition| matches!(fact.r#type.as_str(), "Built" | "Deployed");
            self.status.conditions.retain(|fact| fact.status != "False" || !is_step(fact));
        }
        let (now, unknown) = (now.to_string(), self.declared.unknown.join(", "));
        match &self.declared.spec {
            Err(wrong) => {
                let wrong = wrong.clone();
                self.stage = Stage::Failed;
                self.status.set("SpecValid", false, "Invalid", (&wrong, &now));
                self.conclude(Phase::Failed, &format!("The spec is invalid: {wrong}.{}", self.remainder()));
            }
            Ok(_) => {
                let warning = match unknown.as_str() {
                    "" => String::new(),
                    names => format!("Unknown fields are ignored: {names}."),
                };
                self.status.set("SpecValid", true, "Valid", (&warning, &now));
                let same = same && self.status.observed_generation == self.number;
                let restored = same && self.status.phase == Phase::Succeeded;
                let known = self.status.artifact.clone().filter(|_| restored);
                if known.is_none() {
                    self.status.say(Phase::Pending, "Waits for its turn.");
                }
                self.stage = Stage::Queued { known };
            }
        }
    }

    /// Removal begins.
    pub(super) fn leave(&mut self, _now: Time) {
        self.stage = Stage::Removing { done: false };
        self.serves = false;
        self.status.endpoint = None;
        self.status.say(Phase::Terminating, "Is being removed.");
    }

    /// Notes the same desired state at another revision, with the status that stands there.
    pub(super) fn note(&mut self, declared: Declared) {
        self.declared = declared;
    }

    /// True of the same desired state at a revision before the known one: the echo of an earlier write.
    pub(super) fn is_echo(&self, declared: &Declared) -> bool {
        !self.gone && self.declared.identity == declared.identity && declared.rev < self.declared.rev
    }

    /// Notes that a status was written at `rev`, unless something later has been seen.
    pub(super) fn wrote(&mut self, status: Status, rev: Rev) {
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

    pub(super) fn task(&self) -> Option<TaskId> {
        match self.stage {
            Stage::Building { task, .. } | Stage::Deploying { task, .. } => Some(task),
            _ => None,
        }
    }

    fn work(&self, known: Option<ArtifactStatus>, proved: bool) -> Option<Task> {
        let spec = Arc::clone(self.declared.spec.as_ref().ok()?);
        let traceparent = self.declared.about.annotations.get(TRACEPARENT).cloned();
        Some(Task {
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
        let wanted = self.declared.about.annotations.get(ARTIFACT)?;
        let (digest, generation) = wanted.split_once(' ')?;
        let asks = generation.parse::<i64>() == Ok(self.number);
        let is_it = |past: &Revision| past.artifact == digest && past.spec.0 == self.declared.text;
        (asks && self.status.history.iter().any(is_it)).then(|| digest.to_owned())
    }

    /// Its turn has come.
    pub(super) fn start(&mut self, task: TaskId, now: Time) -> Option<Task> {
        let Stage::Queued { known } = &mut self.stage else { return None };
        let known = known.take();
        let work = self.work(known.clone(), known.is_some())?;
        self.stage = Stage::Building { task, proved: known.is_some() };
        if known.is_none() {
            let name = work.spec.name.clone();
            let build = BuildStatus {
                id: task.to_string(),
                started: now.to_string(),
                log: format!("/v1/functions/{name}/log"),
                ..BuildStatus::default()
            };
            self.status.build = Some(build);
            self.status.say(Phase::Building, &format!("Builds {}.{}", work.spec.source, self.remainder()));
        }
        Some(work)
    }

    pub(super) fn built(&mut self, built: &Built, now: Time) -> Option<Task> {
        let Stage::Building { task, proved } = self.stage else { return None };
        let proved = proved && built.restored;
        if !proved {
            self.note_build(&built.log_tail, built.took);
            if let Some(build) = &mut self.status.build {
                build.cached = built.cached;
            }
            let reason = match built {
                Built { restored: true, .. } => "Kept",
                Built { cached: true, .. } => "Cached",
                _ => "Built",
            };
            self.status.set("Built", true, reason, (&built.notes.join(" "), &now.to_string()));
            self.status.say(Phase::Deploying, &format!("Starts the new version.{}", self.remainder()));
        }
        self.stage = Stage::Deploying { task, artifact: built.artifact.clone(), proved };
        self.work(None, proved)
    }

    pub(super) fn deployed(&mut self, deployed: &Deployed, now: Time) {
        let Stage::Deploying { artifact, .. } = &self.stage else { return };
        self.status.artifact = Some(artifact.clone());
        self.stage = Stage::Serving;
        (self.serves, self.failures) = (true, 0);
        self.status.endpoint = Some(deployed.endpoint.clone());
        let now = now.to_string();
        let artifact = self.status.artifact.as_ref().map(|artifact| artifact.digest.clone()).unwrap_or_default();
        let spec = SpecText(Arc::clone(&self.declared.text));
        self.status.remember(Revision { generation: self.number, deployed: now.clone(), artifact, spec });
        self.status.set("Deployed", true, "Deployed", ("", &now));
        self.status.set("Ready", true, "Serving", ("", &now));
        self.conclude(Phase::Succeeded, "Deployment is active and healthy.");
    }

    /// A build or deployment failed; returns the time of the next attempt.
    pub(super) fn failed(&mut self, failure: Failure, now: Time) -> Option<Time> {
        let built = matches!(self.stage, Stage::Deploying { .. });
        self.stage = Stage::Failed;
        if failure.retry == Retry::Later {
            self.failures += 1;
        }
        if !built {
            self.note_build(&failure.log_tail, failure.took);
        }
        let (fact, at) = (if built { "Deployed" } else { "Built" }, now.to_string());
        self.status.set(fact, false, failure.reason, (&failure.message, &at));
        if !self.serves {
            self.status.endpoint = None;
            self.status.artifact = None;
            self.status.set("Ready", false, failure.reason, ("", &at));
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(10).saturating_sub(1)).min(LONGEST_PAUSE);
        let again = match failure.retry {
            Retry::Never => None,
            Retry::Later => Some(now + pause),
            Retry::At(at) => Some(at),
        };
        let hint = again.map(|at| format!(" Tried again in {} s.", at.since(now).as_secs())).unwrap_or_default();
        self.conclude(Phase::Failed, &sentences(&failure.message, &format!("{hint}{}", self.remainder())));
        again
    }

    /// The time of the next attempt has come.
    pub(super) fn again(&mut self) -> bool {
        if !matches!(self.stage, Stage::Failed) || self.declared.spec.is_err() {
            return false;
        }
        self.stage = Stage::Queued { known: None };
        true
    }

    /// Goes through its target once more, if that is elsewhere and somebody else may have changed it.
    pub(super) fn verify(&mut self) -> bool {
        let elsewhere = self.declared.spec.as_ref().is_ok_and(|spec| !matches!(spec.platform, Platform::Local));
        if !matches!(self.stage, Stage::Serving) || !elsewhere {
            return false;
        }
        self.stage = Stage::Queued { known: self.status.artifact.clone() };
        true
    }

    fn note_build(&mut self, log_tail: &str, took: Duration) {
        if let Some(build) = &mut self.status.build {
            log_tail.clone_into(&mut build.log_tail);
            build.took = format!("{:.1}s", took.as_secs_f64());
        }
    }

    /// A sentence about the version that still answers.
    fn remainder(&self) -> &'static str {
        if self.serves { " The previous version keeps serving." } else { "" }
    }

    /// The desired state was carried out, or failed.
    fn conclude(&mut self, phase: Phase, message: &str) {
        self.status.observed_generation = self.number;
        self.status.observed_digest = self.declared.identity.digest.clone();
        self.status.say(phase, message);
    }

    /// Writes the status, unless the object has it.
    pub(super) fn write_if_new(&mut self, key: &str, effects: &mut Vec<Effect>) {
        if self.declared.status != self.status {
            self.write(key, effects);
        }
    }

    /// The same where somebody may have overwritten it. Returns the time of the write, if that has to wait.
    pub(super) fn mend(&mut self, key: &str, now: Time, effects: &mut Vec<Effect>) -> Option<Time> {
        // What is new does not wait.
        if self.writing != Writing::Done || self.declared.status == self.status {
            self.write_if_new(key, effects);
            return None;
        }
        if self.mend_at.is_some() {
            return None;
        }
        self.overwrites.count(now);
        if self.overwrites.are_few() {
            self.write(key, effects);
            return None;
        }
        if self.overwrites.are_news() {
            effects.push(Effect::Contended(key.to_owned()));
        }
        self.mend_later(now)
    }

    /// Notes that the object held another desired state than a write was for, or changed all the time. Returns the time of the next
    /// write, if that has to wait.
    pub(super) fn superseded(&mut self, key: &str, now: Time, effects: &mut Vec<Effect>) -> Option<Time> {
        let before = std::mem::replace(&mut self.writing, Writing::Due);
        if matches!(before, Writing::Underway(identity) if identity == self.declared.identity) {
            // The watch tells of another desired state. Changes of the same one it may have told already.
            return self.mend_later(now);
        }
        // The other one was heard of while the write was on its way.
        self.write_if_new(key, effects);
        None
    }

    /// Notes that the object was not there when its status was to be written. The watch tells that; of one that was put anew under this
    /// name it may have told already.
    pub(super) fn vanished(&mut self, key: &str, effects: &mut Vec<Effect>) {
        let before = std::mem::replace(&mut self.writing, Writing::Due);
        if !matches!(before, Writing::Underway(identity) if identity == self.declared.identity) {
            self.write_if_new(key, effects);
        }
    }

    fn mend_later(&mut self, now: Time) -> Option<Time> {
        if self.mend_at.is_some() {
            return None;
        }
        self.mend_at = Some(now + CONTENDED);
        self.mend_at
    }

    /// The time of a write has come that had to wait.
    pub(super) fn mend_now(&mut self, key: &str, at: Time, effects: &mut Vec<Effect>) {
        if self.mend_at == Some(at) {
            self.mend_at = None;
            self.write_if_new(key, effects);
        }
    }

    pub(super) fn write(&mut self, key: &str, effects: &mut Vec<Effect>) {
        if matches!(self.writing, Writing::Underway(_)) || self.gone || !self.declared.writable {
            return;
        }
        let (identity, status) = (self.declared.identity.clone(), Box::new(self.status.clone()));
        self.writing = Writing::Underway(identity.clone());
        effects.push(Effect::Write(key.to_owned(), identity, status));
    }

    pub(super) fn view<'a>(&'a self, name: &'a str) -> View<'a> {
        let spec = self.declared.spec.as_ref().ok();
        View { name, spec, status: &self.status, generation: self.number, declared: &self.declared }
    }
}

/// Takes the version that serves into the status of an object that tells of none: somebody has put it while Berth was away. The
/// status speaks of no generation yet.
fn adopt(status: &mut Status, served: Served, now: Time) {
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
    status.set("Ready", true, "Serving", ("", &since));
}

/// A message and the sentences after it.
fn sentences(message: &str, after: &str) -> String {
    let message = message.trim_end();
    let stop = if after.is_empty() || message.ends_with(['.', '!', '?', '…']) { "" } else { "." };
    format!("{message}{stop}{after}")
}
