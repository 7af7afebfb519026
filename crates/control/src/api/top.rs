//! Rates and latencies for `berth top`, from counters that only grow.
//!
//! ```text
//! each node: TopSource ──sample──▶ samples (a few, seconds apart) ──newest minus oldest in the window──▶ its busiest models
//! the one that is asked: the answers of all nodes ──together──▶ rates, quantiles
//! ```
//! A sample is taken when somebody asks, and every 10 s for the history. Quantiles of several nodes cannot be put together,
//! so that nodes tell each other how many requests took how long.

mod samples;

use std::{
    cmp::Ordering,
    collections::{BTreeMap, btree_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use berth_spec::Time;
use berth_wire::api::{LatencyMs, ModelTop};
use serde::{Deserialize, Serialize};

use self::samples::Samples;

/// Reads this node's gateway's counters: calls its argument for each model that was asked for since the start, in any order. Called
/// at most twice a second: it may walk the metrics but must not wait.
pub type TopSource = Arc<dyn Fn(&mut dyn FnMut(ModelCounters)) + Send + Sync>;

/// One model's counters, all of them since the start of the process.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelCounters {
    /// Name of the deployment, `NAMESPACE/NAME` outside of the default namespace.
    pub deployment: String,
    /// Requests in flight or parked now.
    pub in_flight: u64,
    /// Requests that were answered, failed ones included.
    pub requests: u64,
    /// Requests that ended with an error of any kind, the caller's included.
    pub failures: u64,
    /// Requests that found nothing ready.
    pub misses: u64,
    /// Latencies as a histogram: (upper bound in milliseconds, requests that took at most that long), ascending.
    pub latency: Vec<(f64, u64)>,
}

/// Period of the rates that people see. Smooths bursts and still follows a new load.
pub(crate) const WINDOW: Duration = Duration::from_secs(10);

/// Recent activity of one gateway, busiest models first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct GatewayTop {
    /// Period of the rates in milliseconds; 0 for the first sample.
    pub(crate) window_ms: u64,
    pub(crate) models: Vec<ModelUse>,
}

/// Use of one model at one gateway.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ModelUse {
    /// Without latency: that is said below.
    #[serde(flatten)]
    figures: ModelTop,
    /// Requests in the window that took at most so many milliseconds, ascending; `None`: longer than that, too.
    took: Vec<(Option<f64>, u64)>,
}

/// Turns counters into rates over a window.
pub(crate) struct Sampler {
    source: TopSource,
    window: Duration,
    samples: Mutex<Samples>,
}

impl Sampler {
    pub(crate) fn new(source: TopSource, window: Duration) -> Self {
        Self { source, window, samples: Mutex::default() }
    }

    /// The `limit` busiest models of those that the source knows.
    pub(crate) fn look(&self, now: Time, limit: usize) -> GatewayTop {
        self.sampled(now).busiest(limit)
    }

    /// The same, and all models together.
    pub(crate) fn look_at_all(&self, now: Time, limit: usize) -> (ModelTop, GatewayTop) {
        let samples = self.sampled(now);
        (samples.total(), samples.busiest(limit))
    }

    fn sampled(&self, now: Time) -> MutexGuard<'_, Samples> {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        if samples.wants_one(now) {
            samples.take(now, self.window, &self.source);
        }
        samples
    }
}

/// Order by use, busiest first.
pub(crate) fn by_use(a: &ModelTop, b: &ModelTop) -> Ordering {
    let busy = b.requests_per_second.total_cmp(&a.requests_per_second).then(b.in_flight.cmp(&a.in_flight));
    busy.then(b.memory.cmp(&a.memory)).then(b.requests.cmp(&a.requests)).then_with(|| a.deployment.cmp(&b.deployment))
}

/// Sums the activity of several gateways by model, over their longest window.
pub(crate) fn together(tops: impl IntoIterator<Item = GatewayTop>) -> (Duration, BTreeMap<String, ModelTop>) {
    let (mut window, mut models) = (0, BTreeMap::<String, ModelUse>::new());
    for top in tops {
        window = window.max(top.window_ms);
        for one in top.models {
            match models.entry(one.figures.deployment.clone()) {
                Entry::Vacant(none) => {
                    none.insert(one);
                }
                Entry::Occupied(mut sum) => sum.get_mut().add(one),
            }
        }
    }
    let figures = |(name, one): (String, ModelUse)| (name, ModelTop { latency: quantiles(&one.took), ..one.figures });
    (Duration::from_millis(window), models.into_iter().map(figures).collect())
}

impl ModelUse {
    fn add(&mut self, other: Self) {
        let (sum, more) = (&mut self.figures, other.figures);
        sum.in_flight += more.in_flight;
        sum.requests += more.requests;
        sum.failures += more.failures;
        sum.misses += more.misses;
        sum.requests_per_second += more.requests_per_second;
        sum.failures_per_second += more.failures_per_second;
        sum.misses_per_second += more.misses_per_second;
        self.took = joined(&self.took, &other.took);
    }
}

