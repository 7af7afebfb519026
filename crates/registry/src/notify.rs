//! Telling people: what is worth a message to whom, and the message in the form of each way to tell it.
//!
//! ```text
//! Notice ──▶ Deduplicator::take ── too little, told lately, too many ──▶ nothing (what is held back is counted and said later)
//!                │
//!                └──▶ whole or in part ──▶ webhook JSON | Slack | email          (sent elsewhere, with retries)
//! ```

mod form;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use berth_spec::Time;

pub use form::{Email, email, slack, webhook};

use crate::settings::{Notification, NotificationAudience, NotificationSeverity};

/// Time in which the same notice is not repeated unless it gets worse. An hour limits noise from a fault that comes
/// and goes.
pub const WINDOW: Duration = Duration::from_secs(60 * 60);

/// Messages to one target within [`RATE`]. Enough for a bad commit and the failures after it, without flooding in an
/// outage.
pub const MAX_MESSAGES: usize = 20;

/// Period over which [`MAX_MESSAGES`] counts: people look at a chat some times an hour.
pub const RATE: Duration = Duration::from_secs(10 * 60);

/// Subjects remembered for each target. Beyond that, the oldest may be sent again.
const MAX_SUBJECTS: usize = 4_096;

/// Audience that should act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Recipient {
    /// Operations team.
    Ops,
    /// The owners of the model.
    Ml,
}

/// Notice for people, before it has the form of a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Kind of event, one word with dashes: `load-failure`.
    pub kind: String,
    /// Subject. Notices of one kind and subject are the same.
    pub subject: String,
    /// Severity, compared with the least that a target wants.
    pub severity: NotificationSeverity,
    /// Audiences that should act.
    pub recipients: Vec<Recipient>,
    /// Addresses of the owners of the model.
    pub owners: Vec<String>,
    /// Time at which it happened.
    pub at: Time,
    /// Title in one line, without the cluster.
    pub title: String,
    /// Details in several lines.
    pub text: String,
    /// Names and values beside it: deployment, worker, commit.
    pub facts: Vec<(String, String)>,
    /// True if the problem is over.
    pub resolved: bool,
}

/// Last notice sent to a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LastSent {
    at: Time,
    severity: NotificationSeverity,
}

/// Decides for one target which notices to send.
#[derive(Debug, Default)]
pub struct Deduplicator {
    told: BTreeMap<(String, String), LastSent>,
    sent: VecDeque<Time>,
    held: u64,
}

/// Decision about a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Tell it, and that so many were held back before it.
    Send {
        /// Messages dropped since the last one for lack of room.
        held: u64,
    },
    /// Not meant for this target, or below its severity.
    NotForThem,
    /// Sent recently.
    ToldLately,
    /// There were too many; it is counted.
    TooMany,
}

impl Deduplicator {
    /// Decides about one notice for the target that this one is for.
    pub fn take(&mut self, target: &Notification, notice: &Notice, now: Time) -> Verdict {
        if !concerns(target, notice) {
            return Verdict::NotForThem;
        }
        let key = (notice.kind.clone(), notice.subject.clone());
        let told = self.told.get(&key).copied();
        if notice.resolved {
            // Nobody is told of the end of what they were not told of.
            if told.is_none() {
                return Verdict::NotForThem;
            }
        } else if told.is_some_and(|told| now.since(told.at) < WINDOW && notice.severity <= told.severity) {
            return Verdict::ToldLately;
        }
        self.sent.retain(|at| now.since(*at) < RATE);
        if self.sent.len() >= MAX_MESSAGES {
            self.held += 1;
            if notice.resolved {
                // Who was not told of the end is told of the next beginning.
                self.told.remove(&key);
            }
            return Verdict::TooMany;
        }
        self.sent.push_back(now);
        if notice.resolved {
            self.told.remove(&key);
        } else {
            self.remember(key, LastSent { at: now, severity: notice.severity });
        }
        Verdict::Send { held: std::mem::take(&mut self.held) }
    }

    /// Restores a notice that an earlier leader sent. `at` is long ago if its arrival is unknown, so that it may be
    /// sent again.
    pub fn recall(&mut self, target: &Notification, notice: &Notice, at: Time) {
        if concerns(target, notice) {
            self.remember((notice.kind.clone(), notice.subject.clone()), LastSent { at, severity: notice.severity });
        }
    }

    /// True if the notice was sent or is queued.
    #[must_use]
    pub fn knows(&self, notice: &Notice) -> bool {
        self.told.contains_key(&(notice.kind.clone(), notice.subject.clone()))
    }

    /// So many messages were taken and could not be delivered: the next one says so.
    pub fn lost(&mut self, messages: u64) {
        self.held += messages;
    }

    fn remember(&mut self, key: (String, String), told: LastSent) {
        if self.told.len() >= MAX_SUBJECTS
            && let Some(oldest) = self.told.iter().min_by_key(|(_, told)| told.at).map(|(key, _)| key.clone())
        {
            self.told.remove(&oldest);
        }
        self.told.insert(key, told);
    }
}

