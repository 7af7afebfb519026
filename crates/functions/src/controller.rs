//! The brain of functions: decides which are built, deployed and removed, and what their statuses say. Pure: no clock, no
//! I/O.
//!
//! ```text
//!            put                     its turn             artifact              answered
//! (nothing) ─────▶ Queued ─────────────────▶ Building ─────────────▶ Deploying ───────────▶ Serving
//!                    ▲ ▲                        │                       │
//!                    │ └── another desired state: what runs is cancelled, the newest wins
//!                    │                          ▼                       ▼
//!                    └──── its time comes ── Failed (an earlier version goes on serving)
//!
//! found by a new leader ──a version served elsewhere──▶ Redeploying: that one first (`function/takeover.rs`) ──▶ Queued
//! Serving ──time to look at it again──▶ Queued (functions of Azure: proved, nothing is built)
//! deleted, or its deletion is asked for ──▶ Removing ──▶ (nothing)
//! ```

mod compact_object;
mod effect;
mod event;
mod function;
mod turn_queue;
mod view;
mod writing;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use berth_spec::Time;

pub use self::{
    effect::{Effect, Task, TaskId},
    event::{Built, Deployed, Event, Failure, Retry, Served},
    view::View,
};
use self::{
    function::{FoundBy, Function, Stage},
    turn_queue::TurnQueue,
};
use crate::{
    deployment::{Declared, FunctionName},
    status::{Phase, Status},
    writer::Written,
};

/// Deployments elsewhere beside the turns: enough that a cloud which takes minutes holds nobody up, and few enough for its limits of
/// calls.
const ELSEWHERE: usize = 16;

/// Bounds of the controller.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// Turns: builds, and deployments on this machine, at once.
    pub parallel: usize,
    /// Deployments elsewhere that hold no turn: they only wait for others. Further ones hold theirs.
    pub elsewhere: usize,
}

impl Default for Policy {
    fn default() -> Self {
        Self { parallel: 2, elsewhere: ELSEWHERE }
    }
}

/// The brain. Feed it events, carry out its effects, and call again at [`Controller::wake_at`].
#[derive(Debug)]
pub struct Controller {
    policy: Policy,
    /// Each in a box: a tree leaves a third of its places empty.
    functions: BTreeMap<String, Box<Function>>,
    queue: TurnQueue,
    /// Builds and deployments that run.
    running: BTreeMap<TaskId, String>,
    retries: BTreeSet<(Time, String)>,
    /// Statuses that are written again at a time: somebody else overwrites them.
    mends: BTreeSet<(Time, String)>,
    next: u64,
    /// Functions that a target serves since before the start, until the first listing.
    serving: BTreeMap<String, Served>,
    /// Functions that changed since somebody asked.
    changed: BTreeSet<String>,
}

impl Controller {
    /// A controller that knows which functions a target serves, and nothing else. `first` numbers its first task; a number is
    /// never used twice.
    #[must_use]
    pub fn new(policy: Policy, first: u64, serving: BTreeMap<String, Served>) -> Self {
        Self {
            policy,
            functions: BTreeMap::new(),
            queue: TurnQueue::default(),
            running: BTreeMap::new(),
            retries: BTreeSet::new(),
            mends: BTreeSet::new(),
            next: first,
            serving,
            changed: BTreeSet::new(),
        }
    }

