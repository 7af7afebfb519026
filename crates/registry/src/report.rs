//! Result of a validation.

use std::collections::BTreeSet;

use berth_git::{CommitInfo, Signer};

use crate::{
    Desired,
    problem::{Audience, Outcome, Problem},
};

/// Result of validating a commit or folder.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The commit; `None` for a folder.
    pub commit: Option<CommitInfo>,
    /// Signer, by a trusted key; `None` where no signature is required or valid.
    pub signer: Option<Signer>,
    /// Outcome, decided by the first step with an error.
    pub outcome: Outcome,
    /// Errors and warnings, by step, file and place.
    pub problems: Vec<Problem>,
    /// Desired state, if the commit and its cards passed.
    pub desired: Option<Desired>,
    /// Ids of the deployments that it wants no replica of, if nothing is wrong with the registry's own files: that can be
    /// known before, and without, what is said by model cards.
    pub idle: Option<Vec<String>>,
    /// Numbers of checked files.
    pub counts: Counts,
    /// Cards were not looked at.
    pub offline: bool,
}

/// Numbers of checked files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Manifests of deployments, those with errors included.
    pub manifests: usize,
    /// Number of worker configurations.
    pub workers: usize,
    /// Number of different model cards.
    pub cards: usize,
    /// Files that had to be parsed: the others were known from earlier passes.
    pub parsed: usize,
    /// Problems that are not in the report, because there are too many.
    pub omitted: usize,
}

/// Problems kept in one report. Bounds its memory; nobody reads more.
const MOST_PROBLEMS: usize = 2_000;

impl Report {
    pub(crate) fn new(mut problems: Vec<Problem>, mut counts: Counts, offline: bool) -> Self {
        let key = |p: &Problem| (p.step, p.severity, p.file.clone(), p.line, p.column);
        problems.sort_by_cached_key(key);
        problems.dedup();
        let first = problems.iter().find(|problem| problem.is_error());
        let outcome = first.map_or(Outcome::Accepted, |problem| problem.outcome);
        // Errors outlive warnings.
        if problems.len() > MOST_PROBLEMS {
            counts.omitted = problems.len() - MOST_PROBLEMS;
            problems.sort_by_key(|problem| problem.severity);
            problems.truncate(MOST_PROBLEMS);
        }
        Self { commit: None, signer: None, outcome, problems, desired: None, idle: None, counts, offline }
    }

    /// True if no problem rejects the commit.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        self.outcome == Outcome::Accepted
    }

    /// Problems that reject the commit.
    pub fn errors(&self) -> impl Iterator<Item = &Problem> {
        self.problems.iter().filter(|problem| problem.is_error())
    }

    /// Problems that deserve attention.
    pub fn warnings(&self) -> impl Iterator<Item = &Problem> {
        self.problems.iter().filter(|problem| !problem.is_error())
    }

    /// True if the same commit may pass later without anybody acting, because all errors are transient.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        !self.is_accepted() && self.errors().all(|problem| problem.transient)
    }

    /// Audiences that can mend its problems.
    #[must_use]
    pub fn audience(&self) -> BTreeSet<Audience> {
        self.errors().flat_map(|problem| problem.audience().iter().copied()).collect()
    }
}
