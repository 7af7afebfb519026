//! Commits and incidents in words: for logs, events and messages.

use std::collections::BTreeSet;

use berth_git::CommitInfo;
use berth_registry::{
    Audience, Change, Desired, Outcome, Report,
    error_file::{Incident, IncidentKind, IncidentSeverity, Subject},
    notify::{Notice, Recipient},
    settings::NotificationSeverity,
};
use berth_spec::Time;

use crate::status::{alert_log::Transition, incident::blank};

/// Problems of a commit that are told: a message stays readable, and a bad commit is mended in few steps.
const MOST_PROBLEMS: usize = 50;

/// A commit that was refused.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) commit: String,
    pub(crate) author: String,
    pub(crate) outcome: Outcome,
    /// In one line each.
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

    /// In one line.
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

/// A message about a transition; `owners`: of the model.
pub(crate) fn notice(transition: &Transition, owners: Vec<String>, audience: &BTreeSet<Audience>, now: Time) -> Notice {
    let Transition { incident, workers, over, .. } = transition;
    let Subject { kind, deployment, worker, commit } = &incident.subject;
    let place = (!workers.is_empty()).then(|| places(workers));
    let named = [("deployment", deployment), ("worker", &place), ("commit", commit)];
    let mut facts: Vec<(String, String)> =
        named.iter().filter_map(|(name, value)| Some(((*name).to_owned(), value.as_ref()?.clone()))).collect();
    facts.extend(incident.author.iter().map(|author| ("author".to_owned(), author.clone())));
    if !over {
        let advice = incident.recommended_actions();
        facts.extend(advice.first().map(|first| ("recommended".to_owned(), first.clone())));
    }
    let mut recipients = vec![Recipient::Ops];
    // A model that fails by its own doing is its owners' to mend.
    let theirs = incident.load_category().is_some_and(|category| {
        use berth_spec::residency::FailureCategory as C;
        matches!(
            category,
            C::Checksum | C::InvalidModel | C::Schema | C::Dependencies | C::Code | C::Validation | C::NotFound
        )
    });
    // Whoever heard of the beginning hears of the end: the deduplicator of each target knows.
    if *over || theirs || audience.contains(&Audience::Ml) {
        recipients.push(Recipient::Ml);
    }
    let about: Vec<&str> = named.iter().filter_map(|(_, value)| value.as_deref()).collect();
    // The same thing has the same subject, wherever it is just now.
    let subject: Vec<&str> = [deployment, worker, commit].iter().filter_map(|value| value.as_deref()).collect();
    Notice {
        kind: kind.file_word().to_owned(),
        subject: subject.join("/"),
        severity: match incident.severity {
            IncidentSeverity::Medium => NotificationSeverity::Warning,
            IncidentSeverity::High => NotificationSeverity::Error,
            IncidentSeverity::Critical => NotificationSeverity::Critical,
        },
        recipients,
        owners,
        at: now,
        title: format!("{} ({}): {}", kind.words(), about.join(", "), incident.message),
        text: incident.details.clone(),
        facts,
        resolved: *over,
    }
}

/// Workers by name, as far as somebody reads them.
fn places(workers: &[String]) -> String {
    /// Names in a title: more of them would make it a list.
    const MOST: usize = 5;
    let names = workers.iter().take(MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
    if workers.len() > MOST { format!("{names} and {} more", workers.len() - MOST) } else { names }
}
