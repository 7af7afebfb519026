//! Times of loads, by runtime and format, and the time limit that they give the next ones. Pure.
//!
//! The fixed limit lets tens of gigabytes from a cold disk pass, so a load that hangs holds its memory for that long. Once enough
//! loads of a format have been seen, one that takes many times as long as they did is given up, and tried again as any other
//! failure.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use berth_spec::ByteSize;

/// Loads after which the statistics are believed: the deviation of fewer says little.
const MIN_LOADS: u32 = 8;

/// The limit as a multiple of the longest load that is likely: a machine that is busy with other loads is several times slower.
const LIMIT_FACTOR: f64 = 10.0;

/// Standard deviations above the mean that are likely: one load in some hundreds takes longer.
const DEVIATIONS: f64 = 3.0;

/// The shortest limit: whatever the statistics say, a disk may stand still for a while.
const MIN_LIMIT: Duration = Duration::from_secs(60);

/// The most kinds of models that are told apart; others have no statistics.
const KINDS: usize = 256;

/// Statistics of successful loads by runtime and format, from which the time limits of later loads come.
#[derive(Debug, Default)]
pub(crate) struct LoadTimes(Mutex<BTreeMap<Kind, Times>>);

/// Models that load alike: their runtime and format.
pub(crate) type Kind = (String, String);

/// Mean and variance of the times of loads, and the mean size of what was loaded.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    count: u32,
    mean: f64,
    /// The sum of squared differences from the mean, after Welford.
    squares: f64,
    bytes: f64,
}

impl LoadTimes {
    /// Takes the time of a load that succeeded.
    pub(crate) fn took(&self, kind: Kind, size: ByteSize, time: Duration) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() < KINDS || known.contains_key(&kind) {
            known.entry(kind).or_default().add(size.0 as f64, time.as_secs_f64());
        }
    }

    /// The time limit of a load of this size: `most`, or less where loads of the kind are known.
    pub(crate) fn limit(&self, kind: &Kind, size: ByteSize, most: Duration) -> Duration {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = known.get(kind).and_then(|times| times.limit(size.0 as f64));
        limit.map_or(most, |limit| limit.max(MIN_LIMIT).min(most))
    }
}

impl Times {
    fn add(&mut self, bytes: f64, seconds: f64) {
        self.count = self.count.saturating_add(1);
        let count = f64::from(self.count);
        let before = seconds - self.mean;
        self.mean += before / count;
        self.squares += before * (seconds - self.mean);
        self.bytes += (bytes - self.bytes) / count;
    }

    /// A larger model than usual is given as much more time.
    fn limit(&self, bytes: f64) -> Option<Duration> {
        if self.count < MIN_LOADS {
            return None;
        }
        let deviation = (self.squares / f64::from(self.count)).max(0.0).sqrt();
        let larger = if self.bytes > 0.0 { (bytes / self.bytes).max(1.0) } else { 1.0 };
        Duration::try_from_secs_f64((self.mean + DEVIATIONS * deviation) * LIMIT_FACTOR * larger).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MOST: Duration = Duration::from_secs(20 * 60);

    fn kind() -> Kind {
        ("onnx".to_owned(), "onnx".to_owned())
    }

    #[test]
    fn loads_that_are_known_have_a_limit_of_their_own() {
        let times = LoadTimes::default();
        let of = |size: u64| times.limit(&kind(), ByteSize(size), MOST);
        for n in 0..MIN_LOADS {
            assert_eq!(of(1), MOST, "after {n} loads");
            times.took(kind(), ByteSize(100), Duration::from_secs(20));
        }
        assert_eq!(of(100), Duration::from_secs(200));
        assert_eq!(of(1), Duration::from_secs(200), "a small one gets no less");
        assert_eq!(of(300), Duration::from_secs(600), "a large one gets more");
        assert_eq!(of(u64::MAX), MOST);
        let other = ("onnx".to_owned(), "sklearn".to_owned());
        assert_eq!(times.limit(&other, ByteSize(1), MOST), MOST);
    }

    #[test]
    fn quick_loads_have_a_minute() {
        let times = LoadTimes::default();
        (0..100).for_each(|_| times.took(kind(), ByteSize::ZERO, Duration::from_millis(3)));
        assert_eq!(times.limit(&kind(), ByteSize::gib(1), MOST), MIN_LIMIT);
    }

    #[test]
    fn kinds_are_bounded() {
        let times = LoadTimes::default();
        (0..2 * KINDS).for_each(|n| times.took((n.to_string(), String::new()), ByteSize(1), Duration::ZERO));
        assert_eq!(times.0.lock().expect("no panic").len(), KINDS);
    }

    proptest! {
        /// No load that was as long as one before it is given up, and no limit is outside the bounds.
        #[test]
        fn what_was_seen_is_let_pass(loads in prop::collection::vec((0_u64..1 << 40, 0_u64..100_000), 1..40)) {
            let times = LoadTimes::default();
            for (size, millis) in &loads {
                times.took(kind(), ByteSize(*size), Duration::from_millis(*millis));
            }
            for (size, millis) in loads {
                let limit = times.limit(&kind(), ByteSize(size), MOST);
                prop_assert!(limit >= Duration::from_millis(millis).min(MOST), "{limit:?} {millis} ms");
                prop_assert!((MIN_LIMIT..=MOST).contains(&limit));
            }
        }
    }
}
