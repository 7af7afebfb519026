//! Workers that a source names and that have not come to this controller.

use std::{collections::BTreeMap, sync::Arc};

use berth_spec::{Time, WorkerId, WorkerTerms};

use super::Controller;

/// A worker that a source names and that has not come.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpectedWorker {
    /// Name of the worker, as the source writes it.
    pub id: WorkerId,
    /// Settings that the source gives it.
    pub terms: Arc<WorkerTerms>,
    /// Since when this controller waits for it: since the source named it, or the controller began.
    pub since: Time,
}

/// The time from which each named worker is waited for.
#[derive(Debug, Default)]
pub(super) struct NamedSince(BTreeMap<WorkerId, Time>);

impl NamedSince {
    pub(super) fn of<'a>(named: impl Iterator<Item = &'a WorkerId>, now: Time) -> Self {
        Self(named.map(|worker| (worker.clone(), now)).collect())
    }

    /// A source names the worker, or does so no more.
    pub(super) fn set(&mut self, worker: &WorkerId, is_named: bool, now: Time) {
        if is_named {
            self.0.entry(worker.clone()).or_insert(now);
        } else {
            self.0.remove(worker);
        }
    }
}

impl Controller {
    /// Workers that sources name and that have not said to this controller what they are, by name.
    #[must_use]
    pub fn expected(&self) -> Vec<ExpectedWorker> {
        let has_come = |id: &WorkerId| self.world.worker(id).is_some_and(|tracked| tracked.info.is_some());
        let missing = self.world.all_terms().iter().filter(|(id, _)| !has_come(id));
        let expected = missing.filter_map(|(id, terms)| {
            Some(ExpectedWorker { id: id.clone(), terms: Arc::clone(terms), since: *self.named_since.0.get(id)? })
        });
        expected.collect()
    }
}
