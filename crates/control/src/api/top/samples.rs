//! Samples of a gateway's counters, a few seconds apart. Nearly all of 100,000 models are silent between two of them, and nearly
//! all buckets of a histogram are empty: what did not change is held once, and what is empty not at all.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use berth_spec::Time;
use berth_wire::api::ModelTop;

use super::{GatewayTop, ModelCounters, ModelUse, TopSource, by_use, quantiles};

/// Shortest interval between samples, so that several viewers cost no more than one.
const SPACING: Duration = Duration::from_millis(500);

/// Samples with their times, the models of each by name.
#[derive(Debug, Default)]
pub(super) struct Samples(VecDeque<(Time, Vec<Arc<Sampled>>)>);

/// Counters of one model.
#[derive(Debug)]
struct Sampled {
    deployment: Box<str>,
    in_flight: u64,
    requests: u64,
    failures: u64,
    misses: u64,
    took: Box<[Bucket]>,
}

/// Requests that took at most `up_to` milliseconds, and more than `above`.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    above: f64,
    up_to: f64,
    count: u64,
}

impl Samples {
    pub(super) fn wants_one(&self, now: Time) -> bool {
        self.0.back().is_none_or(|(at, _)| now.since(*at) >= SPACING)
    }

    /// Takes a sample, and forgets those that are older than `window`.
    pub(super) fn take(&mut self, now: Time, window: Duration, source: &TopSource) {
        self.0.retain(|(at, _)| now.since(*at) <= window);
        let before = self.0.back().map_or(&[][..], |(_, models)| models.as_slice());
        let mut models = Vec::with_capacity(before.len());
        source(&mut |counters| models.push(sampled(before, counters)));
        models.sort_unstable_by(|a, b| a.deployment.cmp(&b.deployment));
        self.0.push_back((now, models));
    }

    /// The `limit` busiest models between the first sample and the last, busiest first.
    pub(super) fn busiest(&self, limit: usize) -> GatewayTop {
        let Some((window, mut models)) = self.differences() else { return GatewayTop::default() };
        if models.len() > limit {
            models.select_nth_unstable_by(limit, |a, b| a.order().cmp(&b.order()));
            models.truncate(limit);
        }
        let mut models: Vec<ModelUse> = models.iter().map(|model| model.figures(window)).collect();
        models.sort_by(|a, b| by_use(&a.figures, &b.figures));
        GatewayTop { window_ms: u64::try_from(window.as_millis()).unwrap_or(u64::MAX), models }
    }

    /// Rates and latencies of all models together.
    pub(super) fn total(&self) -> ModelTop {
        let Some((window, models)) = self.differences() else { return ModelTop::default() };
        let mut sum = ModelTop::default();
        let (mut requests, mut failures, mut misses) = (0, 0, 0);
        let mut took: BTreeMap<u64, Bucket> = BTreeMap::new();
        for model in models {
            sum.in_flight += model.new.in_flight;
            sum.requests += model.new.requests;
            sum.failures += model.new.failures;
            sum.misses += model.new.misses;
            requests += model.since(|sampled| sampled.requests);
            failures += model.since(|sampled| sampled.failures);
            misses += model.since(|sampled| sampled.misses);
            for bucket in model.added() {
                // The bits of positive numbers sort as they do.
                took.entry(bucket.up_to.to_bits()).or_insert(Bucket { count: 0, ..bucket }).count += bucket.count;
            }
        }
        ModelTop {
            requests_per_second: rate(requests, window),
            failures_per_second: rate(failures, window),
            misses_per_second: rate(misses, window),
            latency: quantiles(&cumulative(took.into_values())),
            ..sum
        }
    }

    /// Each model in the first sample and in the last, with the time between them.
    fn differences(&self) -> Option<(Duration, Vec<Difference<'_>>)> {
        let ((began, before), (ended, after)) = (self.0.front()?, self.0.back()?);
        let differences = after.iter().map(|new| {
            let old = find(before, &new.deployment).map(Arc::as_ref);
            Difference { old, new }
        });
        Some((ended.since(*began), differences.collect()))
    }
}

/// Counters as they are held: those of the sample before where nothing has changed since.
fn sampled(before: &[Arc<Sampled>], now: ModelCounters) -> Arc<Sampled> {
    let counts = (now.in_flight, now.requests, now.failures, now.misses);
    let known = find(before, &now.deployment)
        .filter(|known| (known.in_flight, known.requests, known.failures, known.misses) == counts);
    known.map_or_else(|| Arc::new(Sampled::of(now)), Arc::clone)
}

fn find<'a>(models: &'a [Arc<Sampled>], deployment: &str) -> Option<&'a Arc<Sampled>> {
    let at = models.binary_search_by(|known| (*known.deployment).cmp(deployment)).ok()?;
    models.get(at)
}

impl Sampled {
    fn of(counters: ModelCounters) -> Self {
        let ModelCounters { deployment, in_flight, requests, failures, misses, latency } = counters;
        Self { deployment: deployment.into(), in_flight, requests, failures, misses, took: buckets(&latency) }
    }
}

/// One model in two samples; `old`: not in the first one.
#[derive(Debug, Clone, Copy)]
struct Difference<'a> {
    old: Option<&'a Sampled>,
    new: &'a Sampled,
}

impl<'a> Difference<'a> {
    fn since(&self, count: impl Fn(&Sampled) -> u64) -> u64 {
        count(self.new).saturating_sub(self.old.map_or(0, &count))
    }

