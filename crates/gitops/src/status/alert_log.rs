//! The record of alerts: each new or worse matter is announced once, and so is its end. Pure.
//!
//! ```text
//!            seen: told                 not seen for a while: told          that has arrived
//! (nothing) ───────────▶ AlertLog ◀──seen── Missing ─────────────────────▶ Over ────────────────▶ (nothing)
//!                          └──not seen────▲
//! ```
//! One matter is one message, however many workers have the same trouble with one deployment. What was told is kept in
//! the store, so that the next leader neither repeats it nor forgets to say that it is over. What had not arrived when a
//! leader ended is said again by the next one: rather twice than never.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use berth_registry::error_file::{Incident, IncidentKind, IncidentSeverity, Subject};
use berth_spec::Time;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::incident::blank;
use crate::notify::DeliveryProgress;

/// The time that a matter must not have been seen before it is over: what comes and goes is announced once, and people
/// learn soon that it is over.
const RESOLVE_AFTER: Duration = Duration::from_secs(30);

/// Alerts that are kept in the store, in a value of 256 KiB at most. Beyond that a new leader tells some again.
const MAX_STORED_ALERTS: usize = 500;

/// Characters of a message that are kept: enough to know what it was about.
const MAX_MESSAGE_CHARS: usize = 200;

/// The number of the stored form.
const FORM: u32 = 1;

/// All that people were told of.
#[derive(Debug, Default)]
pub(crate) struct AlertLog {
    alerts: BTreeMap<Subject, Alert>,
    /// The number of the last message.
    said: u64,
    /// True if it differs from what is in the store.
    changed: bool,
}

#[derive(Debug, Clone)]
struct Alert {
    severity: IncidentSeverity,
    message: String,
    /// Since when it is not seen.
    missing: Option<Time>,
    /// True if it is over and people may not know yet.
    over: bool,
    word: LastMessage,
}

/// The progress of the last message about a matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastMessage {
    /// Sent under this number.
    Said(u64),
    /// The leader before said it, and ended before it knew that it has arrived.
    Cut,
    /// Delivered, or given up.
    Arrived,
}

/// Something to tell.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Transition {
    /// The number of its message, by which its arrival is noticed.
    pub(crate) number: u64,
    /// The worst of the matter's incidents.
    pub(crate) incident: Incident,
    /// Workers that the matter concerns, by name.
    pub(crate) workers: Vec<String>,
    pub(crate) over: bool,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    v: u32,
    alerts: Vec<StoredAlert>,
}

#[derive(Serialize, Deserialize)]
struct StoredAlert {
    kind: IncidentKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deployment: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    worker: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    commit: Option<String>,
    severity: IncidentSeverity,
    message: String,
    #[serde(default, skip_serializing_if = "is_false")]
    over: bool,
    /// True if it may not have arrived.
    #[serde(default, skip_serializing_if = "is_false")]
    under_way: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_false(value: &bool) -> bool {
    !value
}

/// The subject that one message covers: of a model, its deployment alone.
fn matter_of(subject: &Subject) -> Subject {
    match subject.kind {
        IncidentKind::LoadFailure | IncidentKind::RuntimeFailure => Subject { worker: None, ..subject.clone() },
        _ => subject.clone(),
    }
}

impl AlertLog {
    /// From what is in the store; what cannot be understood is told anew.
    pub(crate) fn read(value: &[u8]) -> Self {
        let stored = serde_json::from_slice::<Stored>(value).ok().filter(|stored| stored.v == FORM);
        let matter = |StoredAlert { kind, deployment, worker, commit, severity, message, over, under_way }| {
            let word = if under_way { LastMessage::Cut } else { LastMessage::Arrived };
            (Subject { kind, deployment, worker, commit }, Alert { severity, message, missing: None, over, word })
        };
        let alerts = stored.into_iter().flat_map(|stored| stored.alerts).map(matter).collect();
        Self { alerts, ..Self::default() }
    }

    /// The content for the store, if the store does not have it yet. [`AlertLog::kept`] must follow.
    pub(crate) fn unkept(&self) -> Option<Bytes> {
        if !self.changed {
            return None;
        }
        let matter = |(subject, matter): (&Subject, &Alert)| StoredAlert {
            kind: subject.kind,
            deployment: subject.deployment.clone(),
            worker: subject.worker.clone(),
            commit: subject.commit.clone(),
            severity: matter.severity,
            message: matter.message.clone(),
            over: matter.over,
            under_way: matter.word != LastMessage::Arrived,
        };
        let stored = Stored { v: FORM, alerts: self.alerts.iter().take(MAX_STORED_ALERTS).map(matter).collect() };
        serde_json::to_vec(&stored).ok().map(Bytes::from)
    }

    /// Records that the content is in the store.
    pub(crate) fn kept(&mut self) {
        self.changed = false;
    }

