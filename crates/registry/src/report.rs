//! What validation found, as a whole.

use std::collections::BTreeSet;

use berth_git::{CommitInfo, Signer};

use crate::{
    Desired,
    problem::{Audience, Outcome, Problem},
};

/// What validation found.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The commit; `None` for a folder.
    pub commit: Option<CommitInfo>,
    /// Who signed it, by a key that the registry trusts; `None` where it asks for no signatures, or there is no good one.
    pub signer: Option<Signer>,
    /// What is made of it: that of the first step with an error.
    pub outcome: Outcome,
    /// Errors and warnings, by step, file and place.
    pub problems: Vec<Problem>,
    /// What the commit wants, if it passed with its cards.
    pub desired: Option<Desired>,
    /// Ids of the deployments that it wants no replica of, if nothing is wrong with the registry's own files: that can be
    /// known before, and without, what is said by model cards.
    pub idle: Option<Vec<String>>,
    /// What was looked at.
    pub counts: Counts,
    /// Cards were not looked at.
    pub offline: bool,
}

/// What was looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Manifests.
    pub manifests: usize,
    /// Worker configurations.
    pub workers: usize,
    /// Different model cards.
    pub cards: usize,
    /// Files that had to be parsed: the others were known from earlier passes.
    pub parsed: usize,
    /// Problems that are not in the report, because there are too many.
    pub omitted: usize,
}

/// Problems in one report. Halved, somebody mends a registry that is wrong all over in more rounds; doubled, reports
/// that nobody reads take twice the memory.
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

    /// Whether nothing rejects the commit.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        self.outcome == Outcome::Accepted
    }

    /// What rejects the commit.
    pub fn errors(&self) -> impl Iterator<Item = &Problem> {
        self.problems.iter().filter(|problem| problem.is_error())
    }

    /// What somebody should look at.
    pub fn warnings(&self) -> impl Iterator<Item = &Problem> {
        self.problems.iter().filter(|problem| !problem.is_error())
    }

    /// Whether the same commit may pass later without anybody acting: all errors are of that kind.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        !self.is_accepted() && self.errors().all(|problem| problem.transient)
    }

    /// Who is told.
    #[must_use]
    pub fn audience(&self) -> BTreeSet<Audience> {
        self.errors().flat_map(|problem| problem.audience().iter().copied()).collect()
    }
}
