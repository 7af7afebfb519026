//! A circuit breaker per dependency: a host that keeps failing is left alone for a while (seed G §8.3).
//!
//! ```text
//!          5 failures in a row                60 s
//! Closed ──────────────────────▶ Open ─────────────────▶ HalfOpen (one probe)
//!    ▲                             ▲                        │      │
//!    │                             └──────── it fails ──────┘      │
//!    └────────────────────────────────────── it succeeds ──────────┘
//! ```
//! A success forgets the dependency: whoever keeps breakers drops its breaker, and a new one is closed.

use std::time::Duration;

use berth_spec::Time;

/// Failures in a row that open it. Halved, two models with a bad address shut a healthy host; doubled, a dead host is
/// asked by every model twice before anybody stops.
pub const THRESHOLD: u32 = 5;
/// How long it stays open. Halved, a host that restarts is hit as it comes up; doubled, models wait for a host that is well.
pub const OPEN_FOR: Duration = Duration::from_secs(60);

/// The state of one dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breaker {
    /// All is let through.
    Closed {
        /// Failures in a row.
        failures: u32,
    },
    /// Nothing is let through.
    Open {
        /// Until when.
        until: Time,
    },
    /// One probe is under way; nothing else is let through.
    HalfOpen {
        /// When a probe that never came back is given up.
        until: Time,
    },
}

impl Default for Breaker {
    fn default() -> Self {
        Self::Closed { failures: 0 }
    }
}

impl Breaker {
    /// Whether an operation may start now; if not, when to ask again.
    pub fn admit(&mut self, now: Time) -> Result<(), Time> {
        match *self {
            Self::Closed { .. } => Ok(()),
            Self::Open { until } | Self::HalfOpen { until } if now < until => Err(until),
            Self::Open { .. } | Self::HalfOpen { .. } => {
                *self = Self::HalfOpen { until: now + OPEN_FOR };
                Ok(())
            }
        }
    }

    /// The dependency did not answer, or with a passing fault.
    pub fn failed(&mut self, now: Time) {
        *self = match *self {
            Self::Closed { failures } if failures + 1 < THRESHOLD => Self::Closed { failures: failures + 1 },
            Self::Closed { .. } | Self::HalfOpen { .. } => Self::Open { until: now + OPEN_FOR },
            open @ Self::Open { .. } => open,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    #[test]
    fn opens_after_five_probes_once_and_closes() {
        let mut breaker = Breaker::default();
        for _ in 0..THRESHOLD {
            assert_eq!(breaker.admit(at(1)), Ok(()));
            breaker.failed(at(1));
        }
        assert_eq!(breaker.admit(at(2)), Err(at(61)));
        assert_eq!(breaker.admit(at(61)), Ok(()), "the probe");
        assert_eq!(breaker.admit(at(61)), Err(at(121)), "only one");
        breaker.failed(at(62));
        assert_eq!(breaker.admit(at(100)), Err(at(122)));
        assert_eq!(breaker.admit(at(122)), Ok(()));
    }
}
