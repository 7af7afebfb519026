//! Terms of the registry for workers, applied over their own word.
//!
//! ```text
//! set_worker(said) ─┐
//! set_terms ────────┼──▶ terms.apply(said) ──▶ TrackedWorker::info, TrackedWorker::eviction, TrackedWorker::unlisted
//! set_unknown ──────┘        what grew: hope for those that had no room; what shrank: relieved by the next plan
//! ```
//! Everything that plans reads [`TrackedWorker::info`], so that a worker under terms is like one that says so itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use berth_spec::{UnknownWorkers, WorkerId, WorkerInfo, WorkerLimits, WorkerTerms};

use super::{Liveness, World};

/// Settings of workers by the registry, and its rule for those that it does not name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Registered {
    terms: BTreeMap<WorkerId, Arc<WorkerTerms>>,
    unknown: UnknownWorkers,
    /// Workers whose limits are others than they were told last: the next plan tells them.
    untold: BTreeSet<WorkerId>,
}

impl World {
    /// Terms of the registry for a worker; `None`: the registry does not name it.
    #[must_use]
    pub fn terms(&self, worker: &WorkerId) -> Option<&Arc<WorkerTerms>> {
        self.registered.terms.get(worker)
    }

    /// Every worker that the registry names.
    #[must_use]
    pub fn all_terms(&self) -> &BTreeMap<WorkerId, Arc<WorkerTerms>> {
        &self.registered.terms
    }

    /// Rule for workers that the registry does not name.
    #[must_use]
    pub fn unknown_workers(&self) -> UnknownWorkers {
        self.registered.unknown
    }

    /// Returns true if a worker is to be turned away when it comes.
    #[must_use]
    pub fn refuses(&self, worker: &WorkerId) -> bool {
        self.registered.unknown == UnknownWorkers::Refuse && self.terms(worker).is_none()
    }

    /// The registry says something else of a worker than before, or nothing any more.
    pub fn set_terms(&mut self, worker: &WorkerId, terms: Option<Arc<WorkerTerms>>) {
        let before = self.limits(worker);
        match terms {
            Some(terms) => self.registered.terms.insert(worker.clone(), terms),
            None => self.registered.terms.remove(worker),
        };
        if self.limits(worker) != before && self.workers.contains_key(worker) {
            self.registered.untold.insert(worker.clone());
        }
        self.apply_terms(worker);
    }

    /// The limits that the registry gives a worker.
    pub(crate) fn limits(&self, worker: &WorkerId) -> WorkerLimits {
        self.terms(worker).map(|terms| terms.limits()).unwrap_or_default()
    }

    /// Workers that have to be told their limits, whatever else there is to tell them.
    pub(crate) fn limits_untold(&self) -> &BTreeSet<WorkerId> {
        &self.registered.untold
    }

    /// A plan that holds tells a worker these limits. They may have changed again while it was being stored.
    pub(super) fn limits_told(&mut self, worker: &WorkerId, limits: WorkerLimits) {
        if self.limits(worker) == limits {
            self.registered.untold.remove(worker);
        }
    }

    /// A worker that holds nothing was turned away: as if it had never come. What is known of its health stays.
    pub fn turn_away(&mut self, worker: &WorkerId) {
        let Some(tracked) = self.workers.get_mut(worker) else { return };
        (tracked.info, tracked.said, tracked.reported) = (None, None, false);
        tracked.recount_claims();
        tracked.liveness = Liveness::Unseen;
        self.measure_workers();
    }

    /// Changes the rule for workers that the registry does not name.
    pub fn set_unknown_workers(&mut self, unknown: UnknownWorkers) {
        if self.registered.unknown == unknown {
            return;
        }
        self.registered.unknown = unknown;
        let known = &self.registered.terms;
        let unnamed: Vec<WorkerId> = self.workers.keys().filter(|id| !known.contains_key(*id)).cloned().collect();
        unnamed.iter().for_each(|worker| self.apply_terms(worker));
    }

    /// Applies the registry's terms to the description that a worker gave of itself.
    pub(super) fn under_terms(&self, said: &WorkerInfo) -> WorkerInfo {
        self.terms(&said.id).map_or_else(|| said.clone(), |terms| terms.apply(said))
    }

    /// Returns true if a worker may hold nothing because the registry does not name it.
    pub(super) fn is_unlisted(&self, worker: &WorkerId) -> bool {
        self.registered.unknown != UnknownWorkers::Allow && self.terms(worker).is_none()
    }

    fn apply_terms(&mut self, worker: &WorkerId) {
        let unlisted = self.is_unlisted(worker);
        let eviction = self.terms(worker).map(|terms| terms.eviction).unwrap_or_default();
        let Some(said) = self.workers.get(worker).and_then(|tracked| tracked.said.clone()) else { return };
        let info = self.under_terms(&said);
        let Some(tracked) = self.workers.get_mut(worker) else { return };
        let same = tracked.info.as_ref() == Some(&info) && (tracked.unlisted, tracked.eviction) == (unlisted, eviction);
        if same {
            return;
        }
        (tracked.info, tracked.unlisted, tracked.eviction) = (Some(info), unlisted, eviction);
        tracked.recount_claims();
        self.touch_worker(worker);
        self.measure_workers();
        self.give_hope();
        self.touch_regional();
    }
}
