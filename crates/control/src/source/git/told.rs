//! What people were told of: what is new or worse is told, once; what is over is told, too. Pure.
//!
//! ```text
//!            seen: told                 not seen for a while: told
//! (nothing) ───────────▶ Told ◀──seen── Missing ─────────────────────▶ (nothing)
//!                          └──not seen────▲
//! ```
//! One matter is one message, however many workers have the same trouble with one deployment. What was told is kept in
//! the store, so that the next leader neither repeats it nor forgets to say that it is over.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use berth_registry::error_file::{Incident, IncidentKind, IncidentSeverity, Subject};
use berth_spec::Time;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::incident::blank;

/// How long something must not have been seen before it is over. Halved, what comes and goes is told twice as often;
/// doubled, people learn that much later that it is over.
const QUIET: Duration = Duration::from_secs(30);

/// Matters that are kept in the store. Beyond that a new leader tells some again; doubled, the value is 0.5 MiB at most.
const MOST: usize = 500;

/// Characters of a message that are kept.
const LONGEST: usize = 200;

/// The number of the stored form.
const FORM: u32 = 1;

/// All that people were told of.
#[derive(Debug, Default)]
pub(super) struct Told {
    matters: BTreeMap<Subject, Matter>,
    /// It differs from what is in the store.
    changed: bool,
}

#[derive(Debug, Clone)]
struct Matter {
    severity: IncidentSeverity,
    message: String,
    /// Since when it is not seen.
    missing: Option<Time>,
}

/// Something to tell.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct News {
    /// The worst of it.
    pub(super) incident: Incident,
    /// Where it is so.
    pub(super) workers: Vec<String>,
    pub(super) over: bool,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    v: u32,
    matters: Vec<StoredMatter>,
}

#[derive(Serialize, Deserialize)]
struct StoredMatter {
    kind: IncidentKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deployment: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    worker: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    commit: Option<String>,
    severity: IncidentSeverity,
    message: String,
}

/// What one message is about: of loads the deployment alone.
fn matter_of(subject: &Subject) -> Subject {
    match subject.kind {
        IncidentKind::LoadFailure => Subject { worker: None, ..subject.clone() },
        _ => subject.clone(),
    }
}

impl Told {
    /// From what is in the store; what cannot be understood is told anew.
    pub(super) fn read(value: &[u8]) -> Self {
        let stored = serde_json::from_slice::<Stored>(value).ok().filter(|stored| stored.v == FORM);
        let matter = |StoredMatter { kind, deployment, worker, commit, severity, message }: StoredMatter| {
            (Subject { kind, deployment, worker, commit }, Matter { severity, message, missing: None })
        };
        let matters = stored.into_iter().flat_map(|stored| stored.matters).map(matter).collect();
        Self { matters, changed: false }
    }

    /// What has to be in the store, if it is not. [`Told::kept`] must follow.
    pub(super) fn unkept(&self) -> Option<Bytes> {
        if !self.changed {
            return None;
        }
        let matter = |(subject, matter): (&Subject, &Matter)| StoredMatter {
            kind: subject.kind,
            deployment: subject.deployment.clone(),
            worker: subject.worker.clone(),
            commit: subject.commit.clone(),
            severity: matter.severity,
            message: matter.message.clone(),
        };
        let stored = Stored { v: FORM, matters: self.matters.iter().take(MOST).map(matter).collect() };
        serde_json::to_vec(&stored).ok().map(Bytes::from)
    }

    /// It is in the store.
    pub(super) fn kept(&mut self) {
        self.changed = false;
    }

    /// People know of this, though the store does not: it is in an error file.
    pub(super) fn know(&mut self, subject: &Subject, severity: IncidentSeverity, message: &str) {
        self.matters.entry(matter_of(subject)).or_insert_with(|| {
            self.changed = true;
            Matter { severity, message: message.chars().take(LONGEST).collect(), missing: None }
        });
    }

    /// All that people know of, as it was told.
    pub(super) fn all(&self) -> impl Iterator<Item = Incident> {
        self.matters.iter().map(|(subject, matter)| last_word(subject, matter))
    }

