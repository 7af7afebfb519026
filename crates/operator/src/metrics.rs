//! Metrics of an operator, and its readiness: true once it has reached the API server.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicI64, Ordering},
};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

/// From 1 ms, a write to an API server that is idle, to 16 s, the time-out of most.
fn durations() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 4.0, 8))
}

/// The labels of attempts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AttemptLabels {
    kind: &'static str,
    outcome: &'static str,
}

/// The label of what there is by kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

/// The label of reviews.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerdictLabels {
    verdict: &'static str,
}

/// The label of conversions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

/// The state of an operator, as it tells it. Clones are of the same operator.
#[derive(Debug, Clone)]
pub struct OperatorMetrics {
    registry: Arc<Registry>,
    reached: Arc<AtomicBool>,
    attempts: Family<AttemptLabels, Counter>,
    seconds: Histogram,
    objects: Family<KindLabels, Gauge>,
    watch_failures: Family<KindLabels, Counter>,
    reviews: Family<VerdictLabels, Counter>,
    conversions: Family<OutcomeLabels, Counter>,
    waiting: Gauge<i64, AtomicI64>,
    leading: Gauge<i64, AtomicI64>,
}

impl Default for OperatorMetrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("berth_operator");
        let metrics = Self {
            registry: Arc::default(),
            reached: Arc::default(),
            attempts: Family::default(),
            seconds: durations(),
            objects: Family::default(),
            watch_failures: Family::default(),
            reviews: Family::default(),
            conversions: Family::default(),
            waiting: Gauge::default(),
            leading: Gauge::default(),
        };
        registry.register("attempts", "Attempts to bring an object to its desired state", metrics.attempts.clone());
        let text = "Time of an attempt that wrote something";
        registry.register_with_unit("attempt_duration", text, Unit::Seconds, metrics.seconds.clone());
        registry.register("objects", "Objects that are watched", metrics.objects.clone());
        registry.register("watch_failures", "Watches that broke", metrics.watch_failures.clone());
        registry.register("reviews", "Objects that the webhook was asked about", metrics.reviews.clone());
        registry.register("conversions", "Objects converted between versions", metrics.conversions.clone());
        registry.register("waiting_objects", "Objects that wait for an attempt", metrics.waiting.clone());
        registry.register("leading", "1 while this operator leads", metrics.leading.clone());
        Self { registry: Arc::new(registry), ..metrics }
    }
}

impl OperatorMetrics {
    /// True once the API server has answered.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.reached.load(Ordering::Relaxed)
    }

    /// The metrics, in Prometheus' text form.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    pub(crate) fn reached(&self) {
        self.reached.store(true, Ordering::Relaxed);
    }

    pub(crate) fn leads(&self, leads: bool) {
        self.leading.set(i64::from(leads));
    }

    pub(crate) fn attempted(&self, kind: &'static str, succeeded: bool, seconds: f64) {
        let outcome = if succeeded { "succeeded" } else { "failed" };
        self.attempts.get_or_create(&AttemptLabels { kind, outcome }).inc();
        self.seconds.observe(seconds);
    }

    pub(crate) fn watch_failed(&self, kind: &'static str) {
        self.watch_failures.get_or_create(&KindLabels { kind }).inc();
    }

    pub(crate) fn watched(&self, kind: &'static str, objects: usize) {
        self.objects.get_or_create(&KindLabels { kind }).set(i64::try_from(objects).unwrap_or(i64::MAX));
    }

    pub(crate) fn reviewed(&self, verdict: &'static str) {
        self.reviews.get_or_create(&VerdictLabels { verdict }).inc();
    }

    pub(crate) fn converted(&self, outcome: &'static str, objects: usize) {
        self.conversions.get_or_create(&OutcomeLabels { outcome }).inc_by(u64::try_from(objects).unwrap_or_default());
    }

    pub(crate) fn waiting(&self, objects: usize) {
        self.waiting.set(i64::try_from(objects).unwrap_or(i64::MAX));
    }
}
