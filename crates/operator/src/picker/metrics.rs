//! Metrics of a picker.

use std::sync::{Arc, atomic::AtomicI64};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::balance::Choice;

/// The label of requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

#[derive(Debug)]
pub(super) struct PickerMetrics {
    registry: Arc<Registry>,
    requests: Family<OutcomeLabels, Counter>,
    in_flight: Gauge<i64, AtomicI64>,
    ready: Gauge<i64, AtomicI64>,
    watch_failures: Counter,
    parts_refused: Counter,
}

impl Default for PickerMetrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("berth_picker");
        let metrics = Self {
            registry: Arc::default(),
            requests: Family::default(),
            in_flight: Gauge::default(),
            ready: Gauge::default(),
            watch_failures: Counter::default(),
            parts_refused: Counter::default(),
        };
        registry.register("requests", "Requests that a Gateway asked about", metrics.requests.clone());
        registry.register(
            "requests_in_flight",
            "Requests that were sent to a pod and go on",
            metrics.in_flight.clone(),
        );
        registry.register("ready_pods", "Pods that may be picked", metrics.ready.clone());
        registry.register("watch_failures", "Watches of pods that broke", metrics.watch_failures.clone());
        registry.register(
            "parts_refused",
            "Parts of requests for which there was no memory",
            metrics.parts_refused.clone(),
        );
        Self { registry: Arc::new(registry), ..metrics }
    }
}

impl PickerMetrics {
    /// The metrics, in Prometheus' text form.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    pub(super) fn chose(&self, choice: Choice) {
        let outcome = match choice {
            Choice::Endpoint(_) => {
                self.in_flight.inc();
                "picked"
            }
            Choice::NoneReady => "none_ready",
            Choice::Busy => "busy",
        };
        self.requests.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    pub(super) fn released(&self) {
        self.in_flight.dec();
    }

    pub(super) fn ready(&self, pods: usize) {
        self.ready.set(i64::try_from(pods).unwrap_or(i64::MAX));
    }

    pub(super) fn watch_failed(&self) {
        self.watch_failures.inc();
    }

    pub(super) fn no_memory(&self) {
        self.parts_refused.inc();
    }
}
