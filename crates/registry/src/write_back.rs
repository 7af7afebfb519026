//! When the actual state is written back, and what: a brain that is told what is true and what the branch holds, and
//! says which files have to change.
//!
//! ```text
//! Found ──▶ ┌──────┐  means something else   ┌─────────┐ quiet, and not too soon after the last ┌─────────┐
//!           │ Same │ ──────────────────────▶ │ Differs │ ─────────── take() ─────────────────▶ │ Writing │
//! Observed ▶└──────┘ ◀────────────────────── └─────────┘ ◀──────────── failed: pause ───────── └─────────┘
//!               ▲      means the same again                                                        │ wrote
//!               └──────────────────────────────────────────────────────────────────────────────────┘
//! ```
//! The branch remembers for all controllers: the next one reads what the last one wrote. Only these paths are ever
//! written: `transactions/actual-state.yaml`, `transactions/history/*-state.yaml`, and error files that a controller wrote.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use berth_git::Edit;
use berth_spec::Time;

use crate::{
    actual::{ACTUAL_STATE, ActualState, HISTORY, file_stamp},
    error_file::{ERRORS, Incident, Subject, subject_of},
};

/// How long things must not have changed before they are written. Halved, a rollout is many commits; doubled, people
/// learn of a failure that much later.
pub const DEBOUNCE: Duration = Duration::from_secs(10);

/// How long a difference waits at most while things keep changing: [`DEBOUNCE`] so many times.
const AT_MOST: u32 = 3;

/// First pause after a failed push; it doubles up to [`LONGEST_PAUSE`]. Halved, a host that is away is asked more often;
/// doubled, the first retry comes later.
const PAUSE: Duration = Duration::from_secs(2);

/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5 * 60);

/// Snapshots that are kept. Halved, half the past can be browsed; doubled, every commit's tree is twice as large.
pub const HISTORY_KEPT: usize = 200;

/// Error files that are written at most; more incidents are counted in the commit's message. Halved, an outage of many
/// models is not told whole; doubled, nobody reads them.
pub const MOST_ERRORS: usize = 500;

/// The trailer with the desired commit.
pub const DESIRED_COMMIT: &str = "Berth-Desired-Commit";

/// The trailer with the cluster that wrote.
pub const WRITER: &str = "Berth-Writer";

/// Whether a controller writes this path.
#[must_use]
pub fn is_own(path: &str) -> bool {
    path == ACTUAL_STATE || path.starts_with(HISTORY) || (path.starts_with(ERRORS) && path.ends_with(".yaml"))
}

/// What a branch holds of ours.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// `transactions/actual-state.yaml`, if it is there.
    pub state: Option<String>,
    /// Error files: path and text.
    pub errors: Vec<(String, String)>,
    /// Paths of the snapshots.
    pub history: Vec<String>,
}

/// What is true.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observed {
    /// What workers hold.
    pub state: ActualState,
    /// What somebody has to look at.
    pub incidents: Vec<Incident>,
    /// The commit that is in force.
    pub desired: Option<String>,
}

/// Files to be changed, as one commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Of files.
    pub edits: Vec<Edit>,
    /// Of the commit.
    pub message: String,
    /// Of the commit.
    pub trailers: Vec<(String, String)>,
}

/// What was read of the branch.
#[derive(Debug, Default)]
struct Branch {
    state: Option<ActualState>,
    /// By what they are about: path and text.
    errors: BTreeMap<Subject, (String, String)>,
    history: BTreeSet<String>,
}

/// The brain.
#[derive(Debug)]
pub struct WriteBack {
    interval: Duration,
    /// `None`: it has not been read yet.
    branch: Option<Branch>,
    observed: Option<Observed>,
    /// Since when it differs, and when it last changed.
    differs: Option<(Time, Time)>,
    wrote: Option<Time>,
    writing: bool,
    /// After failures: how many, and when to try again.
    failed: Option<(u32, Time)>,
}

