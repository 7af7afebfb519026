//! Counts and times of one model since it was loaded: for the statistics extension of the protocol, and for the
//! guesses of how long a run takes.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use berth_mesh::local::{Statistics, Sum};

use super::join::RunTimings;

/// The weight of one run in the moving average, 1/8: a model whose inputs grew is moved to the pool soon, and one slow
/// run does not move it.
const WEIGHT: u64 = 8;

/// Batch sizes that are counted apart; larger ones are counted with the largest of them. Bounds memory, not accuracy:
/// `max_rows` beyond it is rare.
const MAX_SIZES: usize = 256;

/// The resolution of averages of rows, in parts of a row: finer than the weight.
const PART: u64 = 256;

/// Counts of the runs of one model, and averages of their time and rows.
#[derive(Debug, Default)]
pub struct Tally {
    run_ns: AtomicU64,
    /// Rows of such a run, in [`PART`]s of a row; zero before the first.
    run_rows: AtomicU64,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    sums: Statistics,
    batches: BTreeMap<u64, [Sum; 3]>,
}

/// One run of the engine and what it was for.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// Requests that were joined into it, 1 without batching.
    pub requests: u64,
    /// Those of them that got an answer; the others failed.
    pub succeeded: u64,
    /// Rows of all of them together; a request that is not batchable counts as one.
    pub rows: u64,
    /// The calls of the engine for one run: more than one where a batch had to be run one by one.
    pub executions: u64,
    /// The time by what it was spent on.
    pub timings: RunTimings,
    /// The waiting time of its requests, together.
    pub queued: Duration,
    /// The time of its successful requests from push to answer, together.
    pub total: Duration,
}

impl Tally {
    /// The moving average of one run of the engine; zero before the first.
    #[must_use]
    pub fn run_time(&self) -> Duration {
        Duration::from_nanos(self.run_ns.load(Ordering::Relaxed))
    }

    /// Adds a run to the counts, and its time to the moving average.
    pub fn ran(&self, run: &Run) {
        let executions = run.executions.max(1);
        self.seed(run.rows / executions, run.timings.infer / u32::try_from(executions).unwrap_or(u32::MAX));
        let mut counts = self.locked();
        let sums = &mut counts.sums;
        sums.last_inference_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        sums.inference_count += run.rows;
        sums.execution_count += run.executions;
        add(&mut sums.success, run.succeeded, run.total);
        add(&mut sums.queue, run.requests, run.queued);
        add(&mut sums.compute_input, run.requests, run.timings.input);
        add(&mut sums.compute_infer, run.requests, run.timings.infer);
        add(&mut sums.compute_output, run.requests, run.timings.output);
        if counts.batches.len() < MAX_SIZES || counts.batches.contains_key(&run.rows) {
            let [input, infer, output] = counts.batches.entry(run.rows).or_default();
            add(input, 1, run.timings.input);
            add(infer, 1, run.timings.infer);
            add(output, 1, run.timings.output);
        }
    }

    /// The expected time of a run of `rows` rows: longer than the average as it has more rows, and never shorter, as a
    /// part of the time is the run's own. `None` before the first run.
    #[must_use]
    pub fn expected(&self, rows: u64) -> Option<Duration> {
        let run = self.run_ns.load(Ordering::Relaxed);
        let average = self.run_rows.load(Ordering::Relaxed).max(1);
        let parts = rows.saturating_mul(PART).max(average);
        let ns = u128::from(run) * u128::from(parts) / u128::from(average);
        (run > 0).then(|| Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)))
    }

    /// Puts one measured run of `rows` rows into the moving averages.
    pub fn seed(&self, rows: u64, run: Duration) {
        average(&self.run_ns, u64::try_from(run.as_nanos()).unwrap_or(u64::MAX));
        average(&self.run_rows, rows.max(1).saturating_mul(PART));
    }

    /// Counts a request that failed after `took`.
    pub fn failed(&self, took: Duration) {
        add(&mut self.locked().sums.fail, 1, took);
    }

    /// All of it; `memory` is the model's.
    #[must_use]
    pub fn statistics(&self, memory: u64) -> Statistics {
        let counts = self.locked();
        let batches = counts.batches.iter().map(|(&rows, &[input, infer, output])| (rows, input, infer, output));
        Statistics { batches: batches.collect(), memory, ..counts.sums.clone() }
    }

    fn locked(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn average(average: &AtomicU64, new: u64) {
    let (old, new) = (average.load(Ordering::Relaxed), new.max(1));
    let next = if old == 0 { new } else { (old.saturating_mul(WEIGHT - 1).saturating_add(new)) / WEIGHT };
    average.store(next, Ordering::Relaxed);
}

fn add(sum: &mut Sum, count: u64, time: Duration) {
    sum.count += count;
    sum.ns += u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_rows_are_expected_to_take_longer() {
        let (tally, micros) = (Tally::default(), Duration::from_micros);
        assert_eq!(tally.expected(1), None, "never ran");
        tally.seed(2, micros(100));
        assert_eq!(tally.expected(1), Some(micros(100)), "not less: who knows what is the run's own");
        assert_eq!(tally.expected(2), Some(micros(100)));
        assert_eq!(tally.expected(1000), Some(micros(50_000)));
    }
}