    /// What is to be told after a look. `open`: what may still be so, though it is not seen.
    pub(super) fn look(&mut self, incidents: &[Incident], open: &BTreeSet<Subject>, now: Time) -> Vec<News> {
        let mut seen: BTreeMap<Subject, Vec<&Incident>> = BTreeMap::new();
        for incident in incidents {
            seen.entry(matter_of(&incident.subject)).or_default().push(incident);
        }
        let open: BTreeSet<Subject> = open.iter().map(matter_of).collect();
        let mut news = Vec::new();
        for (subject, incidents) in &seen {
            let Some(worst) = incidents.iter().max_by_key(|incident| incident.severity) else { continue };
            match self.matters.get_mut(subject) {
                Some(matter) if matter.severity >= worst.severity => matter.missing = None,
                _ => {
                    let message = worst.message.chars().take(LONGEST).collect();
                    let matter = Matter { severity: worst.severity, message, missing: None };
                    self.matters.insert(subject.clone(), matter);
                    self.changed = true;
                    let workers = incidents.iter().filter_map(|incident| incident.subject.worker.clone()).collect();
                    let incident = Incident { subject: subject.clone(), ..(*worst).clone() };
                    news.push(News { incident, workers, over: false });
                }
            }
        }
        let mut over = Vec::new();
        for (subject, matter) in self.matters.iter_mut().filter(|(subject, _)| !seen.contains_key(*subject)) {
            if open.contains(subject) {
                matter.missing = None;
            } else if now.since(*matter.missing.get_or_insert(now)) >= QUIET {
                over.push(subject.clone());
            }
        }
        for subject in over {
            let Some(matter) = self.matters.remove(&subject) else { continue };
            self.changed = true;
            let workers = subject.worker.iter().cloned().collect();
            news.push(News { incident: last_word(&subject, &matter), workers, over: true });
        }
        news
    }
}

fn last_word(subject: &Subject, matter: &Matter) -> Incident {
    let blank = blank(subject.kind, subject.deployment.clone(), subject.worker.clone());
    Incident { subject: subject.clone(), severity: matter.severity, message: matter.message.clone(), ..blank }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    fn failure(worker: &str, severity: IncidentSeverity) -> Incident {
        let blank = blank(IncidentKind::LoadFailure, Some("iris".to_owned()), Some(worker.to_owned()));
        Incident { severity, message: "it raised".to_owned(), ..blank }
    }

    fn words(news: &[News]) -> Vec<(String, bool)> {
        news.iter().map(|news| (news.workers.join("+"), news.over)).collect()
    }

    #[test]
    fn one_matter_is_one_message_until_it_gets_worse_or_ends() {
        use IncidentSeverity::{High, Medium};
        let (mut told, none) = (Told::default(), BTreeSet::new());
        let both = [failure("a", Medium), failure("b", Medium)];
        assert_eq!(words(&told.look(&both, &none, at(0))), [("a+b".to_owned(), false)]);
        assert!(told.look(&both, &none, at(2)).is_empty(), "once");
        let more = [failure("a", Medium), failure("c", High)];
        assert_eq!(words(&told.look(&more, &none, at(4))), [("a+c".to_owned(), false)], "worse");
        assert!(told.look(&both[..1], &none, at(6)).is_empty());
        assert!(told.look(&[], &none, at(8)).is_empty());
        assert!(told.look(&both, &none, at(37)).is_empty(), "it came back");
        assert!(told.look(&[], &none, at(40)).is_empty());
        assert_eq!(words(&told.look(&[], &none, at(70))), [(String::new(), true)]);
        assert!(told.look(&[], &none, at(200)).is_empty(), "once");
        assert_eq!(told.look(&both, &none, at(201)).len(), 1, "it is new again");
    }

    #[test]
    fn the_next_leader_repeats_nothing_and_tells_the_end() {
        let (mut first, none) = (Told::default(), BTreeSet::new());
        let seen = failure("a", IncidentSeverity::High);
        first.look(std::slice::from_ref(&seen), &none, at(0));
        let kept = first.unkept().expect("it is new");
        first.kept();
        assert!(first.unkept().is_none());
        let mut next = Told::read(&kept);
        assert!(next.unkept().is_none() && next.all().count() == 1);
        let open = BTreeSet::from([seen.subject.clone()]);
        assert!(next.look(&[], &open, at(100)).is_empty());
        assert!(next.look(&[], &open, at(200)).is_empty(), "nobody knows whether it is over");
        assert!(next.look(std::slice::from_ref(&seen), &none, at(201)).is_empty(), "it was told");
        next.look(&[], &none, at(210));
        let over = next.look(&[], &none, at(240));
        assert_eq!((over.len(), over[0].incident.message.as_str()), (1, "it raised"));
        assert!(Told::read(b"{}").all().next().is_none(), "what cannot be understood is told anew");
    }
}