/// True if the notice matches the audience and severity of a target.
fn concerns(target: &Notification, notice: &Notice) -> bool {
    let theirs = match target.audience {
        NotificationAudience::All => true,
        NotificationAudience::Ops => notice.recipients.contains(&Recipient::Ops),
        NotificationAudience::Ml => notice.recipients.contains(&Recipient::Ml),
    };
    // The end is told to whoever heard of the beginning, which the deduplicator knows.
    theirs && (notice.resolved || notice.severity >= target.min_severity)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::NotificationKind;

    fn target(audience: NotificationAudience, min_severity: NotificationSeverity) -> Notification {
        Notification {
            kind: NotificationKind::Webhook,
            url: Some("https://example.com/hook".to_owned()),
            secret_ref: None,
            to: Vec::new(),
            audience,
            min_severity,
        }
    }

    pub(crate) fn notice(subject: &str, severity: NotificationSeverity) -> Notice {
        Notice {
            kind: "load-failure".to_owned(),
            subject: subject.to_owned(),
            severity,
            recipients: vec![Recipient::Ops],
            owners: Vec::new(),
            at: Time::ZERO,
            title: format!("{subject} could not be loaded"),
            text: "Out of memory".to_owned(),
            facts: vec![("worker".to_owned(), "a".to_owned())],
            resolved: false,
        }
    }

    #[test]
    fn the_same_thing_is_told_once_until_it_gets_worse_or_ends() {
        use NotificationSeverity::{Critical, Error};
        let (mut deduplicator, ops) =
            (Deduplicator::default(), target(NotificationAudience::Ops, NotificationSeverity::Warning));
        let at = |minutes: u64| Time::ZERO + Duration::from_secs(minutes * 60);
        let send = Verdict::Send { held: 0 };
        assert_eq!(deduplicator.take(&ops, &notice("a", Error), at(0)), send);
        assert_eq!(deduplicator.take(&ops, &notice("a", Error), at(30)), Verdict::ToldLately);
        assert_eq!(deduplicator.take(&ops, &notice("b", Error), at(30)), send);
        assert_eq!(deduplicator.take(&ops, &notice("a", Critical), at(31)), send);
        assert_eq!(deduplicator.take(&ops, &notice("a", Error), at(92)), send, "after the window");
        let over = Notice { resolved: true, ..notice("a", Error) };
        assert_eq!(deduplicator.take(&ops, &over, at(93)), send);
        assert_eq!(deduplicator.take(&ops, &over, at(94)), Verdict::NotForThem, "once");
    }

    #[test]
    fn people_hear_what_is_theirs_and_bad_enough() {
        use NotificationSeverity::{Error, Info};
        let mut deduplicator = Deduplicator::default();
        let take = |deduplicator: &mut Deduplicator, audience, severity| {
            deduplicator.take(&target(audience, severity), &notice("a", Error), Time::ZERO)
        };
        assert_eq!(take(&mut deduplicator, NotificationAudience::Ml, Info), Verdict::NotForThem);
        assert_eq!(
            take(&mut deduplicator, NotificationAudience::Ops, NotificationSeverity::Critical),
            Verdict::NotForThem
        );
        assert_eq!(take(&mut deduplicator, NotificationAudience::All, Error), Verdict::Send { held: 0 });
    }

    #[test]
    fn the_end_is_told_to_whom_an_earlier_leader_told_the_beginning() {
        let (mut deduplicator, ops) =
            (Deduplicator::default(), target(NotificationAudience::Ops, NotificationSeverity::Error));
        let over = |subject| Notice { resolved: true, ..notice(subject, NotificationSeverity::Error) };
        deduplicator.recall(&ops, &notice("a", NotificationSeverity::Error), Time::ZERO);
        deduplicator.recall(&ops, &notice("b", NotificationSeverity::Warning), Time::ZERO);
        deduplicator.lost(2);
        assert_eq!(deduplicator.take(&ops, &over("a"), Time::ZERO), Verdict::Send { held: 2 });
        assert_eq!(deduplicator.take(&ops, &over("b"), Time::ZERO), Verdict::NotForThem, "that was not bad enough");
    }

    #[test]
    fn an_outage_is_not_a_flood() {
        let (mut deduplicator, all) =
            (Deduplicator::default(), target(NotificationAudience::All, NotificationSeverity::Info));
        let verdicts: Vec<Verdict> = (0..50)
            .map(|n| deduplicator.take(&all, &notice(&n.to_string(), NotificationSeverity::Error), Time::ZERO))
            .collect();
        assert_eq!(verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Send { .. })).count(), MAX_MESSAGES);
        let later = Time::ZERO + RATE;
        let held = deduplicator.take(&all, &notice("later", NotificationSeverity::Error), later);
        assert_eq!(held, Verdict::Send { held: 30 });
    }
}
