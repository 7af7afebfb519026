//! Commits in words: why one was refused, who wrote it, what it changes.

use std::collections::BTreeSet;

use berth_git::CommitInfo;
use berth_registry::{
    Audience, Change, Desired, Outcome, Report,
    error_file::{Incident, IncidentKind, IncidentSeverity, Subject},
};
use berth_spec::Time;

use crate::status::incident::blank;

/// Problems of a commit that are told: a message stays readable, and a bad commit is mended in few steps.
const MOST_PROBLEMS: usize = 50;

/// A commit that was refused.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) commit: String,
    pub(crate) author: String,
    pub(crate) outcome: Outcome,
    /// The problems, each in one line.
    pub(crate) problems: Vec<String>,
    pub(crate) audience: BTreeSet<Audience>,
    /// True if the reason may pass by itself.
    pub(crate) passing: bool,
    pub(crate) at: Time,
    /// When it is validated again, if what is wrong may pass.
    pub(crate) again: Option<Time>,
}

impl Refusal {
    pub(crate) fn new(report: &Report, info: &CommitInfo, at: Time) -> Self {
        let mut problems: Vec<String> = report.errors().take(MOST_PROBLEMS).map(ToString::to_string).collect();
        let all = report.errors().count();
        if all > MOST_PROBLEMS {
            problems.push(format!("and {} more", all - MOST_PROBLEMS));
        }
        Self {
            commit: info.oid.to_string(),
            author: author(info),
            outcome: report.outcome,
            problems,
            audience: report.audience(),
            passing: report.is_transient(),
            at,
            again: None,
        }
    }

    /// The outcome as people write it: `unpinned-ref`.
    pub(crate) fn outcome_word(&self) -> String {
        self.outcome.name().replace('_', "-")
    }

    /// The outcome and the first problem in one line.
    pub(crate) fn summary(&self) -> String {
        let first = self.problems.first().map(String::as_str).unwrap_or_default();
        format!("{}: {first}", self.outcome_word())
    }

    pub(crate) fn incident(&self) -> Incident {
        // The settings of the registry say who is told, and the notifier sends.
        let actions = vec!["Rejected the commit; the last good commit stays in force".to_owned()];
        let blank = blank(IncidentKind::ValidationError, None, None);
        Incident {
            subject: Subject { commit: Some(self.commit.clone()), ..blank.subject },
            severity: IncidentSeverity::High,
            at: self.at,
            author: Some(self.author.clone()),
            category: self.outcome_word(),
            message: format!("the commit is rejected: {}", self.outcome.words()),
            details: self.problems.join("\n"),
            next_retry: self.again,
            actions,
            ..blank
        }
    }
}

/// `Name <address>`.
pub(crate) fn author(info: &CommitInfo) -> String {
    format!("{} <{}>", info.author.name, info.author.email)
}

/// The signer as `NAME (FINGERPRINT)`; empty where no signature is asked for.
pub(crate) fn signer(desired: &Desired) -> String {
    desired.signer.as_ref().map_or_else(String::new, |signer| format!("{} ({})", signer.name, signer.key))
}

/// The changes in a line for each deployment, for the audit.
pub(crate) fn changes(desired: &Desired, before: Option<&Desired>) -> Vec<String> {
    let Some(before) = before else { return Vec::new() };
    let line = |change: &Change| match change {
        Change::Added { id } => format!("{id} added"),
        Change::Removed { id } => format!("{id} removed"),
        Change::Version { id, before, after } => format!("{id} {} -> {}", before.0, after.0),
        Change::Scale { id, before, after } => format!("{id} {before} -> {after} replicas"),
        Change::Disabled { id } => format!("{id} disabled"),
        Change::Enabled { id } => format!("{id} enabled"),
        Change::Settings { id } => format!("{id} changed"),
    };
    desired.changes_since(before).iter().map(line).collect()
}