impl WriteBack {
    /// `interval`: the shortest time between two commits.
    #[must_use]
    pub fn new(interval: Duration) -> Self {
        Self { interval, branch: None, observed: None, differs: None, wrote: None, writing: false, failed: None }
    }

    /// Another shortest time between two commits.
    pub fn set_interval(&mut self, interval: Duration) {
        self.interval = interval;
    }

    /// The branch was read: at the start, and when somebody else has written to it.
    pub fn found(&mut self, found: Found, now: Time) {
        let known = |(path, text): (String, String)| Some((subject_of(&text)?, (path, text)));
        self.branch = Some(Branch {
            state: found.state.as_deref().and_then(ActualState::read),
            errors: found.errors.into_iter().filter_map(known).collect(),
            history: found.history.into_iter().filter(|path| path.starts_with(HISTORY)).collect(),
        });
        self.compare(false, now);
    }

    /// The branch has to be read before anything is written.
    #[must_use]
    pub const fn wants_branch(&self) -> bool {
        self.branch.is_none()
    }

    /// Forgets the branch: somebody else wrote to it.
    pub fn forget_branch(&mut self) {
        self.branch = None;
    }

    /// This is true now.
    pub fn observed(&mut self, observed: Observed, now: Time) {
        let changed = self.observed.as_ref().is_none_or(|before| meaning(before) != meaning(&observed));
        self.observed = Some(observed);
        self.compare(changed, now);
    }

    /// When [`WriteBack::take`] may give something.
    #[must_use]
    pub fn wake_at(&self) -> Option<Time> {
        let (since, last) = self.differs.filter(|_| !self.writing)?;
        let quiet = (last + DEBOUNCE).min(since + DEBOUNCE * AT_MOST);
        let apart = self.wrote.map_or(Time::ZERO, |wrote| wrote + self.interval);
        let retry = self.failed.map_or(Time::ZERO, |(_, at)| at);
        Some(quiet.max(apart).max(retry))
    }

    /// What to write now, if it is time. [`WriteBack::done`] or [`WriteBack::failed`] must follow.
    pub fn take(&mut self, now: Time) -> Option<Change> {
        if self.wake_at()? > now {
            return None;
        }
        let change = self.change(now)?;
        self.writing = true;
        Some(change)
    }

    /// It was pushed, or was there already.
    pub fn done(&mut self, change: &Change, now: Time) {
        (self.writing, self.wrote, self.failed) = (false, Some(now), None);
        if let Some(branch) = &mut self.branch {
            branch.take_in(change);
        }
        self.compare(true, now);
    }

    /// It was not pushed.
    pub fn failed(&mut self, now: Time) {
        self.writing = false;
        let times = self.failed.map_or(0, |(times, _)| times);
        let pause = PAUSE.saturating_mul(1 << times.min(10)).min(LONGEST_PAUSE);
        self.failed = Some((times + 1, now + pause));
    }

    fn compare(&mut self, changed: bool, now: Time) {
        let differs = self.branch.is_some() && self.change(now).is_some();
        self.differs = match self.differs {
            _ if !differs => None,
            None => Some((now, now)),
            Some((since, _)) if changed => Some((since, now)),
            same => same,
        };
    }

    fn change(&self, now: Time) -> Option<Change> {
        let (branch, observed) = (self.branch.as_ref()?, self.observed.as_ref()?);
        let before = branch.state.clone().unwrap_or_default();
        let state_differs = branch.state.is_none() || before.meaning() != observed.state.meaning();
        let (mut edits, mut told) = error_edits(branch, &observed.incidents);
        if state_differs {
            told.insert(0, format!("state: {}", observed.state.told_since(&before)));
            let text = observed.state.to_yaml(now).into_bytes();
            let snapshot = format!("{HISTORY}{}-state.yaml", file_stamp(now));
            edits.extend(old_snapshots(&branch.history, &snapshot).map(|path| Edit { path, content: None }));
            edits.push(Edit { path: snapshot, content: Some(text.clone()) });
            edits.push(Edit { path: ACTUAL_STATE.to_owned(), content: Some(text) });
        }
        let first = told.first()?.clone();
        let message = if told.len() == 1 { first } else { format!("{first}\n\n{}", told[1..].join("\n")) };
        let trailers = observed.desired.iter().map(|commit| (DESIRED_COMMIT.to_owned(), commit.clone())).collect();
        Some(Change { edits, message, trailers })
    }
}

