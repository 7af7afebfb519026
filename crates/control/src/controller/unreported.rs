//! Workers that ended together with the controller before this one, or never came back: they have not said to this one
//! what they are, and what they held may be elsewhere with its first plan. What was stored tells of them.
//!
//! ```text
//!                    ┌── attaches, or says that it goes ──────────────▶ (nothing: its own word counts)
//! named by a record ─┼── the members give it up ────────────┐
//!                    └── nobody sees it, and it is overdue ──┼──▶ absent ── attaches ──▶ (nothing)
//! held nothing ───────── the members give it up ────────────┘
//! ```

use std::collections::{BTreeMap, BTreeSet};

use berth_plan::Record;
use berth_spec::{DeploymentName, Health, Time, UnknownWorkers, WorkerId};

use super::Controller;

/// Workers that have not reported to this controller.
#[derive(Debug, Default)]
pub(super) struct UnreportedWorkers {
    /// Deployments that each held when this controller began.
    held: BTreeMap<WorkerId, BTreeSet<DeploymentName>>,
    /// Workers that the members gave up.
    given_up: BTreeSet<WorkerId>,
}

/// A worker that is gone, and has not said to this controller what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbsentWorker {
    /// Name of the worker.
    pub id: WorkerId,
    /// Deployments that it held when this controller began.
    pub held: BTreeSet<DeploymentName>,
}

impl UnreportedWorkers {
    pub(super) fn of(records: &[(DeploymentName, Record)]) -> Self {
        let mut unreported = Self::default();
        for (name, record) in records {
            for replica in &record.replicas {
                unreported.held.entry(replica.worker.clone()).or_default().insert(name.clone());
            }
        }
        unreported
    }

    /// Removes a worker that reports for itself.
    pub(super) fn reported(&mut self, worker: &WorkerId) {
        self.held.remove(worker);
        self.given_up.remove(worker);
    }

    /// Records the health of a worker that has not reported.
    pub(super) fn member(&mut self, worker: &WorkerId, health: Health) {
        match health {
            Health::Failed => drop(self.given_up.insert(worker.clone())),
            // Also said of who has been dead for so long that the members forget it.
            Health::Left if !self.given_up.contains(worker) => drop(self.held.remove(worker)),
            Health::Left | Health::Alive | Health::Suspect => {}
        }
    }
}

impl Controller {
    /// Workers that are gone and have not said to this controller what they are, by name. Whom the registry does not let in
    /// is not among them once nothing is counted there: nobody expects it back.
    #[must_use]
    pub fn absent(&self, now: Time) -> Vec<AbsentWorker> {
        let UnreportedWorkers { held, given_up } = &self.unreported;
        let is_there = |id: &WorkerId| self.members.get(id).is_some_and(|health| health.is_there());
        let overdue = held.keys().filter(|id| self.world.is_overdue(id, now) && !is_there(id));
        let all: BTreeSet<&WorkerId> = given_up.iter().chain(overdue).collect();
        let absent =
            |id: &&WorkerId| AbsentWorker { id: (*id).clone(), held: held.get(*id).cloned().unwrap_or_default() };
        all.iter().filter(|id| self.is_expected(id)).map(absent).collect()
    }

    fn is_expected(&self, worker: &WorkerId) -> bool {
        let is_let_in = self.world.unknown_workers() == UnknownWorkers::Allow || self.world.terms(worker).is_some();
        is_let_in || self.world.worker(worker).is_some_and(|tracked| !tracked.assigned.is_empty())
    }
}
