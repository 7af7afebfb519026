//! Random numbers from a seed (SplitMix64): the same seed, the same story.

use std::time::Duration;

/// A stream of numbers.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// The stream that belongs to a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// An index into something of this length, which must not be 0.
    pub fn index(&mut self, len: usize) -> usize {
        let len = u64::try_from(len).expect("what is in memory can be counted");
        usize::try_from(self.below(len)).expect("below a usize")
    }

    /// One of these, which must not be none.
    pub fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.index(all.len())]
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A time from nothing up to `most`.
    pub fn up_to(&mut self, most: Duration) -> Duration {
        match u64::try_from(most.as_micros()) {
            Ok(0) | Err(_) => Duration::ZERO,
            Ok(micros) => Duration::from_micros(self.below(micros)),
        }
    }

    /// A time between two.
    pub fn between(&mut self, least: Duration, most: Duration) -> Duration {
        least + self.up_to(most.saturating_sub(least))
    }
}

/// A distribution of use: the n-th thing is used about 1/n as often as the first (Zipf's law, exponent 1).
#[derive(Debug, Clone)]
pub struct Zipf {
    /// For each the sum of the weights up to it.
    sums: Vec<u64>,
}

impl Zipf {
    /// For `n` things, which must not be 0.
    #[must_use]
    pub fn new(n: u64) -> Self {
        const WHOLE: u64 = 1 << 32;
        let mut sum = 0;
        let sums = (1..=n).map(|rank| {
            sum += WHOLE / rank;
            sum
        });
        Self { sums: sums.collect() }
    }

    /// One of them.
    pub fn pick(&self, rng: &mut Rng) -> usize {
        let at = rng.below(self.sums.last().copied().unwrap_or(1));
        self.sums.partition_point(|sum| *sum <= at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_prefers_the_first_and_reaches_the_last() {
        let (zipf, mut rng) = (Zipf::new(100), Rng::new(7));
        let mut counts = [0_u32; 100];
        for _ in 0..20_000 {
            counts[zipf.pick(&mut rng)] += 1;
        }
        assert!(counts[0] > 3 * counts[9] && counts.iter().all(|count| *count > 0), "{counts:?}");
    }
}