    /// Takes in an event.
    pub fn on(&mut self, event: Event, now: Time) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Listed(objects) => self.listed(objects, now, &mut effects),
            Event::Put(key, declared) if self.is_echo(&key, &declared) => {}
            Event::Put(key, declared) => self.put(key, *declared, FoundBy::Put, now, &mut effects),
            Event::Deleted(key) => self.deleted(&key, now, &mut effects),
            Event::Built(task, result) => self.built(task, *result, now, &mut effects),
            Event::Deployed(task, result) => self.deployed(task, result, now, &mut effects),
            Event::Removed(key) => self.removed(&key, now, &mut effects),
            Event::Written(key, status, written) => self.written(&key, status, written, now, &mut effects),
            Event::Verify => self.verify(),
            Event::Tick => {}
        }
        self.retry(now, &mut effects);
        self.mend(now, &mut effects);
        self.start(now, &mut effects);
        effects
    }

    /// Time at which something is to be tried again.
    #[must_use]
    pub fn wake_at(&self) -> Option<Time> {
        let firsts = [self.retries.first(), self.mends.first()];
        firsts.into_iter().flatten().map(|(at, _)| *at).min()
    }

    /// Functions that changed since the last call, with what they are now; `None`: gone.
    pub fn changed(&mut self) -> Vec<(String, Option<View<'_>>)> {
        let changed = std::mem::take(&mut self.changed);
        let view = |key: String| {
            let view = self.functions.get_key_value(&key).map(|(key, function)| function.view(key));
            (key, view)
        };
        changed.into_iter().map(view).collect()
    }

    /// Every function, for people.
    pub fn view(&self) -> impl Iterator<Item = View<'_>> {
        self.functions.iter().map(|(key, function)| function.view(key))
    }

    /// Functions by phase.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<&'static str, usize> {
        let mut counts: BTreeMap<_, _> = Phase::ALL.iter().map(|phase| (phase.as_str(), 0)).collect();
        for function in self.functions.values() {
            *counts.entry(function.status.phase.as_str()).or_default() += 1;
        }
        counts
    }

    /// A whole listing: what is not in it is gone.
    fn listed(&mut self, objects: Vec<(String, Declared)>, now: Time, effects: &mut Vec<Effect>) {
        let there: BTreeSet<&String> = objects.iter().map(|(key, _)| key).collect();
        let gone: Vec<String> = self.functions.keys().filter(|key| !there.contains(key)).cloned().collect();
        for key in gone {
            self.deleted(&key, now, effects);
        }
        let mut serving = std::mem::take(&mut self.serving);
        effects.extend(serving.keys().filter(|name| !there.contains(name)).cloned().map(Effect::Remove));
        for (key, declared) in objects {
            let found = FoundBy::Listed(serving.remove(&key));
            self.put(key, declared, found, now, effects);
        }
    }

    /// True of an object as it was before what is known of it. A listing is never one: a store may have been restored.
    fn is_echo(&self, key: &str, declared: &Declared) -> bool {
        self.functions.get(key).is_some_and(|function| function.is_echo(declared))
    }

    fn put(&mut self, key: String, declared: Declared, found: FoundBy, now: Time, effects: &mut Vec<Effect>) {
        self.changed.insert(key.clone());
        let Some(function) = self.functions.get_mut(&key) else {
            let function = Function::new(declared, found, now);
            self.functions.insert(key.clone(), Box::new(function));
            self.begin(&key, effects);
            return;
        };
        if function.declared.identity == declared.identity && !function.gone {
            // A person may have put an object with an old status.
            function.note(declared);
            if let Some(at) = function.mend(&key, now, effects) {
                self.mends.insert((at, key));
            }
            return;
        }
        match function.stage {
            // What was deleted is removed whole before it comes again.
            Stage::Removing { done: false } => {
                function.next = Some(Box::new(declared));
                return;
            }
            Stage::Removing { done: true } => {
                self.functions.insert(key.clone(), Box::new(Function::new(declared, FoundBy::Put, now)));
                self.begin(&key, effects);
                return;
            }
            _ => {}
        }
        self.forget_work(&key, effects);
        if let Some(function) = self.functions.get_mut(&key) {
            function.replace(declared, now);
        }
        self.begin(&key, effects);
    }

    /// Sets out for the desired state.
    fn begin(&mut self, key: &str, effects: &mut Vec<Effect>) {
        let Some(function) = self.functions.get_mut(key) else { return };
        match function.stage {
            Stage::Queued { known: None } => self.queue.change(&function.declared.metadata.origin, key.to_owned()),
            Stage::Queued { known: Some(_) } | Stage::Redeploying { .. } => self.queue.repetition(key.to_owned()),
            Stage::Removing { done: false } => effects.push(Effect::Remove(key.to_owned())),
            _ => {}
        }
        function.write_if_new(key, effects);
    }

    fn deleted(&mut self, key: &str, now: Time, effects: &mut Vec<Effect>) {
        self.forget_work(key, effects);
        self.changed.insert(key.to_owned());
        let Some(function) = self.functions.get_mut(key) else { return };
        function.next = None;
        function.gone = true;
        match function.stage {
            Stage::Removing { done: true } => {
                self.functions.remove(key);
            }
            Stage::Removing { done: false } => {}
            _ => {
                function.leave(now);
                effects.push(Effect::Remove(key.to_owned()));
            }
        }
    }

    fn removed(&mut self, key: &str, now: Time, effects: &mut Vec<Effect>) {
        let Some(function) = self.functions.get_mut(key) else { return };
        let Stage::Removing { done } = &mut function.stage else { return };
        self.changed.insert(key.to_owned());
        *done = true;
        if let Some(declared) = function.next.take() {
            self.functions.insert(key.to_owned(), Box::new(Function::new(*declared, FoundBy::Put, now)));
            self.begin(key, effects);
        } else if function.gone {
            self.functions.remove(key);
        } else {
            // Its owner asked for the end and left the object to us.
            effects.push(Effect::Delete(key.to_owned(), function.declared.identity.clone()));
        }
    }

    /// Cancels what runs for a function and takes it out of the queue.
    fn forget_work(&mut self, key: &str, effects: &mut Vec<Effect>) {
        self.queue.remove(key);
        self.retries.retain(|(_, waiting)| waiting != key);
        let Some(function) = self.functions.get(key) else { return };
        if let Some(task) = function.task() {
            self.running.remove(&task);
            effects.push(Effect::Cancel(task));
        }
    }

    /// Turns that are taken.
    fn turns(&self) -> usize {
        let waits = |key: &&String| self.functions.get(*key).is_some_and(|function| function.waits_elsewhere());
        let waiting = self.running.values().filter(waits).count();
        self.running.len() - waiting.min(self.policy.elsewhere)
    }

    /// Gives turns to those who wait.
    fn start(&mut self, now: Time, effects: &mut Vec<Effect>) {
        while self.turns() < self.policy.parallel {
            let Some(key) = self.queue.next() else { return };
            let Some(function) = self.functions.get_mut(&key) else { continue };
            let task = TaskId(self.next);
            self.next += 1;
            match function.start(&key, task, now) {
                Ok(None) => {}
                Ok(Some(build)) => {
                    self.running.insert(task, key.clone());
                    self.changed.insert(key.clone());
                    effects.push(Effect::Build(task, build));
                    function.write_if_new(&key, effects);
                }
                Err(failure) => {
                    self.changed.insert(key.clone());
                    self.failed(task, &key, failure, now, effects);
                }
            }
        }
    }

    fn built(&mut self, task: TaskId, result: Result<Built, Failure>, now: Time, effects: &mut Vec<Effect>) {
        let Some(key) = self.running.get(&task).cloned() else { return };
        self.changed.insert(key.clone());
        let Some(function) = self.functions.get_mut(&key) else { return };
        match result {
            Ok(built) => {
                match function.built(&key, &built, now) {
                    Ok(None) => {}
                    Ok(Some(work)) => effects.push(Effect::Deploy(task, work, built.artifact)),
                    Err(failure) => {
                        // No deployment follows that would end the turn.
                        effects.push(Effect::Cancel(task));
                        return self.failed(task, &key, failure, now, effects);
                    }
                }
                function.write_if_new(&key, effects);
            }
            Err(failure) => self.failed(task, &key, failure, now, effects),
        }
    }

    fn deployed(&mut self, task: TaskId, result: Result<Deployed, Failure>, now: Time, effects: &mut Vec<Effect>) {
        let Some(key) = self.running.get(&task).cloned() else { return };
        self.changed.insert(key.clone());
        match result {
            Ok(deployed) => {
                self.running.remove(&task);
                if let Some(function) = self.functions.get_mut(&key) {
                    function.deployed(&deployed, now);
                    function.write_if_new(&key, effects);
                }
                self.after_redeploy(&key);
            }
            Err(failure) => self.failed(task, &key, failure, now, effects),
        }
    }

    fn failed(&mut self, task: TaskId, key: &str, failure: Failure, now: Time, effects: &mut Vec<Effect>) {
        self.running.remove(&task);
        let Some(function) = self.functions.get_mut(key) else { return };
        if let Some(at) = function.failed(failure, now) {
            self.retries.insert((at, key.to_owned()));
        }
        function.write_if_new(key, effects);
        self.after_redeploy(key);
    }

    /// Has the desired state wait for its turn, where the version that served last had one before it.
    fn after_redeploy(&mut self, key: &str) {
        let Some(function) = self.functions.get(key) else { return };
        if matches!(function.stage, Stage::Queued { .. }) {
            self.queue.change(&function.declared.metadata.origin, key.to_owned());
        }
    }

    fn retry(&mut self, now: Time, effects: &mut Vec<Effect>) {
        while let Some((_, key)) = self.retries.first().filter(|(at, _)| *at <= now).cloned() {
            self.retries.pop_first();
            if let Some(function) = self.functions.get_mut(&key)
                && function.again()
            {
                self.queue.repetition(key.clone());
                self.changed.insert(key.clone());
                function.write_if_new(&key, effects);
            }
        }
    }

    /// Writes statuses again whose time has come.
    fn mend(&mut self, now: Time, effects: &mut Vec<Effect>) {
        while let Some((at, key)) = self.mends.first().filter(|(at, _)| *at <= now).cloned() {
            self.mends.pop_first();
            if let Some(function) = self.functions.get_mut(&key) {
                function.mend_now(&key, at, effects);
            }
        }
    }

    /// Has functions looked at that serve elsewhere: their target corrects what differs.
    fn verify(&mut self) {
        for (key, function) in &mut self.functions {
            if function.verify() {
                self.queue.repetition(key.clone());
            }
        }
    }

    fn written(&mut self, key: &str, status: Arc<Status>, written: Written, now: Time, effects: &mut Vec<Effect>) {
        let Some(function) = self.functions.get_mut(key) else { return };
        let later = match written {
            Written::Done(rev) => {
                function.wrote(status, rev);
                function.mend(key, now, effects)
            }
            Written::Superseded => function.superseded(key, now, effects),
            Written::Gone => {
                function.vanished(key, effects);
                None
            }
        };
        self.mends.extend(later.map(|at| (at, key.to_owned())));
    }

    /// The function that a running task is for.
    #[must_use]
    pub fn name_of(&self, task: TaskId) -> Option<&str> {
        self.running.get(&task).map(String::as_str)
    }

    /// True if a running task only looks at what was deployed before.
    #[must_use]
    pub fn is_proved(&self, task: TaskId) -> bool {
        let function = self.running.get(&task).and_then(|key| self.functions.get(key));
        function.is_some_and(|function| function.is_proved())
    }

    /// True if the function may be asked for by this name.
    #[must_use]
    pub fn has(&self, name: &FunctionName) -> bool {
        self.functions.contains_key(name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use berth_control::store::Rev;
    use serde_json::json;

    use super::*;
    use crate::status::ArtifactStatus;

    #[test]
    fn a_spec_that_cannot_be_read_again_fails_and_gives_its_turn_back() {
        let now = Time(1);
        let mut controller = Controller::new(Policy { parallel: 1, ..Policy::default() }, 1, BTreeMap::new());
        let put = |controller: &mut Controller, key: &str| {
            let object = json!({
                "apiVersion": "v1alpha1", "kind": "ModelDeployment", "metadata": {"name": key},
                "spec": {"type": "python", "sourceUri": "file:/a.zip", "entrypoint": "a.b", "target": {"platform": "local"}},
            });
            let declared = Declared::read(key, object.to_string().as_bytes(), Rev(1));
            controller.on(Event::Put(key.to_owned(), Box::new(declared)), now)
        };
        put(&mut controller, "built");
        put(&mut controller, "queued");
        for function in controller.functions.values_mut() {
            function.declared.text = "{}".into();
        }
        let built = Built {
            artifact: ArtifactStatus::default(),
            cached: false,
            restored: false,
            took: Duration::ZERO,
            log_tail: "done".to_owned(),
            notes: vec![],
        };
        let effects = controller.on(Event::Built(TaskId(1), Box::new(Ok(built))), now);
        let works = |effect: &Effect| matches!(effect, Effect::Build(..) | Effect::Deploy(..));
        assert!(!effects.iter().any(works), "{effects:?}");
        for (key, step) in [("built", "Deployed"), ("queued", "Built")] {
            let status = &controller.functions[key].status;
            let fact = status.conditions.iter().find(|fact| fact.kind() == step).expect(step);
            assert_eq!((status.phase, fact.status(), fact.reason()), (Phase::Failed, "False", "Internal"), "{key}");
            assert!(fact.message().contains("spec.type is missing"), "{key}: {}", fact.message());
        }
        let effects = put(&mut controller, "next");
        assert!(effects.iter().any(works), "its turn is free: {effects:?}");
    }
}
