//! A latency, smoothed over its last samples, that fades when there are none.
//!
//! Fading is what brings an endpoint back that was slow once: with two endpoints, the slower one would never be measured again.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::endpoint::tick::{Tick, micros};

/// The weight of a new sample, 1/8: an endpoint that has become slow is noticed within a few requests, and one slow
/// request does not turn many others away.
const SMOOTHING_DIVISOR: u64 = 8;

/// The time without samples after which half of it is left: an endpoint that has recovered gets work again within
/// seconds.
const HALF_LIFE: Duration = Duration::from_secs(5);

/// Lossy under races: a sample that gets lost is one of many.
#[derive(Debug, Default)]
pub(crate) struct Score {
    /// Nanoseconds; 0: never measured.
    smoothed: AtomicU64,
    at: AtomicU64,
}

impl Score {
    /// Takes in the time of one more request into the moving average.
    pub(crate) fn record(&self, took: Duration, now: Tick) {
        let sample = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1);
        let smoothed = match self.smoothed.load(Relaxed) {
            0 => sample,
            old => old - old / SMOOTHING_DIVISOR + sample / SMOOTHING_DIVISOR,
        };
        self.smoothed.store(smoothed.max(1), Relaxed);
        self.at.store(now.0, Relaxed);
    }

    /// Nanoseconds, faded; `None` before the first sample.
    pub(crate) fn read(&self, now: Tick) -> Option<u64> {
        let smoothed = self.smoothed.load(Relaxed);
        if smoothed == 0 {
            return None;
        }
        let (half, idle) = (micros(HALF_LIFE), now.since(self.at.load(Relaxed)));
        // Halves in HALF_LIFE and falls ever more slowly: cheaper than a power, and good enough for a comparison.
        let faded = u128::from(smoothed) * u128::from(half) / u128::from(half + idle);
        Some(u64::try_from(faded).unwrap_or(u64::MAX).max(1))
    }

    /// The same numbers again: for a route that replaces another.
    pub(crate) fn copied(&self) -> Self {
        Self { smoothed: AtomicU64::new(self.smoothed.load(Relaxed)), at: AtomicU64::new(self.at.load(Relaxed)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_its_samples_and_fades() {
        let score = Score::default();
        assert_eq!(score.read(Tick(5)), None);
        score.record(Duration::from_micros(80), Tick(10));
        assert_eq!(score.read(Tick(10)), Some(80_000));
        score.record(Duration::from_micros(160), Tick(10));
        assert_eq!(score.read(Tick(10)), Some(90_000));
        assert_eq!(score.read(Tick(10).after(HALF_LIFE)), Some(45_000));
        for _ in 0..100 {
            score.record(Duration::from_micros(10), Tick(20));
        }
        assert!(score.read(Tick(20)).is_some_and(|ns| (10_000..11_000).contains(&ns)), "{score:?}");
    }
}
