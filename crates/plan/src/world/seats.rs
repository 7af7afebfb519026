//! Claims on the runtimes of a worker, kept as sums.

use berth_spec::{ModelFormat, Placed, RevisionId};

use super::TrackedWorker;
use crate::claim::{RuntimeClaim, RuntimeSeat, RuntimeTotal};

impl TrackedWorker {
    /// The place of the runtime for a format among its runtimes.
    pub(crate) fn runtime_for(&self, format: &ModelFormat) -> Option<usize> {
        self.info.as_ref()?.runtimes.iter().position(|runtime| runtime.takes(format))
    }

    /// The runtime of a replica that is assigned, with its claim there.
    pub(crate) fn seat(&self, revision: &RevisionId) -> Option<RuntimeSeat> {
        self.seat_of(self.assigned.get(revision)?)
    }

    fn seat_of(&self, placed: &Placed) -> Option<RuntimeSeat> {
        let claim = RuntimeClaim::with_gpu(placed.claim, placed.gpu.as_ref());
        Some(RuntimeSeat { runtime: self.runtime_for(&placed.revision.format)?, claim })
    }

    /// Adds the claim of a replica that comes.
    pub(super) fn count_claim(&mut self, placed: &Placed) {
        let Some(seat) = self.seat_of(placed) else { return };
        if let Some(total) = self.in_runtimes.get_mut(seat.runtime) {
            total.add(seat.claim);
        }
    }

    /// Takes off the claim of a replica that leaves.
    pub(super) fn uncount_claim(&mut self, placed: &Placed) {
        let Some(seat) = self.seat_of(placed) else { return };
        if let Some(total) = self.in_runtimes.get_mut(seat.runtime) {
            total.remove(seat.claim);
        }
    }

    /// Makes the sums anew: its description has changed.
    pub(super) fn recount_claims(&mut self) {
        let runtimes = self.info.as_ref().map_or(0, |info| info.runtimes.len());
        let mut totals = vec![RuntimeTotal::default(); runtimes];
        for seat in self.assigned.values().filter_map(|placed| self.seat_of(placed)) {
            totals[seat.runtime].add(seat.claim);
        }
        self.in_runtimes = totals;
    }
}
