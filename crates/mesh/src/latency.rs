//! A histogram of durations with fixed bounds: one relaxed add to record, no lock, the same bounds everywhere, so that
//! two of them can be added or subtracted.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// The bounds of one decade, as multiples of its beginning. 1, 2 and 5 are told to Prometheus; the others make
/// quantiles sharper (within 20 % at worst).
const STEPS: [u64; 7] = [10, 15, 20, 30, 40, 50, 70];
/// 10 µs to 100 s.
const DECADES: usize = 7;
/// Buckets with an upper bound; one more holds what is longer.
const BOUNDED: usize = STEPS.len() * DECADES + 1;
/// All buckets.
pub(crate) const BUCKETS: usize = BOUNDED + 1;

/// Upper bounds in nanoseconds, ascending.
static BOUNDS: [u64; BOUNDED] = bounds();

const fn bounds() -> [u64; BOUNDED] {
    let mut bounds = [0; BOUNDED];
    let (mut decade, mut at, mut index) = (0, 1_000, 0);
    while decade < DECADES {
        let mut step = 0;
        while step < STEPS.len() {
            bounds[index] = STEPS[step] * at;
            index += 1;
            step += 1;
        }
        at *= 10;
        decade += 1;
    }
    bounds[index] = 10 * at;
    bounds
}

/// Durations that were recorded, by bucket.
pub(crate) struct Latency {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Default for Latency {
    fn default() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; BUCKETS], sum_ns: AtomicU64::new(0) }
    }
}

impl Latency {
    /// Counts a duration in its bucket. Takes no lock.
    pub(crate) fn record(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.partition_point(|&bound| bound < ns);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// The durations that were recorded up to now.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot { counts: [0; BUCKETS], sum_ns: self.sum_ns.load(Ordering::Relaxed) };
        for (to, from) in snapshot.counts.iter_mut().zip(&self.counts) {
            *to = from.load(Ordering::Relaxed);
        }
        snapshot
    }
}

/// The counts of a [`Latency`] at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    counts: [u64; BUCKETS],
    sum_ns: u64,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], sum_ns: 0 }
    }
}

impl Snapshot {
    /// The number of durations that were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of the durations, in seconds.
    #[must_use]
    pub fn sum_seconds(&self) -> f64 {
        self.sum_ns as f64 / 1e9
    }

    /// The durations that were recorded after `earlier` was taken.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut difference = self.clone();
        for (count, before) in difference.counts.iter_mut().zip(&earlier.counts) {
            *count = count.saturating_sub(*before);
        }
        difference.sum_ns = self.sum_ns.saturating_sub(earlier.sum_ns);
        difference
    }

    /// The histogram of the durations of both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let mut sum = self.clone();
        for (count, more) in sum.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        sum.sum_ns += other.sum_ns;
        sum
    }

    /// The duration that a share `q` (0 to 1) of them did not exceed, interpolated inside its bucket; `None` when
    /// nothing was recorded.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = q.clamp(0.0, 1.0) * count as f64;
        let mut below = 0.0;
        for (bucket, &here) in self.counts.iter().enumerate().filter(|(_, here)| **here > 0) {
            let here = here as f64;
            if below + here >= rank {
                let low = bucket.checked_sub(1).map_or(0, |before| BOUNDS[before]);
                let high = BOUNDS.get(bucket).copied().unwrap_or(low);
                let inside = ((rank - below) / here).clamp(0.0, 1.0);
                return Some(Duration::from_nanos(low + ((high - low) as f64 * inside) as u64));
            }
            below += here;
        }
        None
    }

    /// Every upper bound in milliseconds, and how many took at most that long; the last bound is infinite.
    #[must_use]
    pub fn cumulative_ms(&self) -> Vec<(f64, u64)> {
        let mut gathered = 0;
        let bounds = BOUNDS.iter().map(|&ns| ns as f64 / 1e6).chain([f64::INFINITY]);
        let mut gather = |count: &u64| {
            gathered += count;
            gathered
        };
        bounds.zip(self.counts.iter().map(&mut gather)).collect()
    }

    /// For Prometheus: (upper bound in seconds, count in this bucket alone), bounds 1, 2 and 5 of each decade.
    pub(crate) fn coarse(&self) -> Vec<(f64, u64)> {
        let mut coarse = Vec::with_capacity(3 * DECADES + 2);
        let mut gathered = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            gathered += count;
            let told = bucket == BOUNDED || matches!(bucket % STEPS.len(), 0 | 2 | 5);
            if told {
                let bound = BOUNDS.get(bucket).map_or(f64::INFINITY, |&ns| ns as f64 / 1e9);
                coarse.push((bound, gathered));
                gathered = 0;
            }
        }
        coarse
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_ascend_from_ten_microseconds_to_a_hundred_seconds() {
        assert!(BOUNDS.is_sorted());
        assert_eq!((BOUNDS[0], BOUNDS[BOUNDED - 1]), (10_000, 100_000_000_000));
    }

    #[test]
    fn quantiles_lie_in_the_bucket_of_the_value() {
        let latency = Latency::default();
        for ms in 1..=100 {
            latency.record(Duration::from_millis(ms));
        }
        let snapshot = latency.snapshot();
        for (q, expected) in [(0.5, 50.0), (0.9, 90.0), (0.99, 99.0)] {
            let got = snapshot.quantile(q).expect("recorded").as_secs_f64() * 1e3;
            assert!((got - expected).abs() / expected < 0.2, "{q}: {got} ms");
        }
        assert_eq!(snapshot.since(&snapshot).quantile(0.5), None);
        assert_eq!(snapshot.coarse().iter().map(|(_, n)| n).sum::<u64>(), 100);
        latency.record(Duration::from_secs(1_000));
        assert_eq!(latency.snapshot().coarse().last(), Some(&(f64::INFINITY, 1)));
    }
}
