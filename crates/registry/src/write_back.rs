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

mod branch;

use std::{collections::BTreeSet, time::Duration};

use berth_git::Edit;
use berth_spec::Time;

use self::branch::Branch;
use crate::{
    actual::{ACTUAL_STATE, ActualState, HISTORY},
    error_file::{ERRORS, ErrorFile, Incident, Subject},
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

/// Error files that there are at most; more incidents are counted in the commit's message. Halved, an outage of many
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
pub struct BranchContents {
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
    /// What the controller before has written down, and of which this one does not know yet whether it is over: the
    /// files stay as they are.
    pub open: BTreeSet<Subject>,
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
    pub fn found(&mut self, found: BranchContents, now: Time) {
        self.branch = Some(Branch::read(found));
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
            branch.take_in(&change.edits);
        }
        self.compare(true, now);
    }

    /// It was not tried, since the branch is not as it was.
    pub fn untaken(&mut self) {
        self.writing = false;
    }

    /// It was not pushed.
    pub fn failed(&mut self, now: Time) {
        self.writing = false;
        let times = self.failed.map_or(0, |(times, _)| times);
        let pause = PAUSE.saturating_mul(1 << times.min(10)).min(LONGEST_PAUSE);
        self.failed = Some((times + 1, now + pause));
    }

    fn compare(&mut self, changed: bool, now: Time) {
        self.differs = match self.differs {
            _ if !self.is_different() => None,
            None => Some((now, now)),
            Some((since, _)) if changed => Some((since, now)),
            same => same,
        };
    }

    fn is_different(&self) -> bool {
        let (Some(branch), Some(observed)) = (&self.branch, &self.observed) else { return false };
        branch.differs(&observed.state) || !branch.turns(observed).0.is_empty()
    }

    fn change(&self, now: Time) -> Option<Change> {
        let (branch, observed) = (self.branch.as_ref()?, self.observed.as_ref()?);
        let (mut edits, mut told) = branch.error_edits(observed);
        if branch.differs(&observed.state) {
            let before = branch.state.clone().unwrap_or_default();
            told.insert(0, format!("state: {}", observed.state.told_since(&before)));
            edits.extend(branch.state_edits(&observed.state, now));
        }
        let first = told.first()?.clone();
        let message = if told.len() == 1 { first } else { format!("{first}\n\n{}", told[1..].join("\n")) };
        let trailers = observed.desired.iter().map(|commit| (DESIRED_COMMIT.to_owned(), commit.clone())).collect();
        Some(Change { edits, message, trailers })
    }
}

/// What is written when it changes.
fn meaning(observed: &Observed) -> (ActualState, Vec<ErrorFile>) {
    (observed.state.meaning(), observed.incidents.iter().map(|incident| ErrorFile::of(incident).meaning()).collect())
}

#[cfg(test)]
mod tests;
