//! What Prometheus is told of the Git source.

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

/// Validations that the success rate is of. Halved, one bad commit weighs twice as much; doubled, the rate hides last week.
const RATED: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Of {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Dependency {
    dependency: String,
}

/// The metrics of the Git source. Clones count together: a process registers them once.
#[derive(Debug, Clone)]
pub struct SourceMetrics {
    success_rate: Gauge<f64, AtomicU64>,
    duration: Histogram,
    rated: Arc<Mutex<Vec<bool>>>,
    polls: Family<Of, Counter>,
    webhooks: Family<Of, Counter>,
    notifications: Family<Of, Counter>,
    writes: Family<Of, Counter>,
    breakers: Family<Dependency, Gauge<i64, AtomicI64>>,
}

impl SourceMetrics {
    /// Registers them.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            success_rate: Gauge::default(),
            duration: Histogram::new([0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0]),
            rated: Arc::default(),
            polls: Family::default(),
            webhooks: Family::default(),
            notifications: Family::default(),
            writes: Family::default(),
            breakers: Family::default(),
        };
        metrics.success_rate.set(100.0);
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
        registry.register(
            "berth_source_polls",
            "Times that the registry was asked for its branch",
            metrics.polls.clone(),
        );
        registry.register("berth_source_webhooks", "Webhooks that came for the registry", metrics.webhooks.clone());
        registry.register(
            "berth_notifications",
            "Messages to people and marks beside commits",
            metrics.notifications.clone(),
        );
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

    pub(super) fn validated(&self, passed: bool, took: Duration) {
        self.duration.observe(took.as_secs_f64());
        let mut rated = self.rated.lock().unwrap_or_else(PoisonError::into_inner);
        if rated.len() == RATED {
            rated.remove(0);
        }
        rated.push(passed);
        let good = rated.iter().filter(|passed| **passed).count();
        self.success_rate.set(100.0 * good as f64 / rated.len() as f64);
    }

    pub(super) fn polled(&self, result: &'static str) {
        self.polls.get_or_create(&Of { result }).inc();
    }

    pub(crate) fn webhook(&self, result: &'static str) {
        self.webhooks.get_or_create(&Of { result }).inc();
    }

    pub(super) fn notified(&self, result: &'static str) {
        self.notifications.get_or_create(&Of { result }).inc();
    }

    pub(super) fn wrote(&self, result: &'static str) {
        self.writes.get_or_create(&Of { result }).inc();
    }

    /// There is no such dependency any more.
    pub(super) fn no_breaker(&self, dependency: &str) {
        self.breakers.remove(&Dependency { dependency: dependency.to_owned() });
    }

    pub(super) fn breaker(&self, dependency: &str, state: BreakerState) {
        let value = match state {
            BreakerState::Closed => 0,
            BreakerState::HalfOpen => 1,
            BreakerState::Open => 2,
        };
        self.breakers.get_or_create(&Dependency { dependency: dependency.to_owned() }).set(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_of_the_last_hundred() {
        let metrics = SourceMetrics::register(&mut Registry::default());
        assert!((metrics.success_rate.get() - 100.0).abs() < f64::EPSILON);
        for n in 0..200 {
            metrics.validated(n >= 105, Duration::ZERO);
        }
        assert!((metrics.success_rate.get() - 95.0).abs() < f64::EPSILON);
    }
}
