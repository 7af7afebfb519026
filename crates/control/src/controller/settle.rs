//! Whom the controller waits for before its first plan.
//!
//! ```text
//! alone:    workers that are attached                                  at most SETTLE
//! cluster:  workers that are attached, members that live, and          at most SETTLE_CLUSTER
//!           workers that the records name, unless members know them dead
//! ```
//! There is a cluster when there are members. Those whom they see and who have not reported when the time is up are
//! assumed to serve what they served: their word is late, and gateways may reach them all the same.

use std::{collections::BTreeSet, time::Duration};

use berth_spec::{Time, WorkerId};

use super::{Controller, Phase};

/// Longest wait for attached workers to report after the start. Enough for a busy machine to report before the first
/// plan.
pub const SETTLE: Duration = Duration::from_millis(500);

/// The same in a cluster. Workers first have to notice that the old leader is gone, find the new one, and send what
/// they hold; three seconds are enough for that, and delay the first plan by no more when a worker hangs.
pub const SETTLE_CLUSTER: Duration = Duration::from_secs(3);

impl Controller {
    /// There are members: this is not one process alone.
    pub(super) fn clustered(&self) -> bool {
        !self.members.is_empty()
    }

    /// A plan was taken over.
    pub(super) fn planned(&self) -> bool {
        self.world.readiness().planned && !matches!(self.phase, Phase::Settling { .. })
    }

    /// Extends the wait, because there is a cluster.
    pub(super) fn wait_longer(&mut self) {
        if let Phase::Settling { since, until } = &mut self.phase {
            *until = *since + SETTLE_CLUSTER;
        }
    }

    /// Everybody who may hold something has said what.
    pub(super) fn settled(&self) -> bool {
        let reported = |id: &WorkerId| self.workers.get(id).is_some_and(|attached| attached.reported);
        !self.workers.is_empty() && self.awaited().into_iter().all(reported)
    }

    /// The time is up: who has said nothing, and lives as far as the members see, is not unrouted for that.
    pub(super) fn assume_members(&mut self, now: Time) {
        for (worker, _) in self.members.iter().filter(|(_, health)| health.is_there()) {
            self.world.assume(worker, now);
        }
    }

    /// Everybody who may hold something.
    fn awaited(&self) -> BTreeSet<&WorkerId> {
        let mut awaited: BTreeSet<&WorkerId> = self.workers.keys().collect();
        if self.clustered() {
            awaited.extend(self.members.iter().filter(|(_, health)| health.is_there()).map(|(id, _)| id));
            // Not all members may be known yet: whoever has just begun knows only itself.
            let named = self.world.workers().filter(|(_, tracked)| !tracked.assigned.is_empty()).map(|(id, _)| id);
            awaited.extend(named.filter(|id| self.members.get(*id).is_none_or(|health| health.is_there())));
        }
        awaited
    }
}
