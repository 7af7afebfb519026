//! The metrics of Git sources, in Prometheus.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, AtomicU64},
    },
    time::Duration,
};

use berth_spec::worker::BreakerState;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

/// Validations that the success rate covers: a day's worth in a busy registry, so that the rate shows today.
const RATED: usize = 100;

/// Upper bounds of the buckets of a validation's duration, in seconds.
const BUCKETS: [f64; 13] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SourceLabel {
    source: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    source: Arc<str>,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DependencyLabels {
    source: Arc<str>,
    dependency: String,
}

/// The metrics of all Git sources of a process, which registers them once. Clones count together.
#[derive(Debug, Clone)]
pub struct GitMetrics {
    success_rate: Family<SourceLabel, Gauge<f64, AtomicU64>>,
    duration: Family<SourceLabel, Histogram, fn() -> Histogram>,
    polls: Family<ResultLabels, Counter>,
    webhooks: Family<ResultLabels, Counter>,
    notifications: Family<ResultLabels, Counter>,
    writes: Family<ResultLabels, Counter>,
    breakers: Family<DependencyLabels, Gauge<i64, AtomicI64>>,
}

impl GitMetrics {
    /// Registers the metrics of Git sources. Once per process.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            success_rate: Family::default(),
            duration: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            polls: Family::default(),
            webhooks: Family::default(),
            notifications: Family::default(),
            writes: Family::default(),
            breakers: Family::default(),
        };
        registry.register(
            "broker_registry_validation_success_rate",
            "Percent of the last 100 validations of registry commits that passed",
            metrics.success_rate.clone(),
        );
        registry.register_with_unit(
            "broker_registry_validation_duration",
            "Fetching and validating one commit of the registry",
            Unit::Seconds,
            metrics.duration.clone(),
        );
        registry.register("berth_source_polls", "Polls of the registry's branch", metrics.polls.clone());
        registry.register("berth_source_webhooks", "Webhooks that came for the registry", metrics.webhooks.clone());
        registry.register("berth_notifications", "Messages and commit statuses", metrics.notifications.clone());
        registry.register(
            "berth_write_back_commits",
            "Attempts to write the actual state back",
            metrics.writes.clone(),
        );
        registry.register(
            "berth_source_breaker",
            "Circuit breakers of what the registry depends on: 0 closed, 1 half-open, 2 open",
            metrics.breakers.clone(),
        );
        metrics
    }

    /// The metrics with the label `source` of this value.
    #[must_use]
    pub fn of(&self, source: &str) -> SourceMetrics {
        let source: Arc<str> = Arc::from(source);
        self.success_rate.get_or_create(&SourceLabel { source: Arc::clone(&source) }).set(100.0);
        SourceMetrics { all: self.clone(), source, rated: Arc::default() }
    }
}

/// The metrics of one source. Clones count together.
#[derive(Debug, Clone)]
pub struct SourceMetrics {
    all: GitMetrics,
    source: Arc<str>,
    /// The last validations, oldest first: true for each that passed.
    rated: Arc<Mutex<Vec<bool>>>,
}

impl SourceMetrics {
    fn label(&self) -> SourceLabel {
        SourceLabel { source: Arc::clone(&self.source) }
    }

    fn result(&self, result: &'static str) -> ResultLabels {
        ResultLabels { source: Arc::clone(&self.source), result }
    }

    fn dependency(&self, dependency: &str) -> DependencyLabels {
        DependencyLabels { source: Arc::clone(&self.source), dependency: dependency.to_owned() }
    }

    pub(crate) fn validated(&self, passed: bool, took: Duration) {
        self.all.duration.get_or_create(&self.label()).observe(took.as_secs_f64());
        let mut rated = self.rated.lock().unwrap_or_else(PoisonError::into_inner);
        if rated.len() == RATED {
            rated.remove(0);
        }
        rated.push(passed);
        let good = rated.iter().filter(|passed| **passed).count();
        self.all.success_rate.get_or_create(&self.label()).set(100.0 * good as f64 / rated.len() as f64);
    }

    pub(crate) fn polled(&self, result: &'static str) {
        self.all.polls.get_or_create(&self.result(result)).inc();
    }

    pub(crate) fn webhook(&self, result: &'static str) {
        self.all.webhooks.get_or_create(&self.result(result)).inc();
    }

    pub(crate) fn notified(&self, result: &'static str) {
        self.all.notifications.get_or_create(&self.result(result)).inc();
    }

    pub(crate) fn wrote(&self, result: &'static str) {
        self.all.writes.get_or_create(&self.result(result)).inc();
    }

    /// Removes the breaker of a dependency that is gone.
    pub(crate) fn no_breaker(&self, dependency: &str) {
        self.all.breakers.remove(&self.dependency(dependency));
    }

    pub(crate) fn breaker(&self, dependency: &str, state: BreakerState) {
        let value = match state {
            BreakerState::Closed => 0,
            BreakerState::HalfOpen => 1,
            BreakerState::Open => 2,
        };
        self.all.breakers.get_or_create(&self.dependency(dependency)).set(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_of_the_last_hundred_of_each_source() {
        let all = GitMetrics::register(&mut Registry::default());
        let (metrics, other) = (all.of("git"), all.of("other"));
        let rate = |of: &SourceMetrics| all.success_rate.get_or_create(&of.label()).get();
        assert!((rate(&metrics) - 100.0).abs() < f64::EPSILON);
        for n in 0..200 {
            metrics.validated(n >= 105, Duration::ZERO);
        }
        assert!((rate(&metrics) - 95.0).abs() < f64::EPSILON && (rate(&other) - 100.0).abs() < f64::EPSILON);
    }
}
