//! Rates and latencies for `berth top`, from counters that only grow.
//!
//! ```text
//! TopSource ──sample──▶ history (a few, seconds apart) ──newest minus oldest in the window──▶ rates, quantiles
//! ```
//! Nothing runs while nobody looks: a sample is taken when somebody asks.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use berth_spec::Time;
use berth_wire::api::{LatencyMs, ModelTop};

/// Reads the gateway's counters: one entry per model that was asked for since the start. Called at most twice a
/// second, from the API's runtime: it may walk the metrics but must not wait.
pub type TopSource = Arc<dyn Fn() -> Vec<ModelCounters> + Send + Sync>;

/// One model's counters, all of them since the start of the process.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelCounters {
    /// The deployment.
    pub deployment: String,
    /// Requests in flight or parked now.
    pub in_flight: u64,
    /// Requests that were answered, failed ones included.
    pub requests: u64,
    /// Requests that failed.
    pub failures: u64,
    /// Requests that found nothing ready.
    pub misses: u64,
    /// Latencies as a histogram: (upper bound in milliseconds, requests that took at most that long), ascending.
    pub latency: Vec<(f64, u64)>,
}

/// How far back rates look. Halved, figures jump with every burst; doubled, they lag behind what one just started.
const WINDOW: Duration = Duration::from_secs(10);

/// Samples are at least this far apart. Halved, two viewers cost twice as much; doubled, `top` looks frozen.
const SPACING: Duration = Duration::from_millis(500);

/// What was counted when.
#[derive(Debug, Default)]
struct History(VecDeque<(Time, BTreeMap<String, ModelCounters>)>);

/// Turns counters into rates.
pub(crate) struct Sampler {
    source: TopSource,
    history: Mutex<History>,
}

impl Sampler {
    pub(crate) fn new(source: TopSource) -> Self {
        Self { source, history: Mutex::default() }
    }

    /// Figures of every model that the source knows, and the window that they are taken over.
    pub(crate) fn look(&self, now: Time) -> (Duration, Vec<ModelTop>) {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        if history.wants_sample(now) {
            history.push(now, (self.source)());
        }
        history.figures()
    }
}

impl History {
    fn wants_sample(&self, now: Time) -> bool {
        self.0.back().is_none_or(|(at, _)| now.since(*at) >= SPACING)
    }

    fn push(&mut self, now: Time, counters: Vec<ModelCounters>) {
        self.0.retain(|(at, _)| now.since(*at) <= WINDOW);
        let by_name = counters.into_iter().map(|counters| (counters.deployment.clone(), counters)).collect();
        self.0.push_back((now, by_name));
    }

    fn figures(&self) -> (Duration, Vec<ModelTop>) {
        let (Some((began, before)), Some((ended, after))) = (self.0.front(), self.0.back()) else {
            return (Duration::ZERO, Vec::new());
        };
        let window = ended.since(*began);
        let nothing = ModelCounters::default();
        let models = after.values().map(|new| figures(before.get(&new.deployment).unwrap_or(&nothing), new, window));
        (window, models.collect())
    }
}

fn figures(old: &ModelCounters, new: &ModelCounters, window: Duration) -> ModelTop {
    let rate = |old: u64, new: u64| match window.as_secs_f64() {
        seconds if seconds > 0.0 => new.saturating_sub(old) as f64 / seconds,
        _ => 0.0,
    };
    ModelTop {
        deployment: new.deployment.clone(),
        in_flight: new.in_flight,
        requests: new.requests,
        failures: new.failures,
        misses: new.misses,
        requests_per_second: rate(old.requests, new.requests),
        failures_per_second: rate(old.failures, new.failures),
        misses_per_second: rate(old.misses, new.misses),
        latency: latency(&old.latency, &new.latency),
        ..ModelTop::default()
    }
}

/// Quantiles of what was added to a histogram; `None` where nothing was.
fn latency(old: &[(f64, u64)], new: &[(f64, u64)]) -> Option<LatencyMs> {
    let before = |bound: f64| old.iter().find(|(other, _)| *other == bound).map_or(0, |(_, count)| *count);
    let added: Vec<(f64, u64)> =
        new.iter().map(|(bound, count)| (*bound, count.saturating_sub(before(*bound)))).collect();
    let total = added.last().map_or(0, |(_, count)| *count);
    (total > 0).then(|| {
        let at = |quantile: f64| quantile_of(&added, quantile * total as f64);
        LatencyMs { p50: at(0.5), p90: at(0.9), p99: at(0.99) }
    })
}

/// Where in `cumulative` the `rank`-th request lies, interpolated inside its bucket as Prometheus'
/// `histogram_quantile` does; for the open last bucket, its lower bound.
fn quantile_of(cumulative: &[(f64, u64)], rank: f64) -> f64 {
    let (mut lower, mut below) = (0.0, 0.0);
    for (upper, count) in cumulative {
        let count = *count as f64;
        if count >= rank {
            let inside = if count > below { (rank - below) / (count - below) } else { 1.0 };
            return if upper.is_finite() { lower + (upper - lower) * inside } else { lower };
        }
        (lower, below) = (*upper, count);
    }
    lower
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn at(millis: u64) -> Time {
        Time(millis * 1_000_000)
    }

    #[test]
    fn rates_are_over_the_window() {
        let requests = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&requests);
        let sampler = Sampler::new(Arc::new(move || {
            let requests = counter.load(Ordering::Relaxed);
            let latency = vec![(1.0, requests / 2), (2.0, requests), (f64::INFINITY, requests)];
            vec![ModelCounters { deployment: "iris".into(), requests, misses: 1, latency, ..Default::default() }]
        }));
        let (window, models) = sampler.look(at(1_000));
        assert_eq!((window, models[0].requests_per_second, models[0].latency), (Duration::ZERO, 0.0, None));
        requests.store(100, Ordering::Relaxed);
        assert_eq!(sampler.look(at(1_100)).0, Duration::ZERO, "too soon for another sample");
        let (window, models) = sampler.look(at(3_000));
        assert_eq!((window, models[0].requests_per_second), (Duration::from_secs(2), 50.0));
        assert_eq!((models[0].misses, models[0].misses_per_second), (1, 0.0));
        assert_eq!(models[0].latency.map(|latency| (latency.p50, latency.p90)), Some((1.0, 1.8)));
        let (window, models) = sampler.look(at(60_000));
        assert_eq!((window, models[0].requests), (Duration::ZERO, 100), "old samples are forgotten");
    }

    #[test]
    fn quantiles() {
        let buckets = [(1.0, 10), (10.0, 10), (100.0, 20), (f64::INFINITY, 21)];
        for (rank, expected) in [(5.0, 0.5), (10.0, 1.0), (15.0, 55.0), (21.0, 100.0)] {
            assert!((quantile_of(&buckets, rank) - expected).abs() < 1e-9, "{rank}");
        }
        assert_eq!(latency(&buckets, &buckets), None);
        assert_eq!(quantile_of(&[], 1.0), 0.0);
    }
}
