//! Claims on the runtimes of a worker, kept as sums.

use berth_spec::{ModelFormat, Placed, RevisionId, RuntimeInfo};

use super::TrackedWorker;
use crate::claim::{PlacedClaim, RuntimeClaim, RuntimeTotal};

impl TrackedWorker {
    /// The place of the runtime for a format among its runtimes.
    pub(crate) fn runtime_for(&self, format: &ModelFormat) -> Option<usize> {
        self.info.as_ref()?.runtimes.iter().position(|runtime| runtime.takes(format))
    }

    /// Returns true if any of its runtimes has limits of its own.
    pub(crate) fn has_limited_runtimes(&self) -> bool {
        self.info.as_ref().is_some_and(|info| info.runtimes.iter().any(RuntimeInfo::is_limited))
    }

    /// The runtime of a replica that is assigned, with its claim there.
    pub(crate) fn placed_claim(&self, revision: &RevisionId) -> Option<PlacedClaim> {
        self.claim_of(self.assigned.get(revision)?)
    }

    fn claim_of(&self, placed: &Placed) -> Option<PlacedClaim> {
        let claim = RuntimeClaim::with_gpu(placed.claim, placed.gpu.as_ref());
        Some(PlacedClaim { runtime: self.runtime_for(&placed.revision.format)?, claim })
    }

    /// Adds the claim of a replica that comes.
    pub(super) fn count_claim(&mut self, placed: &Placed) {
        let Some(PlacedClaim { runtime, claim }) = self.claim_of(placed) else { return };
        if let Some(total) = self.in_runtimes.get_mut(runtime) {
            total.add(claim);
        }
    }

    /// Takes off the claim of a replica that leaves.
    pub(super) fn uncount_claim(&mut self, placed: &Placed) {
        let Some(PlacedClaim { runtime, claim }) = self.claim_of(placed) else { return };
        if let Some(total) = self.in_runtimes.get_mut(runtime) {
            total.remove(claim);
        }
    }

    /// Makes the sums anew: its description has changed.
    pub(super) fn recount_claims(&mut self) {
        let runtimes = self.info.as_ref().map_or(0, |info| info.runtimes.len());
        let mut totals = vec![RuntimeTotal::default(); runtimes];
        for PlacedClaim { runtime, claim } in self.assigned.values().filter_map(|placed| self.claim_of(placed)) {
            totals[runtime].add(claim);
        }
        self.in_runtimes = totals;
    }
}
