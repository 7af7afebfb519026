//! Memory that models may take: the limit, what replicas hold of it, and what the process takes beside them.
//!
//! ```text
//! limit ─┬─ held      claims and measured sizes of replicas
//!        ├─ overhead  the process as the kernel sees it, less what its models were measured to take
//!        └─ free
//! ```
//! Where an author declared more than a model takes, the difference stands in for the overhead: it is told, and kept free,
//! only as far as it goes beyond that.

use std::time::Duration;

use berth_spec::{ByteSize, FailureCategory, RevisionId, Time};

use super::Agent;
use crate::{
    fault::Fault,
    order::Limits,
    replica::{Input, State},
};

/// Time that a replica without room waits for the controller to make some: it learns of each measured size, and has
/// something leave. Enough for a change of leaders; after it the two count differently, and people are told.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The overhead is told in steps of this share of the limit, so that the kernel's small changes move no plan.
const OVERHEAD_STEPS: u64 = 64;

/// The smallest step, for small limits: less is noise of the allocator.
const LEAST_STEP: ByteSize = ByteSize::mib(1);

impl Agent {
    /// The memory that is held: resident, being loaded, draining or being unloaded. Shared weights count once.
    #[must_use]
    pub fn held(&self) -> ByteSize {
        self.totals.held()
    }

    /// The limits in force: the tighter of its own and the registry's.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let (told, own) = (self.told_limits, self.limits.memory);
        let memory = told.memory.map_or(own, |memory| memory.min(own));
        // The same share of less.
        let reserve = u128::from(self.limits.unload_reserve.0) * u128::from(memory.0) / u128::from(own.0.max(1));
        Limits {
            memory,
            unload_reserve: ByteSize(u64::try_from(reserve).unwrap_or(u64::MAX)),
            models: [told.models, self.limits.models].into_iter().flatten().min(),
            ..self.limits
        }
    }

    /// Memory that models cannot have, as it was told last.
    #[must_use]
    pub fn overhead(&self) -> ByteSize {
        self.overhead
    }

    /// Keeps the overhead true. One that shrinks by less than two steps stays: it will be back.
    pub(super) fn refresh_overhead(&mut self) {
        if self.beside_models == ByteSize::ZERO && self.overhead == ByteSize::ZERO {
            return;
        }
        let limit = self.limits().memory;
        let step = ByteSize(limit.0 / OVERHEAD_STEPS).max(LEAST_STEP);
        // Memory that is set aside for models and that they do not take stands in for it.
        let beside = self.beside_models.saturating_sub(self.totals.slack());
        // Half of the memory is for models in any case: beyond that the bound cannot be kept by holding fewer.
        let now = ByteSize(beside.0.div_ceil(step.0).saturating_mul(step.0)).min(ByteSize(limit.0 / 2));
        if now > self.overhead || now + step + step <= self.overhead {
            self.overhead = now;
            self.unreported.overhead = true;
        }
    }

    /// The setting by which people say how much memory there is for models.
    pub(super) fn memory_is_said_by(&self) -> &'static str {
        if self.limits().memory < self.limits.memory { "max_memory in the registry" } else { "--memory" }
    }

    /// A replica has no room, and nothing is about to leave: the controller is told nothing new by that, it makes room as
    /// it learns of measured sizes. What can never fit, or has waited too long, is refused.
    pub(super) fn lacks_memory(&mut self, id: &RevisionId, need: ByteSize, free: ByteSize, now: Time) -> Option<Input> {
        let limit = self.limits().memory;
        let replica = self.replicas.get_mut(id)?;
        // One that was refused already stays so until its next attempt is due.
        if matches!(replica.state(), State::Refused(..)) {
            return None;
        }
        let since = replica.without_room.unwrap_or(now);
        let waits = need <= limit && now < since + PATIENCE;
        replica.without_room = waits.then_some(since);
        self.totals.recount(&self.replicas, id);
        if waits {
            return None;
        }
        let message = format!(
            "needs {need} of memory and {free} of {limit} is free: unload others, give the worker more ({}), or declare \
             what it really needs (spec.resources.memory)",
            self.memory_is_said_by()
        );
        Some(Input::Refuse(Fault::new(FailureCategory::Memory, message)))
    }

    /// Ends the waiting of all but these.
    pub(super) fn end_waits(&mut self, lacking: &[RevisionId]) {
        let ended: Vec<_> = self.totals.without_room().filter(|id| !lacking.contains(id)).cloned().collect();
        for id in ended {
            if let Some(replica) = self.replicas.get_mut(&id) {
                replica.without_room = None;
            }
            self.totals.recount(&self.replicas, &id);
        }
    }
}
