//! The results of requests by revision, as gateways report them: of the last window, in memory, and of few revisions.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use berth_spec::{RevisionId, Time, traffic::RevisionOutcomes};

/// The time that a window covers at least: long enough to tell errors from bad luck at a request a second.
const WINDOW: Duration = Duration::from_secs(60);

/// The most revisions that are remembered, about a megabyte. Those that had no requests for longest are forgotten first.
const MAX_REVISIONS: usize = 4_096;

/// Results of requests by revision, of the last one to two windows, summed over gateways. At most [`MAX_REVISIONS`] revisions.
#[derive(Debug, Default)]
pub(crate) struct OutcomeTable {
    by_revision: BTreeMap<RevisionId, Window>,
    /// The revisions by their last report: among 100,000 models, thousands come and go with each report.
    by_last: BTreeSet<(Time, RevisionId)>,
}

/// Counts of one revision since `began`, and in the window before.
#[derive(Debug)]
struct Window {
    began: Time,
    last: Time,
    now: RevisionOutcomes,
    before: Option<RevisionOutcomes>,
}

impl OutcomeTable {
    /// Takes a gateway's report.
    pub(crate) fn add(&mut self, reports: Vec<RevisionOutcomes>, now: Time) {
        for report in reports {
            let revision = report.revision.clone();
            match self.by_revision.get_mut(&revision) {
                Some(window) => {
                    self.by_last.remove(&(window.last, revision.clone()));
                    window.add(&report, now);
                }
                None => {
                    self.make_room();
                    let window = Window { began: now, last: now, before: None, now: report };
                    self.by_revision.insert(revision.clone(), window);
                }
            }
            self.by_last.insert((now, revision));
        }
    }

    /// The results of a revision over one to two windows.
    #[must_use]
    pub(crate) fn get(&self, revision: &RevisionId) -> Option<RevisionOutcomes> {
        let window = self.by_revision.get(revision)?;
        let mut outcomes = window.now.clone();
        if let Some(before) = &window.before {
            outcomes.add(before);
        }
        Some(outcomes)
    }

    fn make_room(&mut self) {
        if self.by_revision.len() < MAX_REVISIONS {
            return;
        }
        if let Some((_, oldest)) = self.by_last.pop_first() {
            self.by_revision.remove(&oldest);
        }
    }
}

impl Window {
    fn add(&mut self, report: &RevisionOutcomes, now: Time) {
        if now.since(self.began) >= WINDOW {
            let empty = RevisionOutcomes::none(report.revision.clone());
            let ended = std::mem::replace(&mut self.now, empty);
            // What is older than two windows says nothing any more.
            self.before = (now.since(self.last) < WINDOW).then_some(ended);
            self.began = now;
        }
        self.now.add(report);
        self.last = now;
    }
}

#[cfg(test)]
mod tests {
    use berth_spec::DeploymentName;

    use super::*;

    fn report(content: &str, ok: u64) -> RevisionOutcomes {
        let revision = RevisionId::of(DeploymentName::new("iris").expect("a name"), content.as_bytes());
        RevisionOutcomes { ok, ..RevisionOutcomes::none(revision) }
    }

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    #[test]
    fn a_window_ends_and_the_one_before_it_counts_once_more() {
        let mut table = OutcomeTable::default();
        let one = report("1", 1);
        for (seconds, requests) in [(0, 1), (30, 2), (59, 3), (61, 4), (130, 1), (131, 2), (400, 1)] {
            table.add(vec![one.clone()], at(seconds));
            assert_eq!(table.get(&one.revision).map(|outcomes| outcomes.requests()), Some(requests), "{seconds}");
        }
    }

    #[test]
    fn the_table_is_bounded() {
        let mut table = OutcomeTable::default();
        for number in 0..MAX_REVISIONS + 10 {
            table.add(vec![report(&number.to_string(), 1)], at(number as u64));
        }
        table.add(vec![report("10", 1)], at(MAX_REVISIONS as u64 + 10));
        table.add(vec![report("new", 1)], at(MAX_REVISIONS as u64 + 11));
        assert_eq!((table.by_revision.len(), table.by_last.len()), (MAX_REVISIONS, MAX_REVISIONS));
        assert!(table.get(&report("11", 1).revision).is_none(), "of those that are left, it was silent for longest");
        assert!(table.get(&report("9", 1).revision).is_none() && table.get(&report("10", 1).revision).is_some());
    }
}
