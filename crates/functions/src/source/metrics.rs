//! Metrics of functions.

use std::{collections::BTreeMap, fmt};

use berth_spec::worker::{Breaker, BreakerState};
use prometheus_client::{
    encoding::{EncodeLabelSet, LabelSetEncoder},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// Label with one name and value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Label(pub(super) &'static str, pub(super) &'static str);

impl EncodeLabelSet for Label {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        use prometheus_client::encoding::EncodeLabel as _;
        (self.0, self.1).encode(encoder.encode_label())
    }
}

/// A dependency of builds and deployments.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Towards {
    kind: &'static str,
    dependency: String,
}

/// Metrics of functions.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    functions: Family<Label, Gauge>,
    builds: Family<Label, Counter>,
    breakers: Family<Towards, Gauge>,
    processes: Gauge,
    pub(super) requests: Family<Label, Counter>,
}

impl Metrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register("berth_functions", "Functions by phase", metrics.functions.clone());
        registry.register("berth_function_builds", "Builds of functions by result", metrics.builds.clone());
        registry.register(
            "berth_function_circuit_breaker",
            "Circuit breakers that are not simply closed: 0 closed and counting, 1 half-open, 2 open",
            metrics.breakers.clone(),
        );
        registry.register(
            "berth_function_processes",
            "Processes of functions on this machine",
            metrics.processes.clone(),
        );
        registry.register(
            "berth_function_requests",
            "Requests to functions by class of answer",
            metrics.requests.clone(),
        );
        metrics
    }

    pub(super) fn functions(&self, counts: &BTreeMap<&'static str, usize>) {
        for (phase, count) in counts {
            self.functions.get_or_create(&Label("phase", phase)).set(i64::try_from(*count).unwrap_or(i64::MAX));
        }
    }

    pub(super) fn built(&self, result: &'static str) {
        self.builds.get_or_create(&Label("result", result)).inc();
    }

    pub(super) fn breakers(&self, breakers: &[Breaker]) {
        self.breakers.clear();
        for Breaker { kind, dependency, state, .. } in breakers {
            let towards = Towards { kind: kind.as_str(), dependency: dependency.to_string() };
            self.breakers.get_or_create(&towards).set(match state {
                BreakerState::Closed => 0,
                BreakerState::HalfOpen => 1,
                BreakerState::Open => 2,
            });
        }
    }

    pub(super) fn processes(&self, processes: usize) {
        self.processes.set(i64::try_from(processes).unwrap_or(i64::MAX));
    }

    pub(super) fn answered(&self, status: u16) {
        let class = match status {
            200..=299 => "2xx",
            300..=399 => "3xx",
            400..=499 => "4xx",
            _ => "5xx",
        };
        self.requests.get_or_create(&Label("class", class)).inc();
    }
}