    /// People know of this, though the store does not: it is in an error file.
    pub(crate) fn know(&mut self, subject: &Subject, severity: IncidentSeverity, message: &str) {
        self.alerts.entry(matter_of(subject)).or_insert_with(|| {
            self.changed = true;
            let message = message.chars().take(MAX_MESSAGE_CHARS).collect();
            Alert { severity, message, missing: None, over: false, word: LastMessage::Arrived }
        });
    }

    /// All that people may know of, as it was told, and whether they do for sure.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Incident, bool)> {
        self.alerts.iter().map(|(subject, matter)| (last_word(subject, matter), matter.word == LastMessage::Arrived))
    }

    /// Subjects that were announced and whose end was not.
    pub(crate) fn open(&self) -> impl Iterator<Item = &Subject> {
        self.alerts.iter().filter(|(_, matter)| !matter.over).map(|(subject, _)| subject)
    }

    /// Takes in how far messages have come.
    pub(crate) fn arrived(&mut self, progress: &DeliveryProgress) {
        for matter in self.alerts.values_mut() {
            if matches!(matter.word, LastMessage::Said(number) if progress.is_through(number)) {
                (matter.word, self.changed) = (LastMessage::Arrived, true);
            }
        }
        self.alerts.retain(|_, matter| !(matter.over && matter.word == LastMessage::Arrived));
    }

    /// Lists what to announce after a look at the fleet: at most `most`, the rest after the next look. `open`: subjects
    /// that may still be so, though they are not seen.
    pub(crate) fn look(
        &mut self,
        incidents: &[Incident],
        open: &BTreeSet<Subject>,
        most: usize,
        now: Time,
    ) -> Vec<Transition> {
        let mut seen: BTreeMap<Subject, Vec<&Incident>> = BTreeMap::new();
        for incident in incidents {
            seen.entry(matter_of(&incident.subject)).or_default().push(incident);
        }
        let open: BTreeSet<Subject> = open.iter().map(matter_of).collect();
        let mut news = Vec::new();
        for (subject, incidents) in &seen {
            let Some(worst) = incidents.iter().max_by_key(|incident| incident.severity) else { continue };
            let known = self.alerts.get_mut(subject).filter(|matter| !matter.over);
            if let Some(matter) = known {
                matter.missing = None;
                if matter.severity >= worst.severity && matter.word != LastMessage::Cut {
                    continue;
                }
            }
            if news.len() < most {
                let incident = Incident { subject: subject.clone(), ..(*worst).clone() };
                let workers = incidents.iter().filter_map(|incident| incident.subject.worker.clone()).collect();
                news.push(self.said(incident, workers));
            }
        }
        let mut over = Vec::new();
        for (subject, matter) in self.alerts.iter_mut().filter(|(subject, _)| !seen.contains_key(*subject)) {
            if matter.over {
                over.extend((matter.word == LastMessage::Cut).then(|| subject.clone()));
            } else if open.contains(subject) {
                matter.missing = None;
            } else if now.since(*matter.missing.get_or_insert(now)) >= RESOLVE_AFTER {
                over.push(subject.clone());
            }
        }
        over.truncate(most.saturating_sub(news.len()));
        news.extend(over.iter().filter_map(|subject| self.said_over(subject)));
        news
    }

    fn said(&mut self, incident: Incident, workers: Vec<String>) -> Transition {
        (self.said, self.changed) = (self.said + 1, true);
        let message = incident.message.chars().take(MAX_MESSAGE_CHARS).collect();
        let word = LastMessage::Said(self.said);
        let matter = Alert { severity: incident.severity, message, missing: None, over: false, word };
        self.alerts.insert(incident.subject.clone(), matter);
        Transition { number: self.said, incident, workers, over: false }
    }

    fn said_over(&mut self, subject: &Subject) -> Option<Transition> {
        let matter = self.alerts.get_mut(subject)?;
        (self.said, self.changed) = (self.said + 1, true);
        (matter.over, matter.word) = (true, LastMessage::Said(self.said));
        let workers = subject.worker.iter().cloned().collect();
        Some(Transition { number: self.said, incident: last_word(subject, matter), workers, over: true })
    }
}

