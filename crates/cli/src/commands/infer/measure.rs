//! Many requests at once, and how long they took.

use std::{
    num::{NonZeroU32, NonZeroU64},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use super::Caller;
use crate::{failure::Failure, terminal::Rows};

/// Measured figures.
#[derive(Debug)]
pub(super) struct Figures {
    latencies: Histogram<u64>,
    failures: u64,
    first_failure: Option<Failure>,
    took: Duration,
    concurrency: u32,
}

/// Sends the request `repeat` times from `concurrency` callers that each wait for their answer.
pub(super) async fn measure(caller: &Caller, repeat: NonZeroU64, concurrency: NonZeroU32) -> Result<Figures, Failure> {
    // The first opens connections and loads a cold model; an answer that is an error ends it here, with its message.
    caller.call().await?;
    let left = Arc::new(AtomicU64::new(repeat.get()));
    let began = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..concurrency.get() {
        callers.spawn(ask(caller.clone(), Arc::clone(&left)));
    }
    let mut figures = Figures {
        latencies: histogram(),
        failures: 0,
        first_failure: None,
        took: Duration::ZERO,
        concurrency: concurrency.get(),
    };
    while let Some(done) = callers.join_next().await {
        let (latencies, failures) = done.map_err(|e| Failure::doing("a caller broke", e))?;
        figures.latencies.add(latencies).map_err(|e| Failure::doing("cannot add up latencies", e))?;
        for failure in failures {
            figures.failures += 1;
            figures.first_failure.get_or_insert(failure);
        }
    }
    figures.took = began.elapsed();
    Ok(figures)
}

/// Microseconds with three digits; grows as needed.
fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three significant digits are allowed")
}

async fn ask(caller: Caller, left: Arc<AtomicU64>) -> (Histogram<u64>, Vec<Failure>) {
    let (mut latencies, mut failures) = (histogram(), Vec::new());
    while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
        let began = Instant::now();
        match caller.call().await {
            Ok(()) => {
                let micros = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
                // It grows as needed; what 64 bits of microseconds do not hold does not come about.
                let _ = latencies.record(micros);
            }
            Err(failure) => failures.push(failure),
        }
    }
    (latencies, failures)
}

impl Figures {
    /// One row of figures.
    pub(super) fn render(&self) -> String {
        let millis = |micros: u64| format!("{:.3}ms", micros as f64 / 1_000.0);
        let at = |quantile: f64| millis(self.latencies.value_at_quantile(quantile));
        let answered = self.latencies.len();
        let rate = answered as f64 / self.took.as_secs_f64().max(1e-9);
        let mut rows =
            Rows::new(&["REQUESTS", "FAILED", "AT ONCE", "RATE", "MEAN", "p50", "p90", "p99", "p99.9", "MAX"]);
        rows.add([
            (answered + self.failures).to_string(),
            self.failures.to_string(),
            self.concurrency.to_string(),
            format!("{rate:.0}/s"),
            format!("{:.3}ms", self.latencies.mean() / 1_000.0),
            at(0.5),
            at(0.9),
            at(0.99),
            at(0.999),
            millis(self.latencies.max()),
        ]);
        rows.render()
    }

    /// Failure of the run, if there was one.
    pub(super) fn failure(self) -> Option<Failure> {
        let count = self.failures;
        self.first_failure.map(|failure| failure.with(|first| format!("{count} requests failed, the first: {first}")))
    }
}
