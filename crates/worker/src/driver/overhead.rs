//! Measures the memory of the process beside its models, as the kernel sees it.

use std::sync::Arc;

use berth_spec::ByteSize;

use crate::{agent::Event, runtime::Runtime};

/// Looks when a model was loaded, run for the first time or unloaded, and now and then.
pub(super) struct OverheadWatch {
    runtimes: Vec<Arc<dyn Runtime>>,
    /// Not counted: the process alone takes more than half of the bound, which is then one of models alone.
    base: ByteSize,
    last: ByteSize,
}

impl OverheadWatch {
    /// `memory`: the bound.
    pub(super) fn new(runtimes: &[Arc<dyn Runtime>], memory: ByteSize) -> Self {
        let runtimes: Vec<_> = runtimes.iter().filter(|runtime| runtime.overhead().is_some()).cloned().collect();
        let alone = overhead(&runtimes);
        let base = if alone.0 > memory.0 / 2 { alone } else { ByteSize::ZERO };
        if base > ByteSize::ZERO {
            tracing::warn!(
                event = "memory_bound_is_for_models",
                %memory,
                process = %alone,
                remedy = "the process may take more than its bound on memory: raise it (--memory) to have it count as well",
            );
        }
        Self { runtimes, base, last: ByteSize::ZERO }
    }

    /// The event for the agent, if there is news: before the one of a model that came or went.
    pub(super) fn look(&mut self) -> Option<Event> {
        let now = overhead(&self.runtimes).saturating_sub(self.base);
        let before = std::mem::replace(&mut self.last, now);
        (now != before).then_some(Event::Overhead(now))
    }

    /// The news that the agent hears before an event that may have changed it.
    pub(super) fn before(&mut self, event: &Event) -> Option<Event> {
        let concerns =
            matches!(event, Event::Attached | Event::Loaded { .. } | Event::Validated { .. } | Event::Unloaded { .. });
        if concerns { self.look() } else { None }
    }
}

/// Each runtime counts all but its own models; the one that has most of them knows best.
fn overhead(runtimes: &[Arc<dyn Runtime>]) -> ByteSize {
    runtimes.iter().filter_map(|runtime| runtime.overhead()).min().unwrap_or_default()
}