fn last_word(subject: &Subject, matter: &Alert) -> Incident {
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

    fn words(news: &[Transition]) -> Vec<(String, bool)> {
        news.iter().map(|news| (news.workers.join("+"), news.over)).collect()
    }

    #[test]
    fn one_matter_is_one_message_until_it_gets_worse_or_ends() {
        use IncidentSeverity::{High, Medium};
        let (mut told, none) = (AlertLog::default(), BTreeSet::new());
        let both = [failure("a", Medium), failure("b", Medium)];
        assert_eq!(words(&told.look(&both, &none, 9, at(0))), [("a+b".to_owned(), false)]);
        assert!(told.look(&both, &none, 9, at(2)).is_empty(), "once");
        let more = [failure("a", Medium), failure("c", High)];
        assert_eq!(words(&told.look(&more, &none, 9, at(4))), [("a+c".to_owned(), false)], "worse");
        assert!(told.look(&both[..1], &none, 9, at(6)).is_empty());
        assert!(told.look(&[], &none, 9, at(8)).is_empty());
        assert!(told.look(&both, &none, 9, at(37)).is_empty(), "it came back");
        assert!(told.look(&[], &none, 9, at(40)).is_empty());
        assert_eq!(words(&told.look(&[], &none, 9, at(70))), [(String::new(), true)]);
        assert!(told.look(&[], &none, 9, at(200)).is_empty(), "once");
        assert_eq!(told.look(&both, &none, 9, at(201)).len(), 1, "it is new again");
    }

    #[test]
    fn the_next_leader_repeats_nothing_and_tells_the_end() {
        let (mut first, none) = (AlertLog::default(), BTreeSet::new());
        let seen = failure("a", IncidentSeverity::High);
        first.look(std::slice::from_ref(&seen), &none, 9, at(0));
        first.arrived(&through(1));
        let kept = first.unkept().expect("it is new");
        first.kept();
        assert!(first.unkept().is_none());
        let mut next = AlertLog::read(&kept);
        assert!(next.unkept().is_none() && next.all().count() == 1);
        let open = BTreeSet::from([seen.subject.clone()]);
        assert!(next.look(&[], &open, 9, at(100)).is_empty());
        assert!(next.look(&[], &open, 9, at(200)).is_empty(), "nobody knows whether it is over");
        assert!(next.look(std::slice::from_ref(&seen), &none, 9, at(201)).is_empty(), "it was told");
        next.look(&[], &none, 9, at(210));
        let over = next.look(&[], &none, 9, at(240));
        assert_eq!((over.len(), over[0].incident.message.as_str()), (1, "it raised"));
        assert_eq!(next.open().count(), 0);
        next.arrived(&through(1));
        assert_eq!(next.all().count(), 0, "people know");
        assert!(AlertLog::read(b"{}").all().next().is_none(), "what cannot be understood is told anew");
    }

    /// The progress of a notifier that has sent so many messages.
    fn through(taken: u64) -> DeliveryProgress {
        DeliveryProgress::all_through(taken)
    }

    #[test]
    fn what_had_not_arrived_when_a_leader_ended_is_told_again_by_the_next_one() {
        let (mut first, none) = (AlertLog::default(), BTreeSet::new());
        let seen = failure("a", IncidentSeverity::High);
        let seen = std::slice::from_ref(&seen);
        assert_eq!(words(&first.look(seen, &none, 9, at(0))), [("a".to_owned(), false)]);
        first.arrived(&through(0));
        let mut next = AlertLog::read(&first.unkept().expect("it is new"));
        assert_eq!(next.all().map(|(_, surely)| surely).collect::<Vec<_>>(), [false]);
        assert_eq!(words(&next.look(seen, &none, 9, at(10))), [("a".to_owned(), false)], "again");
        assert!(next.look(seen, &none, 9, at(12)).is_empty(), "once");
        next.arrived(&through(1));
        // Its end is on its way when that leader ends, too.
        next.look(&[], &none, 9, at(20));
        assert_eq!(words(&next.look(&[], &none, 9, at(50))), [(String::new(), true)]);
        let kept = next.unkept().expect("it is news");
        let mut third = AlertLog::read(&kept);
        assert_eq!((third.all().count(), third.open().count()), (1, 0));
        assert_eq!(words(&third.look(&[], &none, 9, at(60))), [(String::new(), true)], "again, and at once");
        assert!(third.look(&[], &none, 9, at(62)).is_empty(), "once");
        // It begins anew before that has arrived.
        assert_eq!(words(&third.look(seen, &none, 9, at(64))), [("a".to_owned(), false)]);
        third.arrived(&through(2));
        assert_eq!(third.open().count(), 1, "what has arrived is the beginning");
        let mut fourth = AlertLog::read(&kept);
        assert_eq!(words(&fourth.look(seen, &none, 9, at(60))), [("a".to_owned(), false)]);
    }

    #[test]
    fn what_there_is_no_room_for_is_told_after_the_next_look() {
        let (mut told, none) = (AlertLog::default(), BTreeSet::new());
        let failures: Vec<Incident> = ["a", "b", "c"]
            .map(|id| Incident { message: id.to_owned(), ..blank(IncidentKind::Capacity, Some(id.to_owned()), None) })
            .to_vec();
        let mut look = |seen: &[Incident], seconds| -> Vec<String> {
            told.look(seen, &none, 2, at(seconds)).into_iter().map(|news| news.incident.message).collect()
        };
        assert_eq!((look(&failures, 0), look(&failures, 2)), (vec!["a".into(), "b".into()], vec!["c".into()]));
        assert!(look(&[], 10).is_empty());
        assert_eq!((look(&[], 40).len(), look(&[], 42).len(), look(&[], 44).len()), (2, 1, 0));
    }
}
