//! Condition on a leader's writes, so that they take effect only within its term.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use berth_spec::{Epoch, Time};

use crate::store::{Compare, Rev, layout};

/// The time since the machine started, time asleep included: it is never set, and a laptop that wakes up sees that its term
/// is over.
pub(super) fn now() -> Time {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let nanos = time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec);
    Time(u64::try_from(nanos).unwrap_or_default())
}

/// A term of leadership. Clones share how long it lasts.
#[derive(Clone)]
pub struct Fence {
    epoch: Epoch,
    /// Until when the term surely lasts, by [`now`]. 0: it is over.
    until: Arc<AtomicU64>,
}

impl Fence {
    /// A term that surely lasts until then.
    pub(super) fn new(epoch: Epoch, until: Time) -> Self {
        Self { epoch, until: Arc::new(AtomicU64::new(until.0)) }
    }

    /// A term that ends only where the store says so: for stores without leases, and tests.
    #[must_use]
    pub fn unlimited(epoch: Epoch) -> Self {
        Self::new(epoch, Time(u64::MAX))
    }

    /// The term lasts longer. One that has ended does not begin again.
    pub(super) fn extend(&self, until: Time) {
        let longer = |known: u64| (known != 0).then_some(known.max(until.0));
        let _ended = self.until.fetch_update(Ordering::AcqRel, Ordering::Acquire, longer);
    }

    /// Ends the term for every holder of the fence, for good.
    pub(super) fn end(&self) {
        self.until.store(0, Ordering::Release);
    }

    /// The term that it guards; also the rev at which the leader's key was created.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// True if no other node can lead yet, by this machine's clock. Reads the clock at once, so that a process that
    /// was paused notices. Only the store knows for certain: [`Fence::compare`].
    #[must_use]
    pub fn holds(&self) -> bool {
        now().0 < self.until.load(Ordering::Acquire)
    }

    /// The key that shows who leads.
    #[must_use]
    pub fn key(&self) -> &'static str {
        layout::LEADER
    }

    /// Condition that a write of this term must carry.
    #[must_use]
    pub fn compare(&self) -> Compare {
        Compare::Created { key: self.key().to_owned(), rev: Rev(self.epoch.0) }
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").field("epoch", &self.epoch).field("holds", &self.holds()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_term_that_has_ended_stays_over() {
        let fence = Fence::new(Epoch(4), now() + Duration::from_secs(60));
        assert!(fence.holds());
        fence.clone().end();
        fence.extend(now() + Duration::from_secs(60));
        assert!(!fence.holds());
        let past = Fence::new(Epoch(4), now());
        assert!(!past.holds(), "it reads the clock");
        past.extend(now() + Duration::from_secs(60));
        assert!(past.holds());
    }
}
