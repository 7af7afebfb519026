//! Chooses the rows of a long run: as many as make a row cheaper, and no more.
//!
//! Joining rows pays where a run has a fixed cost or reads the same weights for every row (perceptrons,
//! transformers); it pays nothing, and costs caches and latency, where the work of a row is its own (convolutions).
//! Which it is, is measured: the cost of a row is remembered per size of run, in powers of two, and the smallest size
//! that is about as cheap as the cheapest is used. Now and then a neighbour is tried.

use std::time::Duration;

/// Sizes: 1, 2 to 3, 4 to 7, … up to 2^15 rows.
const SIZES: usize = 16;
/// The gain per row that justifies a larger run: above the noise of measurements, and small enough to find gains of a
/// tenth.
const GAIN: f64 = 0.08;
/// The runs until another size is tried again: models that gain nothing lose little by it, and a change in the requests
/// is noticed soon.
const TRY_EVERY: u32 = 64;
/// The weight of a new measurement: after some ten, what was before no longer shows.
const WEIGHT: f64 = 0.25;

/// The measured costs of a row by size of run, and the size that they recommend.
#[derive(Debug, Clone, Default)]
pub struct BatchSizer {
    /// Nanoseconds per row, by size; `None`: never seen.
    cost: [Option<f64>; SIZES],
    turn: u32,
}

impl BatchSizer {
    /// Notes that a run of `rows` rows took `time`: a moving average for runs of that size.
    pub fn learn(&mut self, rows: u64, time: Duration) {
        let Some(log) = rows.checked_ilog2() else { return };
        let cost = &mut self.cost[(log as usize).min(SIZES - 1)];
        let new = time.as_nanos() as f64 / rows as f64;
        *cost = Some(cost.map_or(new, |old| old + WEIGHT * (new - old)));
    }

    /// The most rows for the next run.
    pub fn most_rows(&mut self) -> u32 {
        self.turn = self.turn.wrapping_add(1);
        let known = self.cost.iter().flatten();
        let best = known.fold(f64::INFINITY, |best, &cost| best.min(cost));
        let enough = |cost: &Option<f64>| cost.is_some_and(|cost| cost <= best * (1.0 + GAIN));
        let Some(size) = self.cost.iter().position(enough) else { return 1 };
        let unknown = self.cost.get(size + 1).is_some_and(Option::is_none);
        let size = match (self.turn % TRY_EVERY, self.turn / TRY_EVERY % 3) {
            // Two sizes up as well, so that a size that is worse does not hide a better one behind it.
            (0, tried @ 0..=1) => size + 1 + tried as usize,
            (0, _) => size.saturating_sub(1),
            _ if unknown => size + 1,
            _ => size,
        };
        (2 << size.min(SIZES - 1)) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size at which the sizer ends up for a model whose run of n rows takes `cost(n)` microseconds, always with a full
    /// queue: the size of most of the last 64 runs.
    fn settles(cost: impl Fn(f64) -> f64) -> u32 {
        let mut sizer = BatchSizer::default();
        let mut last = Vec::new();
        for _ in 0..1000 {
            let rows = sizer.most_rows().min(256);
            sizer.learn(u64::from(rows), Duration::from_nanos((cost(f64::from(rows)) * 1e3) as u64));
            last.push(rows);
        }
        let mut last = last.split_off(last.len() - 63);
        last.sort_unstable();
        last[31]
    }

    #[test]
    fn grows_only_where_rows_become_cheaper() {
        assert_eq!(settles(|rows| 1000.0 * rows), 1, "nothing to gain");
        assert_eq!(settles(|rows| 1000.0 * rows.powf(1.2)), 1, "something to lose");
        assert_eq!(settles(|rows| 20.0 + 1000.0 * rows), 1, "hardly anything to gain");
        assert!(settles(|rows| 1000.0 + 10.0 * rows) >= 127, "almost all is the run's own cost");
        let perceptron = settles(|rows| 26.0 + 10.0 * rows);
        assert!((15..=63).contains(&perceptron), "{perceptron}");
    }

    #[test]
    fn follows_a_change() {
        let mut sizer = BatchSizer::default();
        for _ in 0..500 {
            let rows = sizer.most_rows().min(64);
            sizer.learn(u64::from(rows), Duration::from_millis(1) * rows);
        }
        for _ in 0..2000 {
            let rows = sizer.most_rows().min(64);
            sizer.learn(u64::from(rows), Duration::from_millis(10) + Duration::from_micros(50) * rows);
        }
        let mut sizes: Vec<u32> = (0..63).map(|_| sizer.most_rows()).collect();
        sizes.sort_unstable();
        assert!(sizes[31] >= 63, "{sizes:?}");
    }
}
