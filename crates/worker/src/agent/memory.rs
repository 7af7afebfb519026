//! Memory that models may take: the limit, what replicas hold of it, and what the process takes beside them.
//!
//! ```text
//! limit ─┬─ held      claims and measured sizes of replicas
//!        ├─ overhead  the process as the kernel sees it, less what its models were measured to take
//!        └─ free
//! ```
//! Where an author declared more than a model takes, the difference stands in for the overhead: it is told, and kept free,
//! only as far as it goes beyond that.

use std::{collections::BTreeMap, time::Duration};

use berth_spec::{ByteSize, FailureCategory, RevisionId, Time};

use super::Agent;
use crate::{
    fault::Fault,
    order::{Limits, ModelKey},
    replica::{Input, Replica, State},
};

/// Time that a replica without room waits for the controller to make some: it learns of each measured size, and has
/// something leave. Enough for a change of leaders; after it the two count differently, and people are told.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The overhead is told in steps of this share of the limit, so that the kernel's small changes move no plan.
const OVERHEAD_STEPS: u64 = 64;

/// The smallest step.
const LEAST_STEP: ByteSize = ByteSize::mib(1);

impl Agent {
    /// The memory that is held: resident, being loaded, draining or being unloaded. Shared weights count once.
    #[must_use]
    pub fn held(&self) -> ByteSize {
        let holding = self.replicas.iter().filter(|(_, replica)| replica.held() > ByteSize::ZERO);
        let holding: Vec<_> = holding.collect();
        // Only replicas of one deployment share, and those lie side by side.
        holding.chunk_by(|a, b| a.0.deployment() == b.0.deployment()).map(held_by_deployment).sum()
    }

    /// The limits in force: the tighter of its own and the registry's.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let told = self.told_limits;
        Limits {
            memory: told.memory.map_or(self.limits.memory, |memory| memory.min(self.limits.memory)),
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
        let beside = self.beside_models.saturating_sub(self.slack());
        // Half of the memory is for models in any case: beyond that the bound cannot be kept by holding fewer.
        let now = ByteSize(beside.0.div_ceil(step.0).saturating_mul(step.0)).min(ByteSize(limit.0 / 2));
        if now > self.overhead || now + step + step <= self.overhead {
            self.overhead = now;
            self.unreported.overhead = true;
        }
    }

    /// Memory that is set aside for models and that they were measured not to take.
    fn slack(&self) -> ByteSize {
        self.replicas.values().map(|replica| replica.held().saturating_sub(replica.taken())).sum()
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
        let since = *replica.without_room.get_or_insert(now);
        if need <= limit && now < since + PATIENCE {
            return None;
        }
        replica.without_room = None;
        let message = format!(
            "needs {need} of memory and {free} of {limit} is free: unload others, give the worker more ({}), or declare \
             what it really needs (spec.resources.memory)",
            self.memory_is_said_by()
        );
        Some(Input::Refuse(Fault::new(FailureCategory::Memory, message)))
    }

    /// Ends the waiting of all but these.
    pub(super) fn end_waits(&mut self, lacking: &[RevisionId]) {
        for (id, replica) in &mut self.replicas {
            if replica.without_room.is_some() && !lacking.contains(id) {
                replica.without_room = None;
            }
        }
    }
}

/// The memory of one deployment's replicas, of which those with the same model count once, with the largest word.
fn held_by_deployment(replicas: &[(&RevisionId, &Replica)]) -> ByteSize {
    if let [(_, only)] = replicas {
        return only.held();
    }
    let mut by_model: BTreeMap<_, ByteSize> = BTreeMap::new();
    for (_, replica) in replicas {
        let key = replica.digest().map(|digest| ModelKey::of(&replica.placed.revision, &digest));
        let largest = by_model.entry(key).or_default();
        *largest = replica.held().max(*largest);
    }
    by_model.into_values().sum()
}
