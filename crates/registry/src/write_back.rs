//! Write-back of the actual state: a brain that compares the observed state with the branch and decides which files
//! to change.
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

/// Time without changes before a write. Groups a rollout into few commits.
pub const DEBOUNCE: Duration = Duration::from_secs(10);

/// Longest delay while changes continue, in multiples of [`DEBOUNCE`].
const AT_MOST: u32 = 3;

/// First pause after a failed push; doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(2);

/// Longest pause between pushes to a host that is away. Bounds the time until its return is noticed.
const LONGEST_PAUSE: Duration = Duration::from_secs(5 * 60);

/// Snapshots kept on the branch. Bounds the size of its tree.
pub const HISTORY_KEPT: usize = 200;

/// Most error files. Further incidents are counted in the commit message.
pub const MOST_ERRORS: usize = 500;

/// The trailer with the registry's commit that the state was written under.
pub const DESIRED_COMMIT: &str = "Berth-Desired-Commit";

/// The trailer with the cluster that wrote.
pub const WRITER: &str = "Berth-Writer";

/// True if controllers write this path.
#[must_use]
pub fn is_own(path: &str) -> bool {
    path == ACTUAL_STATE || path.starts_with(HISTORY) || (path.starts_with(ERRORS) && path.ends_with(".yaml"))
}

/// Contents of the branch that controllers write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BranchContents {
    /// `transactions/actual-state.yaml`, if it is there.
    pub state: Option<String>,
    /// Error files: path and text.
    pub errors: Vec<(String, String)>,
    /// Paths of the snapshots.
    pub history: Vec<String>,
}

/// Observed state of the fleet.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observed {
    /// Models held by workers.
    pub state: ActualState,
    /// Incidents that need attention.
    pub incidents: Vec<Incident>,
    /// Incidents recorded by an earlier controller that this one cannot judge yet. Their files stay unchanged.
    pub open: BTreeSet<Subject>,
    /// The commit that is in force.
    pub desired: Option<String>,
}

/// Files to be changed, as one commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Changes to files.
    pub edits: Vec<Edit>,
    /// Message of the commit: a summary line, then the changes.
    pub message: String,
    /// Trailers as name and value, for the end of the message.
    pub trailers: Vec<(String, String)>,
}

/// Decides when the branch is written, and with which files.
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

    /// Takes the content of the branch, at the start and after another writer changed it.
    pub fn found(&mut self, found: BranchContents, now: Time) {
        self.branch = Some(Branch::read(found));
        self.compare(false, now);
    }

    /// The branch has to be read before anything is written.
    #[must_use]
    pub const fn wants_branch(&self) -> bool {
        self.branch.is_none()
    }

    /// Forgets the content of the branch after another writer changed it.
    pub fn forget_branch(&mut self) {
        self.branch = None;
    }

    /// Takes what the fleet looks like now, in place of what was observed before.
    pub fn observed(&mut self, observed: Observed, now: Time) {
        let changed = self.observed.as_ref().is_none_or(|before| meaning(before) != meaning(&observed));
        self.observed = Some(observed);
        self.compare(changed, now);
    }

    /// Time at which [`WriteBack::take`] may return a change.
    #[must_use]
    pub fn wake_at(&self) -> Option<Time> {
        let (since, last) = self.differs.filter(|_| !self.writing)?;
        let quiet = (last + DEBOUNCE).min(since + DEBOUNCE * AT_MOST);
        let apart = self.wrote.map_or(Time::ZERO, |wrote| wrote + self.interval);
        let retry = self.failed.map_or(Time::ZERO, |(_, at)| at);
        Some(quiet.max(apart).max(retry))
    }

    /// Returns the change to write, if it is due. [`WriteBack::done`] or [`WriteBack::failed`] must follow.
    pub fn take(&mut self, now: Time) -> Option<Change> {
        if self.wake_at()? > now {
            return None;
        }
        let change = self.change(now)?;
        self.writing = true;
        Some(change)
    }

    /// Records a successful push, or a branch that already had the content.
    pub fn done(&mut self, change: &Change, now: Time) {
        (self.writing, self.wrote, self.failed) = (false, Some(now), None);
        if let Some(branch) = &mut self.branch {
            branch.take_in(&change.edits);
        }
        self.compare(true, now);
    }

    /// Records that nothing was tried because the branch has moved.
    pub fn untaken(&mut self) {
        self.writing = false;
    }

    /// Records a failed push.
    pub fn failed(&mut self, now: Time) {
        self.writing = false;
        let times = self.failed.map_or(0, |(times, _)| times);
        let pause = FIRST_PAUSE.saturating_mul(1 << times.min(10)).min(LONGEST_PAUSE);
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
        branch.differs(&observed.state) || !branch.file_actions(observed).0.is_empty()
    }

    fn change(&self, now: Time) -> Option<Change> {
        let (branch, observed) = (self.branch.as_ref()?, self.observed.as_ref()?);
        let (mut edits, mut told) = branch.error_edits(observed);
        if branch.differs(&observed.state) {
            let before = branch.state.clone().unwrap_or_default();
            told.insert(0, format!("state: {}", observed.state.changes_since(&before)));
            edits.extend(branch.state_edits(&observed.state, now));
        }
        let first = told.first()?.clone();
        let message = if told.len() == 1 { first } else { format!("{first}\n\n{}", told[1..].join("\n")) };
        let trailers = observed.desired.iter().map(|commit| (DESIRED_COMMIT.to_owned(), commit.clone())).collect();
        Some(Change { edits, message, trailers })
    }
}

/// Content compared to decide if a write is needed.
fn meaning(observed: &Observed) -> (ActualState, Vec<ErrorFile>) {
    (observed.state.meaning(), observed.incidents.iter().map(|incident| ErrorFile::of(incident).meaning()).collect())
}

#[cfg(test)]
mod tests;
