//! Time as a number that fits an atomic.

use std::time::Duration;

use tokio::time::Instant;

/// Microseconds since the gateway was built, at least 1: 0 is free to mean "never".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tick(pub(crate) u64);

impl Tick {
    /// The tick that is `time` later, at most the last there is.
    pub(crate) fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(micros(time)))
    }

    /// Microseconds from `earlier` to it; 0 if that is later.
    pub(crate) fn since(self, earlier: u64) -> u64 {
        self.0.saturating_sub(earlier)
    }
}

/// The whole microseconds of a duration, at most `u64::MAX`.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The moment that ticks count from. Copies of it agree.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    base: Instant,
}

impl Clock {
    /// A clock that counts from now.
    pub(crate) fn start() -> Self {
        Self { base: Instant::now() }
    }

    /// The tick of a moment; 1 for those before the clock's beginning.
    pub(crate) fn at(self, moment: Instant) -> Tick {
        Tick(micros(moment.saturating_duration_since(self.base)) + 1)
    }

    /// The tick of the present. Reads the system's clock.
    pub(crate) fn now(self) -> Tick {
        self.at(Instant::now())
    }
}
