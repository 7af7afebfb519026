//! Metrics of functions.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Mutex, PoisonError},
};

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

/// Builds of a function with one result.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Builds {
    function: String,
    result: &'static str,
}

/// Requests to a function with one class of answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Requests {
    function: String,
    class: &'static str,
}

/// Functions with series of their own. Each has seven at most: 3,500 are no burden for a Prometheus, 70,000 may be one.
const MOST_NAMED: usize = 500;

/// The label of functions beyond those. No function has such a name: names begin with a letter or a digit.
const OTHERS: &str = "_others";

/// The label of requests to functions that do not exist: their names are what clients send.
const UNKNOWN: &str = "_unknown";

const RESULTS: [&str; 3] = ["built", "cached", "failed"];

const CLASSES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];

/// Metrics of functions.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    functions: Family<Label, Gauge>,
    builds: Family<Builds, Counter>,
    breakers: Family<Towards, Gauge>,
    processes: Gauge,
    requests: Family<Requests, Counter>,
    /// Functions with series of their own.
    named: Mutex<BTreeSet<String>>,
}

impl Metrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register("berth_functions", "Functions by phase", metrics.functions.clone());
        registry.register("berth_function_builds", "Builds by function and result", metrics.builds.clone());
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
            "Requests by function and class of answer",
            metrics.requests.clone(),
        );
        metrics
    }

    pub(super) fn functions(&self, counts: &BTreeMap<&'static str, usize>) {
        for (phase, count) in counts {
            self.functions.get_or_create(&Label("phase", phase)).set(i64::try_from(*count).unwrap_or(i64::MAX));
        }
    }

    pub(super) fn built(&self, function: &str, result: &'static str) {
        self.builds.get_or_create(&Builds { function: self.label(function), result }).inc();
    }

    /// The label of a function: its name, or that of all the others where there are too many.
    fn label(&self, function: &str) -> String {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if !named.contains(function) {
            if named.len() >= MOST_NAMED {
                return OTHERS.to_owned();
            }
            named.insert(function.to_owned());
        }
        function.to_owned()
    }

    /// Drops the series of a function that is gone.
    pub(super) fn forget(&self, function: &str) {
        let removed = self.named.lock().unwrap_or_else(PoisonError::into_inner).remove(function);
        if removed {
            for result in RESULTS {
                self.builds.remove(&Builds { function: function.to_owned(), result });
            }
            for class in CLASSES {
                self.requests.remove(&Requests { function: function.to_owned(), class });
            }
        }
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

    /// Counts an answer; `None` where there is no such function.
    pub(super) fn answered(&self, function: Option<&str>, status: u16) {
        let class = match status {
            200..=299 => "2xx",
            300..=399 => "3xx",
            400..=499 => "4xx",
            _ => "5xx",
        };
        let function = function.map_or_else(|| UNKNOWN.to_owned(), |function| self.label(function));
        self.requests.get_or_create(&Requests { function, class }).inc();
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn functions_have_series_of_their_own_as_long_as_they_are_few() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        for number in 0..MOST_NAMED {
            metrics.built(&format!("f{number}"), "built");
        }
        metrics.built("late", "failed");
        metrics.answered(Some("later"), 200);
        metrics.answered(Some("f7"), 502);
        metrics.answered(None, 404);
        let told = || {
            let mut text = String::new();
            encode(&mut text, &registry).expect("text");
            text
        };
        let text = told();
        for line in [
            "berth_function_builds_total{function=\"f0\",result=\"built\"} 1",
            "berth_function_builds_total{function=\"_others\",result=\"failed\"} 1",
            "berth_function_requests_total{function=\"_others\",class=\"2xx\"} 1",
            "berth_function_requests_total{function=\"f7\",class=\"5xx\"} 1",
            "berth_function_requests_total{function=\"_unknown\",class=\"4xx\"} 1",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        metrics.forget("f7");
        metrics.forget("late");
        metrics.answered(Some("later"), 200);
        let text = told();
        assert!(!text.contains("\"f7\""), "{text}");
        assert!(text.contains("berth_function_requests_total{function=\"later\",class=\"2xx\"} 1"), "{text}");
    }
}