/// Sum of two cumulative histograms whose bounds may differ, at each bound of either.
fn joined(one: &[(Option<f64>, u64)], other: &[(Option<f64>, u64)]) -> Vec<(Option<f64>, u64)> {
    let bound = |bound: Option<f64>| bound.unwrap_or(f64::INFINITY);
    let mut bounds: Vec<Option<f64>> = one.iter().chain(other).map(|(bound, _)| *bound).collect();
    bounds.sort_by(|a, b| bound(*a).total_cmp(&bound(*b)));
    bounds.dedup();
    let below = |some: &[(Option<f64>, u64)], at: Option<f64>| {
        some.iter().rev().find(|(other, _)| bound(*other) <= bound(at)).map_or(0, |(_, count)| *count)
    };
    bounds.into_iter().map(|at| (at, below(one, at) + below(other, at))).collect()
}

/// Quantiles of a histogram; `None` where it is empty.
fn quantiles(took: &[(Option<f64>, u64)]) -> Option<LatencyMs> {
    let total = took.last().map_or(0, |(_, count)| *count);
    let took: Vec<(f64, u64)> = took.iter().map(|(bound, count)| (bound.unwrap_or(f64::INFINITY), *count)).collect();
    (total > 0).then(|| {
        let at = |quantile: f64| quantile_of(&took, quantile * total as f64);
        LatencyMs { p50: at(0.5), p90: at(0.9), p99: at(0.99) }
    })
}

/// Estimates the value of the `rank`-th request in `cumulative`. Interpolates inside its bucket as Prometheus'
/// `histogram_quantile` does; the last bucket gives its lower bound.
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
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;

    fn at(millis: u64) -> Time {
        Time(millis * 1_000_000)
    }

    /// Output of `berth top` for one gateway.
    fn shown(sampler: &Sampler, millis: u64) -> (Duration, Vec<ModelTop>) {
        let (window, models) = together([sampler.look(at(millis), 10)]);
        (window, models.into_values().collect())
    }

    #[test]
    fn rates_are_over_the_window() {
        let requests = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&requests);
        let source: TopSource = Arc::new(move |each| {
            let requests = counter.load(Relaxed);
            let latency = vec![(1.0, requests / 2), (2.0, requests), (f64::INFINITY, requests)];
            each(ModelCounters { deployment: "iris".into(), requests, misses: 1, latency, ..Default::default() });
        });
        let sampler = Sampler::new(source, WINDOW);
        let (window, models) = shown(&sampler, 1_000);
        assert_eq!((window, models[0].requests_per_second, models[0].latency), (Duration::ZERO, 0.0, None));
        requests.store(100, Relaxed);
        assert_eq!(shown(&sampler, 1_100).0, Duration::ZERO, "too soon for another sample");
        let (window, models) = shown(&sampler, 3_000);
        assert_eq!((window, models[0].requests_per_second), (Duration::from_secs(2), 50.0));
        assert_eq!((models[0].misses, models[0].misses_per_second), (1, 0.0));
        assert_eq!(models[0].latency.map(|latency| (latency.p50, latency.p90)), Some((1.0, 1.8)));
        let (window, models) = shown(&sampler, 60_000);
        assert_eq!((window, models[0].requests), (Duration::ZERO, 100), "old samples are forgotten");
    }

    #[test]
    fn several_gateways_are_told_as_one() {
        let gateway = |window_ms, requests, took: &[(Option<f64>, u64)]| {
            let figures = |name: &str| ModelTop {
                deployment: name.to_owned(),
                requests,
                in_flight: 1,
                requests_per_second: requests as f64,
                ..ModelTop::default()
            };
            let used = ModelUse { figures: figures("iris"), took: took.to_vec() };
            let own = ModelUse { figures: figures(&format!("own-{requests}")), took: Vec::new() };
            GatewayTop { window_ms, models: vec![used, own] }
        };
        let quick = gateway(9_000, 30, &[(Some(1.0), 30), (None, 30)]);
        let slow = gateway(2_000, 10, &[(Some(1.0), 0), (Some(8.0), 10), (None, 10)]);
        // As they come from other nodes.
        let text = serde_json::to_string(&slow).expect("it has a JSON form");
        let (window, models) = together([quick, serde_json::from_str(&text).expect("it is read")]);
        assert_eq!((window, models.len()), (Duration::from_secs(9), 3));
        let iris = &models["iris"];
        assert_eq!((iris.requests, iris.in_flight, iris.requests_per_second), (40, 2, 40.0));
        let latency = iris.latency.expect("there were requests");
        assert!(latency.p50 < 1.0 && latency.p90 > 1.0 && latency.p99 < 8.0, "{latency:?}");
        assert_eq!(together([]), (Duration::ZERO, BTreeMap::new()));
    }

    #[test]
    fn quantiles_lie_inside_their_buckets() {
        let buckets = [(1.0, 10), (10.0, 10), (100.0, 20), (f64::INFINITY, 21)];
        for (rank, expected) in [(5.0, 0.5), (10.0, 1.0), (15.0, 55.0), (21.0, 100.0)] {
            assert!((quantile_of(&buckets, rank) - expected).abs() < 1e-9, "{rank}");
        }
        assert_eq!(quantile_of(&[], 1.0), 0.0);
    }
}