    /// The order of [`by_use`], from counts alone: the busiest first.
    fn order(&self) -> impl Ord + use<'a> {
        let requests = self.since(|sampled| sampled.requests);
        (Reverse((requests, self.new.in_flight, self.new.requests)), &*self.new.deployment)
    }

    fn figures(&self, window: Duration) -> ModelUse {
        let figures = ModelTop {
            deployment: self.new.deployment.to_string(),
            in_flight: self.new.in_flight,
            requests: self.new.requests,
            failures: self.new.failures,
            misses: self.new.misses,
            requests_per_second: rate(self.since(|sampled| sampled.requests), window),
            failures_per_second: rate(self.since(|sampled| sampled.failures), window),
            misses_per_second: rate(self.since(|sampled| sampled.misses), window),
            ..ModelTop::default()
        };
        ModelUse { figures, took: cumulative(self.added()) }
    }

    /// Requests that came between the samples, by how long they took.
    fn added(&self) -> impl Iterator<Item = Bucket> + use<'a> {
        let (old, new) = (self.old.map_or(&[][..], |old| &*old.took), &*self.new.took);
        new.iter().filter_map(move |bucket| {
            let before = old.iter().find(|other| other.up_to.to_bits() == bucket.up_to.to_bits());
            let count = bucket.count.saturating_sub(before.map_or(0, |before| before.count));
            (count > 0).then_some(Bucket { count, ..*bucket })
        })
    }
}

/// Times per second.
fn rate(count: u64, window: Duration) -> f64 {
    match window.as_secs_f64() {
        seconds if seconds > 0.0 => count as f64 / seconds,
        _ => 0.0,
    }
}

/// The buckets of a cumulative histogram that have any requests.
fn buckets(latency: &[(f64, u64)]) -> Box<[Bucket]> {
    let (mut above, mut below) = (0.0, 0);
    let mut buckets = Vec::new();
    for (up_to, count) in latency.iter().copied() {
        if count > below {
            buckets.push(Bucket { above, up_to, count: count - below });
        }
        (above, below) = (up_to, count.max(below));
    }
    buckets.into_boxed_slice()
}

/// The cumulative histogram again, without the bounds that say nothing.
fn cumulative(buckets: impl Iterator<Item = Bucket>) -> Vec<(Option<f64>, u64)> {
    let (mut took, mut end, mut count) = (Vec::new(), 0.0, 0);
    for bucket in buckets {
        if bucket.above > end {
            took.push((Some(bucket.above), count));
        }
        count += bucket.count;
        took.push((Some(bucket.up_to).filter(|bound| bound.is_finite()), count));
        end = bucket.up_to;
    }
    took
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn counters(deployment: &str, requests: u64, latency: &[(f64, u64)]) -> ModelCounters {
        ModelCounters { deployment: deployment.to_owned(), requests, latency: latency.to_vec(), ..Default::default() }
    }

    /// Samples of these counters, ten seconds apart.
    fn samples(each: &[Vec<ModelCounters>]) -> Samples {
        let mut samples = Samples::default();
        for (at, counters) in (0_u64..).zip(each) {
            let counters = Mutex::new(counters.clone());
            let source: TopSource =
                Arc::new(move |each| counters.lock().expect("nothing panics").drain(..).for_each(each));
            samples.take(Time(at * 10_000_000_000), Duration::from_secs(60), &source);
        }
        samples
    }

    #[test]
    fn what_is_empty_is_not_held_and_quantiles_are_the_same() {
        let dense = [(1.0, 0), (2.0, 0), (5.0, 4), (10.0, 4), (20.0, 4), (f64::INFINITY, 5)];
        let thin = cumulative(buckets(&dense).iter().copied());
        assert_eq!(thin, [(Some(2.0), 0), (Some(5.0), 4), (Some(20.0), 4), (None, 5)]);
        let dense: Vec<_> = dense.iter().map(|(bound, n)| (Some(*bound).filter(|b| b.is_finite()), *n)).collect();
        assert_eq!(quantiles(&thin), quantiles(&dense));
        assert_eq!(quantiles(&cumulative(buckets(&[(1.0, 0), (f64::INFINITY, 0)]).iter().copied())), None);
    }

    #[test]
    fn what_did_not_change_is_held_once() {
        let (silent, busy) = (counters("silent", 3, &[(1.0, 3)]), |requests| counters("busy", requests, &[]));
        let samples = samples(&[vec![silent.clone(), busy(1)], vec![silent, busy(2)]]);
        let [(_, first), (_, last)] = samples.0.as_slices().0 else { panic!("{samples:?}") };
        let same: Vec<bool> = first.iter().zip(last).map(|(first, last)| Arc::ptr_eq(first, last)).collect();
        assert_eq!((same, &*first[0].deployment), (vec![false, true], "busy"));
    }

    #[test]
    fn the_total_is_over_all_models_and_the_list_over_the_busiest() {
        let at = |requests: u64| {
            let of = |name: &str, times: u64| counters(name, requests * times, &[(1.0, 0), (2.0, requests * times)]);
            vec![of("a", 1), of("b", 3), of("c", 2)]
        };
        let samples = samples(&[at(0), at(100)]);
        let names: Vec<_> = samples.busiest(2).models.into_iter().map(|model| model.figures.deployment).collect();
        assert_eq!(names, ["b", "c"]);
        let total = samples.total();
        assert_eq!((total.requests, total.requests_per_second), (600, 60.0));
        assert_eq!(total.latency.map(|latency| latency.p50), Some(1.5));
    }
}
