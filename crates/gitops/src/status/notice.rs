//! Messages to people about incidents.

use std::collections::BTreeSet;

use berth_registry::{
    Audience,
    error_file::{IncidentSeverity, Subject},
    notify::{Notice, Recipient},
    settings::NotificationSeverity,
};
use berth_spec::{FailureCategory, Time};

use super::alert_log::Transition;

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
    let theirs = incident.load_category().is_some_and(FailureCategory::is_the_models);
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
