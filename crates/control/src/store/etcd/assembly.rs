//! The brain of a watch: puts what etcd says on a stream together to whole commits, each told once and in order.
//!
//! ```text
//!              events, more to come             the rest of them
//! Between ────────────────────────▶ Within ────────────────────────▶ Between: commits up to the last rev
//!    │  ▲                             │
//!    │  └────── a new stream ─────────┘  the part is dropped: it is told again from `resume_at`
//!    └─ no events: "so far nothing" ──▶ an empty commit, if that can be relied on
//! ```
//! `applied` moves only when a whole revision is there. What a stream tells a second time is left out (etcd before 3.4.25
//! and 3.5.8 does, issues 15271 and 15274).

use std::mem;

use berth_wire::etcd::{Event, WatchResponse, event::EventType};

use super::{
    keys::{self, Keys},
    version::Progress,
};
use crate::store::{Change, Commit, Rev};

/// Reason why a watch stream ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WatchEnd {
    /// The requested revisions were compacted.
    Compacted {
        /// The oldest rev that is not.
        oldest: Rev,
    },
    /// The server ended it, for this reason.
    Cancelled(String),
    /// Revisions are out of order.
    Disorder(String),
}

/// Collects watch events into whole commits.
#[derive(Debug)]
pub(super) struct WatchAssembly {
    keys: Keys,
    /// Everything up to here has been told.
    applied: Rev,
    /// Events of an incomplete commit.
    partial: Vec<Event>,
}

impl WatchAssembly {
    /// For a watch that tells everything after `applied`.
    pub(super) fn new(keys: Keys, applied: Rev) -> Self {
        Self { keys, applied, partial: Vec::new() }
    }

    /// Everything up to here has been told.
    pub(super) fn applied(&self) -> Rev {
        self.applied
    }

    /// Revision at which the next stream must begin.
    pub(super) fn resume_at(&mut self) -> Rev {
        self.partial.clear();
        self.applied.next()
    }

    /// Takes in what the stream says, and gives the commits that are complete.
    pub(super) fn take(&mut self, answer: WatchResponse, progress: Progress) -> Result<Vec<Commit>, WatchEnd> {
        if answer.compact_revision > 0 {
            return Err(WatchEnd::Compacted { oldest: keys::rev(answer.compact_revision) });
        }
        if answer.canceled {
            return Err(WatchEnd::Cancelled(answer.cancel_reason));
        }
        if answer.events.is_empty() && self.partial.is_empty() {
            return Ok(self.quiet(&answer, progress).into_iter().collect());
        }
        self.partial.extend(answer.events);
        if answer.fragment { Ok(Vec::new()) } else { self.whole() }
    }

    /// Handles an answer without events: nothing happened up to the revision in its header. Unsolicited ones are
    /// ordered; answers to a progress request (watch id -1) only in versions that order them.
    fn quiet(&mut self, answer: &WatchResponse, progress: Progress) -> Option<Commit> {
        let in_place = answer.watch_id >= 0 || progress != Progress::Overtaking;
        let rev = keys::rev(answer.header.as_ref()?.revision);
        (!answer.created && in_place && rev > self.applied).then(|| {
            self.applied = rev;
            Commit { rev, changes: Vec::new() }
        })
    }

    fn whole(&mut self) -> Result<Vec<Commit>, WatchEnd> {
        let mut commits: Vec<Commit> = Vec::new();
        for event in mem::take(&mut self.partial) {
            let Some(kv) = event.kv else { continue };
            let rev = keys::rev(kv.mod_revision);
            if rev <= self.applied {
                tracing::debug!(event = "store_watch_repeats", rev = rev.0, applied = self.applied.0);
                continue;
            }
            let last = commits.last().map(|commit| commit.rev);
            if last.is_some_and(|last| rev < last) {
                return Err(WatchEnd::Disorder(format!("revision {rev} came after {}", last.unwrap_or_default())));
            }
            if last != Some(rev) {
                commits.push(Commit { rev, changes: Vec::new() });
            }
            let deleted = event.r#type == i32::from(EventType::Delete);
            let change = if deleted {
                self.keys.short(&kv.key).map(|key| Change::Deleted { key })
            } else {
                self.keys.entry(kv).map(Change::Put)
            };
            if let Some(commit) = commits.last_mut() {
                commit.changes.extend(change);
            }
        }
        if let Some(last) = commits.last() {
            self.applied = last.rev;
        }
        Ok(commits)
    }
}