impl Branch {
    fn take_in(&mut self, change: &Change) {
        for edit in &change.edits {
            let text = edit.content.as_ref().map(|content| String::from_utf8_lossy(content).into_owned());
            match text {
                Some(text) if edit.path == ACTUAL_STATE => self.state = ActualState::read(&text),
                Some(_) if edit.path.starts_with(HISTORY) => drop(self.history.insert(edit.path.clone())),
                Some(text) => {
                    if let Some(subject) = subject_of(&text) {
                        self.errors.insert(subject, (edit.path.clone(), text));
                    }
                }
                None => {
                    self.history.remove(&edit.path);
                    self.errors.retain(|_, (path, _)| *path != edit.path);
                }
            }
        }
    }
}

/// What is written when it changes.
fn meaning(observed: &Observed) -> (ActualState, &[Incident]) {
    (observed.state.meaning(), &observed.incidents)
}

/// The oldest snapshots that have to go for one more.
fn old_snapshots(history: &BTreeSet<String>, new: &str) -> impl Iterator<Item = String> {
    let kept = history.iter().filter(|path| *path != new).count() + 1;
    let mut old: Vec<String> = history.iter().filter(|path| *path != new).cloned().collect();
    old.truncate(kept.saturating_sub(HISTORY_KEPT));
    old.into_iter()
}

/// Error files that are new, changed or over, and a line about each of them.
fn error_edits(branch: &Branch, incidents: &[Incident]) -> (Vec<Edit>, Vec<String>) {
    let (mut edits, mut told) = (Vec::new(), Vec::new());
    let mut taken: BTreeSet<String> = branch.errors.values().map(|(path, _)| path.clone()).collect();
    for incident in incidents.iter().take(MOST_ERRORS) {
        let text = incident.to_yaml();
        let path = match branch.errors.get(&incident.subject) {
            Some((path, old)) => {
                let text = with_time_of(&text, old);
                if text != *old {
                    told.push(format!("errors: {} is now: {}", about(&incident.subject), one_line(&incident.message)));
                    edits.push(Edit { path: path.clone(), content: Some(text.into_bytes()) });
                }
                continue;
            }
            None => free(&incident.file_name(), &taken),
        };
        told.push(format!("errors: {}: {}", about(&incident.subject), one_line(&incident.message)));
        taken.insert(path.clone());
        edits.push(Edit { path, content: Some(text.into_bytes()) });
    }
    let still: BTreeSet<&Subject> = incidents.iter().map(|incident| &incident.subject).collect();
    for (subject, (path, _)) in branch.errors.iter().filter(|(subject, _)| !still.contains(subject)) {
        told.push(format!("errors: {} is resolved", about(subject)));
        edits.push(Edit { path: path.clone(), content: None });
    }
    if incidents.len() > MOST_ERRORS && !edits.is_empty() {
        told.push(format!("errors: {} more have no file", incidents.len() - MOST_ERRORS));
    }
    (edits, told)
}

/// The text with the first line of the old one, which says when it began.
fn with_time_of(text: &str, old: &str) -> String {
    match (old.split_once('\n'), text.split_once('\n')) {
        (Some((time, _)), Some((_, rest))) if time.starts_with("timestamp:") => format!("{time}\n{rest}"),
        _ => text.to_owned(),
    }
}

/// A path that nobody has: two things may go wrong in one second.
fn free(path: &str, taken: &BTreeSet<String>) -> String {
    let stem = path.trim_end_matches(".yaml");
    let numbered = (2..).map(|n| format!("{stem}-{n}.yaml"));
    std::iter::once(path.to_owned()).chain(numbered).find(|path| !taken.contains(path)).unwrap_or_default()
}

