//! Counts the results of requests by revision: for the controller, which compares revisions, and for Prometheus.
//!
//! A deployment has few revisions with traffic at a time. They are found without a lock, by comparing hashes.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use berth_spec::{
    RevisionId,
    traffic::{LATENCY_BOUNDS, LATENCY_BUCKETS, RevisionOutcomes},
};

use crate::metrics::{Outcome, OutcomeResult};

/// Revisions of one deployment that are counted at a time: a rollout has two. The oldest is forgotten first.
const MAX_REVISIONS: usize = 8;

/// The results of one deployment's requests.
#[derive(Default)]
pub(crate) struct OutcomeCounters(ArcSwap<Vec<Arc<Counters>>>);

/// The results of one revision's requests.
pub(crate) struct Counters {
    pub(crate) revision: RevisionId,
    ok: AtomicU64,
    client_errors: AtomicU64,
    server_errors: AtomicU64,
    latency: [AtomicU64; LATENCY_BUCKETS],
    sum_ns: AtomicU64,
    /// The counts that the controller was told last.
    told: Mutex<RevisionOutcomes>,
}

impl OutcomeCounters {
    /// Counts a request that a revision was given, at its end.
    pub(crate) fn record(&self, revision: &RevisionId, outcome: Outcome, took: Duration) {
        let known = self.0.load();
        match known.iter().find(|counters| counters.revision == *revision) {
            Some(counters) => counters.record(outcome, took),
            None => self.counters(revision).record(outcome, took),
        }
    }

    /// The revisions that had requests.
    pub(crate) fn all(&self) -> Arc<Vec<Arc<Counters>>> {
        self.0.load_full()
    }

    /// The results since the last call, of revisions that had some.
    pub(crate) fn take(&self) -> impl Iterator<Item = RevisionOutcomes> {
        let all: Vec<_> = self.0.load().iter().cloned().collect();
        all.into_iter().filter_map(|counters| counters.take())
    }

    /// Makes the counters of a revision.
    fn counters(&self, revision: &RevisionId) -> Arc<Counters> {
        let made = Arc::new(Counters::new(revision.clone()));
        let mut found = Arc::clone(&made);
        self.0.rcu(|known| {
            // Another request may have been faster.
            if let Some(there) = known.iter().find(|counters| counters.revision == *revision) {
                found = Arc::clone(there);
                return known.as_ref().clone();
            }
            found = Arc::clone(&made);
            let kept = known.iter().skip((known.len() + 1).saturating_sub(MAX_REVISIONS));
            kept.chain([&made]).cloned().collect()
        });
        found
    }
}

impl Counters {
    fn new(revision: RevisionId) -> Self {
        Self {
            told: Mutex::new(RevisionOutcomes::none(revision.clone())),
            revision,
            ok: AtomicU64::new(0),
            client_errors: AtomicU64::new(0),
            server_errors: AtomicU64::new(0),
            latency: Default::default(),
            sum_ns: AtomicU64::new(0),
        }
    }

    fn record(&self, outcome: Outcome, took: Duration) {
        let counter = match outcome.result() {
            OutcomeResult::Ok => &self.ok,
            OutcomeResult::ClientError => &self.client_errors,
            OutcomeResult::ServerError => &self.server_errors,
        };
        counter.fetch_add(1, Relaxed);
        let bucket = LATENCY_BOUNDS.partition_point(|bound| *bound < took);
        self.latency[bucket].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// The counts since the start.
    pub(crate) fn sums(&self) -> RevisionOutcomes {
        let mut sums = RevisionOutcomes {
            revision: self.revision.clone(),
            ok: self.ok.load(Relaxed),
            client_errors: self.client_errors.load(Relaxed),
            server_errors: self.server_errors.load(Relaxed),
            latency: [0; LATENCY_BUCKETS],
        };
        for (sum, count) in sums.latency.iter_mut().zip(&self.latency) {
            *sum = count.load(Relaxed);
        }
        sums
    }

    /// The time that all requests took together, in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.sum_ns.load(Relaxed) as f64 / 1e9
    }

    fn take(&self) -> Option<RevisionOutcomes> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock: no other call may have told of more.
        let mut since = self.sums();
        let before = std::mem::replace(&mut *told, since.clone());
        drop(told);
        since.ok -= before.ok;
        since.client_errors -= before.client_errors;
        since.server_errors -= before.server_errors;
        for (count, before) in since.latency.iter_mut().zip(&before.latency) {
            *count -= before;
        }
        (since.requests() > 0).then_some(since)
    }
}

#[cfg(test)]
mod tests {
    use berth_spec::DeploymentName;

    use super::*;

    fn revision(content: &str) -> RevisionId {
        RevisionId::of(DeploymentName::new("iris").expect("a name"), content.as_bytes())
    }

    #[test]
    fn results_are_told_once() {
        let counters = OutcomeCounters::default();
        for (outcome, millis) in [(Outcome::Ok, 1), (Outcome::Ok, 30), (Outcome::Invalid, 1), (Outcome::Lost, 9_000)] {
            counters.record(&revision("1"), outcome, Duration::from_millis(millis));
        }
        let told: Vec<_> = counters.take().collect();
        let [one] = told.as_slice() else { panic!("{told:?}") };
        assert_eq!((one.ok, one.client_errors, one.server_errors), (2, 1, 1));
        assert_eq!(one.latency.map(usize::try_from).map(Result::unwrap_or_default)[..6], [2, 0, 0, 0, 0, 1]);
        assert_eq!(one.latency[LATENCY_BUCKETS - 1], 1);
        assert_eq!(counters.take().count(), 0);
        counters.record(&revision("1"), Outcome::Ok, Duration::ZERO);
        assert_eq!(counters.take().map(|one| one.ok).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn revisions_are_bounded_and_the_oldest_goes() {
        let counters = OutcomeCounters::default();
        for number in 0..MAX_REVISIONS + 3 {
            counters.record(&revision(&number.to_string()), Outcome::Ok, Duration::ZERO);
        }
        let known = counters.all();
        assert_eq!(known.len(), MAX_REVISIONS);
        assert_eq!(known[0].revision, revision("3"));
    }
}
