//! End of a call: at its deadline, or when it is cancelled.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Ends calls: one deadline and one flag, shared by all clones.
#[derive(Debug, Clone)]
pub struct Stop {
    deadline: Instant,
    cancelled: Arc<AtomicBool>,
}

impl Stop {
    /// Calls end when `limit` from now has passed.
    #[must_use]
    pub fn within(limit: Duration) -> Self {
        Self { deadline: Instant::now() + limit, cancelled: Arc::default() }
    }

    /// Adds a cancellation flag: calls also end once it is true.
    #[must_use]
    pub fn with_flag(self, cancelled: Arc<AtomicBool>) -> Self {
        Self { cancelled, ..self }
    }

    /// The same flag with another deadline, if that is earlier.
    #[must_use]
    pub fn at_most(&self, limit: Duration) -> Self {
        Self { deadline: self.deadline.min(Instant::now() + limit), cancelled: Arc::clone(&self.cancelled) }
    }

    /// Ends all calls that share this flag.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// True once cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Time until the deadline.
    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// True once the call has to end.
    #[must_use]
    pub fn is_reached(&self) -> bool {
        self.is_cancelled() || self.left().is_zero()
    }
}