fn about(subject: &Subject) -> String {
    let mut text = subject.kind.words().to_owned();
    let short = subject.commit.as_ref().map(|sha| sha.chars().take(12).collect::<String>());
    for (word, value) in [(" of ", &subject.deployment), (" on ", &subject.worker), (" ", &short)] {
        if let Some(value) = value {
            text.push_str(word);
            text.push_str(value);
        }
    }
    text
}

fn one_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        actual::{CapacityUsed, ModelEntry, ModelState, WorkerEntry, WorkerHealth},
        error_file::{IncidentKind, IncidentSeverity},
    };

    fn at(seconds: u64) -> Time {
        Time(1_761_648_000_000_000_000) + Duration::from_secs(seconds)
    }

    fn observed(status: ModelState, failures: &[&str]) -> Observed {
        let model = ModelEntry {
            deployment_id: "iris".to_owned(),
            status,
            model_version: "1.0.0".to_owned(),
            loaded_at: None,
            last_inference: None,
            request_count: None,
            loading_started: None,
            progress: None,
            error: None,
            failed_at: None,
            retry_count: None,
        };
        let worker = WorkerEntry {
            worker_id: "a".to_owned(),
            status: WorkerHealth::Healthy,
            last_heartbeat: None,
            capacity: CapacityUsed::default(),
            models: vec![model],
        };
        let incident = |deployment: &&str| Incident {
            subject: Subject {
                kind: IncidentKind::LoadFailure,
                deployment: Some((*deployment).to_owned()),
                worker: Some("a".to_owned()),
                commit: None,
            },
            severity: IncidentSeverity::High,
            at: at(0),
            card: None,
            worker_status: None,
            author: None,
            category: "code".to_owned(),
            message: "it raised".to_owned(),
            details: String::new(),
            trace: None,
            attempts: 1,
            next_retry: None,
            actions: Vec::new(),
        };
        Observed {
            state: ActualState { workers: vec![worker] },
            incidents: failures.iter().map(incident).collect(),
            desired: Some("c".repeat(40)),
        }
    }

    fn paths(change: &Change) -> Vec<(&str, bool)> {
        change.edits.iter().map(|edit| (edit.path.as_str(), edit.content.is_some())).collect()
    }

    #[test]
    fn it_waits_for_quiet_writes_once_and_keeps_its_distance() {
        let mut brain = WriteBack::new(Duration::from_secs(30));
        brain.observed(observed(ModelState::Loading, &[]), at(0));
        assert!(brain.wants_branch() && brain.wake_at().is_none(), "nobody knows what is there");
        brain.found(Found::default(), at(0));
        assert_eq!(brain.wake_at(), Some(at(10)));
        brain.observed(observed(ModelState::Ready, &[]), at(6));
        assert_eq!((brain.take(at(10)), brain.wake_at()), (None, Some(at(16))));
        let change = brain.take(at(16)).expect("a change");
        assert_eq!(
            paths(&change),
            [("transactions/history/2025-10-28T10-40-16-state.yaml", true), (ACTUAL_STATE, true)]
        );
        assert!(change.message.starts_with("state: a is healthy, iris 1.0.0 is ready on a"), "{}", change.message);
        assert_eq!(change.trailers, [(DESIRED_COMMIT.to_owned(), "c".repeat(40))]);
        assert!(brain.take(at(17)).is_none(), "one at a time");
        brain.done(&change, at(17));
        assert_eq!(brain.wake_at(), None, "nothing differs");
        brain.observed(observed(ModelState::Failed, &["iris"]), at(20));
        assert_eq!(brain.wake_at(), Some(at(47)), "30 s after the last one");
    }

    #[test]
    fn heartbeats_are_no_reason_and_restlessness_no_excuse() {
        let mut brain = WriteBack::new(Duration::ZERO);
        brain.found(Found::default(), at(0));
        brain.observed(observed(ModelState::Ready, &[]), at(0));
        let change = brain.take(at(10)).expect("a change");
        brain.done(&change, at(10));
        let mut next = observed(ModelState::Ready, &[]);
        next.state.workers[0].last_heartbeat = Some("later".to_owned());
        next.state.workers[0].models[0].request_count = Some(7);
        brain.observed(next, at(20));
        assert_eq!(brain.wake_at(), None);
        for second in 0..40 {
            let state = if second % 2 == 0 { ModelState::Loading } else { ModelState::Failed };
            brain.observed(observed(state, &[]), at(100 + second));
        }
        assert_eq!(brain.wake_at(), Some(at(130)));
    }

    #[test]
    fn errors_get_a_file_each_and_lose_it_again_also_under_the_next_controller() {
        let mut brain = WriteBack::new(Duration::ZERO);
        brain.found(Found::default(), at(0));
        brain.observed(observed(ModelState::Ready, &["iris", "rose"]), at(0));
        let change = brain.take(at(10)).expect("a change");
        let errors: Vec<_> = paths(&change).into_iter().filter(|(path, _)| path.starts_with(ERRORS)).collect();
        let (first, second) =
            ("errors/2025-10-28T10-40-00-load-failure.yaml", "errors/2025-10-28T10-40-00-load-failure-2.yaml");
        assert_eq!(errors, [(first, true), (second, true)]);
        // Another controller reads what this one wrote.
        let text = |edit: &Edit| String::from_utf8(edit.content.clone().expect("a text")).expect("UTF-8");
        let found = Found {
            state: change.edits.iter().find(|edit| edit.path == ACTUAL_STATE).map(text),
            errors: change
                .edits
                .iter()
                .filter(|edit| edit.path.starts_with(ERRORS))
                .map(|edit| (edit.path.clone(), text(edit)))
                .collect(),
            history: vec![],
        };
        let mut next = WriteBack::new(Duration::ZERO);
        next.found(found, at(100));
        let mut same = observed(ModelState::Ready, &["iris", "rose"]);
        same.incidents[0].at = at(99);
        next.observed(same, at(100));
        assert_eq!(next.wake_at(), None, "the same things, first seen later");
        let mut again = observed(ModelState::Ready, &["iris"]);
        again.incidents[0].attempts = 2;
        next.observed(again, at(101));
        let change = next.take(at(111)).expect("a change");
        assert_eq!(paths(&change), [(first, true), (second, false)]);
        assert!(
            text(&change.edits[0]).starts_with("timestamp: ")
                && text(&change.edits[0]).contains("2025-10-28T10:40:00Z")
        );
        assert!(change.message.contains("model load failure of rose on a is resolved"), "{}", change.message);
    }

    #[test]
    fn failures_are_tried_again_more_and_more_slowly() {
        let mut brain = WriteBack::new(Duration::ZERO);
        brain.found(Found::default(), at(0));
        brain.observed(observed(ModelState::Ready, &[]), at(0));
        let mut waits = Vec::new();
        for _ in 0..12 {
            let now = brain.wake_at().expect("it is tried again");
            brain.take(now).expect("a change");
            brain.failed(now);
            waits.push(brain.wake_at().expect("again").since(now).as_secs());
        }
        assert_eq!((waits[0], waits[1], waits[11]), (2, 4, 300));
    }

    #[test]
    fn the_past_is_bounded() {
        let mut brain = WriteBack::new(Duration::ZERO);
        let history =
            (0..HISTORY_KEPT + 5).map(|n| format!("{HISTORY}2024-01-01T00-00-00-{n:04}-state.yaml")).collect();
        brain.found(Found { history, ..Found::default() }, at(0));
        brain.observed(observed(ModelState::Ready, &[]), at(0));
        let change = brain.take(at(10)).expect("a change");
        let gone = change.edits.iter().filter(|edit| edit.content.is_none()).count();
        assert_eq!(gone, 6, "200 with the new one");
        assert!(change.edits.iter().all(|edit| is_own(&edit.path)));
    }
}
