//! The end of a run that takes too long: at a time, or when nobody waits for it any more.

use std::{
    sync::{Arc, Weak},
    time::Instant,
};

/// A caller that waits for its answer; dropped when it does not any more.
#[derive(Debug)]
pub struct Caller(Arc<()>);

/// Tells if a [`Caller`] still waits, without keeping it.
#[derive(Debug, Clone)]
pub struct WeakCaller(Weak<()>);

impl Caller {
    /// A caller that waits from now on.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(()))
    }

    /// A reference that tells if the caller still waits, without keeping it.
    #[must_use]
    pub fn downgrade(&self) -> WeakCaller {
        WeakCaller(Arc::downgrade(&self.0))
    }
}

impl Default for Caller {
    fn default() -> Self {
        Self::new()
    }
}

impl WeakCaller {
    /// False once the caller has gone.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// The conditions under which an engine gives a run up.
#[derive(Debug, Clone)]
pub struct StopCondition {
    /// The run is stopped soon after this.
    pub until: Instant,
    /// The run is stopped soon after the last of them has gone; empty: it is not asked who waits.
    pub callers: Vec<WeakCaller>,
}

impl StopCondition {
    /// At a time, whoever waits.
    #[must_use]
    pub fn at(until: Instant) -> Self {
        Self { until, callers: Vec::new() }
    }

    /// Nobody waits for the run any more.
    #[must_use]
    pub fn is_abandoned(callers: &[WeakCaller]) -> bool {
        !callers.is_empty() && !callers.iter().any(WeakCaller::is_waiting)
    }
}
