//! A circuit breaker: a dependency that keeps failing is left alone for a while. All requests that can be cut off use it;
//! docs/architecture.md names the places that count failures for another purpose. The clock is an argument.
//!
//! ```text
//!          `threshold` failures in a row    `open_for`
//! Closed ──────────────────────────────▶ Open ──────▶ HalfOpen (one probe)
//!    ▲                                     ▲             │      │
//!    │                                     └─ it fails ──┘      │
//!    └───────────────────────────────────────── it succeeds ────┘
//! ```
//! A success forgets the breaker: there is none for what is well.

use std::time::Duration;

use crate::{Time, worker::BreakerState};

/// When a breaker opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Failures in a row that open it.
    pub threshold: u32,
    /// Time that it stays open, and the limit for a probe.
    pub open_for: Duration,
}

/// The breaker towards one dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CircuitBreaker {
    limits: Limits,
    failures: u32,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    /// Opened at `since`; nothing is let through before `until`.
    Open {
        since: Time,
        until: Time,
    },
    /// One probe is under way, which is given up at `until`.
    HalfOpen {
        since: Time,
        until: Time,
    },
}

impl CircuitBreaker {
    /// A closed breaker without failures.
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        Self { limits, failures: 0, state: State::Closed }
    }

    /// Starts an operation, or says when to ask again.
    ///
    /// # Errors
    /// The time from which on an operation may start.
    pub fn admit(&mut self, now: Time) -> Result<(), Time> {
        match self.state {
            State::Closed => Ok(()),
            State::Open { until, .. } | State::HalfOpen { until, .. } if now < until => Err(until),
            State::Open { since, .. } | State::HalfOpen { since, .. } => {
                self.state = State::HalfOpen { since, until: now + self.limits.open_for };
                Ok(())
            }
        }
    }

    /// Counts a failure: no answer, or a passing fault.
    pub fn failed(&mut self, now: Time) {
        let until = now + self.limits.open_for;
        match self.state {
            State::Closed => {
                self.failures += 1;
                if self.failures >= self.limits.threshold {
                    self.state = State::Open { since: now, until };
                }
            }
            State::HalfOpen { since, .. } => {
                self.failures = self.failures.saturating_add(1);
                self.state = State::Open { since, until };
            }
            State::Open { .. } => {}
        }
    }

    /// Gives back a probe that never asked: the next operation may probe.
    pub fn unused(&mut self, now: Time) {
        if let State::HalfOpen { since, .. } = self.state {
            self.state = State::Open { since, until: now };
        }
    }

    /// The state, by which people see what is left alone.
    #[must_use]
    pub const fn state(&self) -> BreakerState {
        match self.state {
            State::Closed => BreakerState::Closed,
            State::Open { .. } => BreakerState::Open,
            State::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    /// Failures since the last success.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// When it opened, and when it lets an operation through again; `None`: it is closed.
    #[must_use]
    pub const fn open(&self) -> Option<(Time, Time)> {
        match self.state {
            State::Closed => None,
            State::Open { since, until } | State::HalfOpen { since, until } => Some((since, until)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { threshold: 5, open_for: Duration::from_secs(60) };

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    #[test]
    fn opens_after_five_probes_once_and_closes() {
        let mut breaker = CircuitBreaker::new(LIMITS);
        for _ in 0..LIMITS.threshold {
            assert_eq!(breaker.admit(at(1)), Ok(()));
            breaker.failed(at(1));
        }
        assert_eq!(breaker.admit(at(2)), Err(at(61)));
        assert_eq!(breaker.admit(at(61)), Ok(()), "the probe");
        assert_eq!((breaker.admit(at(61)), breaker.state()), (Err(at(121)), BreakerState::HalfOpen), "only one");
        breaker.failed(at(62));
        assert_eq!((breaker.admit(at(100)), breaker.failures()), (Err(at(122)), 6));
        assert_eq!(breaker.open(), Some((at(1), at(122))));
        assert_eq!(breaker.admit(at(122)), Ok(()));
        breaker.unused(at(123));
        assert_eq!(breaker.admit(at(123)), Ok(()), "the probe did not ask: the next one does");
    }
}