#[cfg(test)]
mod tests {
    use berth_wire::etcd::{KeyValue, ResponseHeader};
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    fn event(key: &str, rev: i64) -> Event {
        let key = Bytes::from(format!("/berth{key}"));
        let kv = KeyValue { key, create_revision: rev, mod_revision: rev, version: 1, ..KeyValue::default() };
        Event { r#type: EventType::Put.into(), kv: Some(kv) }
    }

    fn told(events: &[(&str, i64)], fragment: bool) -> WatchResponse {
        let events = events.iter().map(|(key, rev)| event(key, *rev)).collect();
        WatchResponse { events, fragment, ..WatchResponse::default() }
    }

    fn quiet(watch_id: i64, revision: i64) -> WatchResponse {
        let header = Some(ResponseHeader { revision, ..ResponseHeader::default() });
        WatchResponse { header, watch_id, ..WatchResponse::default() }
    }

    fn shown(commits: &[Commit]) -> Vec<(u64, Vec<&str>)> {
        commits.iter().map(|commit| (commit.rev.0, commit.changes.iter().map(Change::key).collect())).collect()
    }

    fn assembly(applied: u64) -> WatchAssembly {
        WatchAssembly::new(Keys::new("/berth"), Rev(applied))
    }

    #[test]
    fn transactions_come_whole() {
        let mut watch = assembly(4);
        let commits = watch.take(told(&[("/a", 5), ("/b", 5), ("/a", 7)], false), Progress::Ordered).expect("commits");
        assert_eq!(shown(&commits), [(5, vec!["/a", "/b"]), (7, vec!["/a"])]);
        assert_eq!(watch.take(told(&[("/c", 8)], true), Progress::Ordered), Ok(vec![]));
        assert_eq!(watch.applied(), Rev(7));
        let commits = watch.take(told(&[("/d", 8)], false), Progress::Ordered).expect("commits");
        assert_eq!(shown(&commits), [(8, vec!["/c", "/d"])]);
    }

    #[test]
    fn a_part_is_forgotten_with_its_stream() {
        let mut watch = assembly(4);
        assert_eq!(watch.take(told(&[("/a", 5)], true), Progress::Ordered), Ok(vec![]));
        assert_eq!(watch.resume_at(), Rev(5));
        let commits = watch.take(told(&[("/a", 5), ("/b", 5)], false), Progress::Ordered).expect("commits");
        assert_eq!(shown(&commits), [(5, vec!["/a", "/b"])]);
    }

    #[test]
    fn what_was_told_is_not_told_again_and_time_does_not_run_backwards() {
        let mut watch = assembly(6);
        let commits = watch.take(told(&[("/a", 5), ("/b", 6), ("/c", 7)], false), Progress::Ordered).expect("commits");
        assert_eq!(shown(&commits), [(7, vec!["/c"])]);
        let backwards = watch.take(told(&[("/a", 9), ("/b", 8)], false), Progress::Ordered);
        assert!(matches!(backwards, Err(WatchEnd::Disorder(_))), "{backwards:?}");
    }

    #[test]
    fn quiet_moves_on_only_where_it_can_be_relied_on() {
        for (answer, progress, wanted) in [
            (quiet(-1, 9), Progress::Ordered, Some(9)),
            (quiet(-1, 9), Progress::Overtaking, None),
            (quiet(0, 9), Progress::Overtaking, Some(9)),
            (quiet(-1, 4), Progress::Ordered, None),
            (WatchResponse { created: true, ..quiet(0, 9) }, Progress::Ordered, None),
        ] {
            let mut watch = assembly(4);
            let commits = watch.take(answer.clone(), progress).expect("no halt");
            assert_eq!(commits.first().map(|commit| commit.rev.0), wanted, "{answer:?}");
            assert_eq!(watch.applied().0, wanted.unwrap_or(4));
        }
    }

    #[test]
    fn the_end_says_why() {
        let compacted = WatchResponse { canceled: true, compact_revision: 8, ..WatchResponse::default() };
        assert_eq!(assembly(4).take(compacted, Progress::Ordered), Err(WatchEnd::Compacted { oldest: Rev(8) }));
        let reason = "etcdserver: permission denied".to_owned();
        let cancelled =
            WatchResponse { created: true, canceled: true, cancel_reason: reason.clone(), ..WatchResponse::default() };
        assert_eq!(assembly(4).take(cancelled, Progress::Ordered), Err(WatchEnd::Cancelled(reason)));
    }

    proptest! {
        /// However a history is cut into messages and however often the stream breaks: every commit once, whole, in order.
        #[test]
        fn nothing_is_lost_or_doubled(
            sizes in prop::collection::vec(1..4usize, 1..20),
            cuts in prop::collection::vec((1..6usize, any::<bool>()), 1..40),
        ) {
            let history: Vec<(String, i64)> = sizes.iter().enumerate()
                .flat_map(|(rev, size)| (0..*size).map(move |key| (format!("/{key}"), rev as i64 + 2)))
                .collect();
            let mut watch = assembly(1);
            let mut got = Vec::new();
            let mut cuts = cuts.into_iter();
            let mut at = 0;
            while at < history.len() {
                let (length, breaks) = cuts.next().unwrap_or((history.len(), false));
                let end = (at + length).min(history.len());
                let part: Vec<(&str, i64)> = history[at..end].iter().map(|(key, rev)| (key.as_str(), *rev)).collect();
                // etcd ends a message within a revision only if it says so.
                let fragment = end < history.len() && history[end - 1].1 == history[end].1;
                got.extend(watch.take(told(&part, fragment), Progress::Ordered).expect("in order"));
                at = end;
                if breaks {
                    let from = watch.resume_at();
                    at = history.iter().position(|(_, rev)| keys::rev(*rev) >= from).unwrap_or(history.len());
                }
            }
            let told: Vec<(u64, usize)> = got.iter().map(|commit| (commit.rev.0, commit.changes.len())).collect();
            let wanted: Vec<(u64, usize)> = sizes.iter().enumerate().map(|(rev, size)| (rev as u64 + 2, *size)).collect();
            prop_assert_eq!(told, wanted);
        }
    }
}
