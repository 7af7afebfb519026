//! Metrics of functions.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use arc_swap::ArcSwap;
use berth_spec::worker::{Breaker, BreakerState};
use berth_worker::egress::Outcome;
use prometheus_client::{
    encoding::{EncodeLabelSet, LabelSetEncoder},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::deployment::{FunctionName, parts_of};

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
struct BreakerLabels {
    kind: &'static str,
    dependency: String,
}

/// Builds of a function with one result.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Builds {
    namespace: String,
    function: String,
    result: &'static str,
}

impl Builds {
    fn of(function: &str, result: &'static str) -> Self {
        let (namespace, function) = labels(function);
        Self { namespace, function, result }
    }
}

/// Requests to a function with one class of answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Requests {
    namespace: String,
    function: String,
    class: &'static str,
}

impl Requests {
    fn of(function: &str, class: &'static str) -> Self {
        let (namespace, function) = labels(function);
        Self { namespace, function, class }
    }
}

/// Connections of a function's processes to hosts with one outcome.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Connections {
    namespace: String,
    function: String,
    outcome: &'static str,
}

impl Connections {
    fn of(function: &str, outcome: &'static str) -> Self {
        let (namespace, function) = labels(function);
        Self { namespace, function, outcome }
    }
}

/// The labels `namespace` and `function` of a key. Those that stand for many have both.
fn labels(key: &str) -> (String, String) {
    match key {
        OTHERS | UNKNOWN => (key.to_owned(), key.to_owned()),
        _ => {
            let (namespace, function) = parts_of(key);
            (namespace.to_owned(), function.to_owned())
        }
    }
}

/// Functions with series of their own. Each has sixteen at most: 8,000 are no burden for a Prometheus, 160,000 may be one.
const MOST_NAMED: usize = 500;

/// The labels of functions beyond those. No function has such a name: names begin with a letter or a digit. Keys that are no names have
/// no series: `default/words` would have those of `words`.
const OTHERS: &str = "_others";

/// The labels of requests to functions that do not exist: their names are what clients send.
const UNKNOWN: &str = "_unknown";

const RESULTS: [&str; 3] = ["built", "cached", "failed"];

const CLASSES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];

/// Counters of the answers to requests by their class, each from its first answer on.
type Answers = [OnceLock<Counter>; CLASSES.len()];

/// Metrics of functions.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    functions: Family<Label, Gauge>,
    builds: Family<Builds, Counter>,
    breakers: Family<BreakerLabels, Gauge>,
    processes: Gauge,
    copies: Family<Label, Counter>,
    requests: Family<Requests, Counter>,
    connections: Family<Connections, Counter>,
    /// Functions with series of their own: those that people see, as long as they are few. Requests read it.
    named: ArcSwap<BTreeMap<Arc<str>, Arc<Answers>>>,
    /// Answers of functions without.
    others: Answers,
    /// Answers to requests to functions that do not exist.
    unknown: Answers,
    /// Builds of functions that people did not see when they ended, by keys, with their results. Held while series come and go.
    early: Mutex<Vec<(String, &'static str)>>,
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
            "berth_function_artifact_copies",
            "Artifacts of functions, and documents beside them, that were copied from the leader, by result",
            metrics.copies.clone(),
        );
        registry.register(
            "berth_function_requests",
            "Requests by function and class of answer",
            metrics.requests.clone(),
        );
        registry.register(
            "berth_function_connections",
            "Connections of a function's processes to hosts, by outcome",
            metrics.connections.clone(),
        );
        metrics
    }

    pub(super) fn functions(&self, counts: &BTreeMap<&'static str, usize>) {
        for (phase, count) in counts {
            self.functions.get_or_create(&Label("phase", phase)).set(i64::try_from(*count).unwrap_or(i64::MAX));
        }
    }

    /// Counts a build; one of a function that people do not see yet with the next [`shown`](Self::shown).
    pub(super) fn built(&self, function: &str, result: &'static str) {
        let mut early = self.early();
        if self.named.load().contains_key(function) {
            self.builds.get_or_create(&Builds::of(function, result)).inc();
        } else {
            early.push((function.to_owned(), result));
        }
    }

    /// People see what they are to see: counts the builds that wait for it.
    pub(super) fn shown(&self) {
        let (mut early, named) = (self.early(), self.named.load());
        for (function, result) in early.drain(..) {
            let function = if named.contains_key(function.as_str()) { &*function } else { OTHERS };
            self.builds.get_or_create(&Builds::of(function, result)).inc();
        }
    }

    /// Gives series of their own to the functions that people see, by their keys, and drops those of others.
    pub(super) fn name<T>(&self, functions: &BTreeMap<String, T>) {
        let _one = self.early();
        let mut named = BTreeMap::clone(&self.named.load());
        named.retain(|name, _| {
            let stays = functions.contains_key(&**name);
            if !stays {
                self.drop_series(name);
            }
            stays
        });
        let free = MOST_NAMED.saturating_sub(named.len());
        let is_name = |key: &&String| FunctionName::new(key).is_ok();
        let new = functions.keys().filter(|name| !named.contains_key(name.as_str())).filter(is_name);
        let new: Vec<Arc<str>> = new.take(free).map(|name| name.as_str().into()).collect();
        named.extend(new.into_iter().map(|name| (name, Arc::<Answers>::default())));
        self.named.store(Arc::new(named));
    }

    fn drop_series(&self, function: &str) {
        for result in RESULTS {
            self.builds.remove(&Builds::of(function, result));
        }
        for class in CLASSES {
            self.requests.remove(&Requests::of(function, class));
        }
        for outcome in Outcome::WORDS {
            self.connections.remove(&Connections::of(function, outcome));
        }
    }

    fn early(&self) -> MutexGuard<'_, Vec<(String, &'static str)>> {
        self.early.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a connection to a host, made or refused. No function goes meanwhile.
    pub(crate) fn connection(&self, function: &str, outcome: Outcome) {
        let (_one, named) = (self.early(), self.named.load());
        let function = if named.contains_key(function) { function } else { OTHERS };
        self.connections.get_or_create(&Connections::of(function, outcome.as_str())).inc();
    }

    /// Counts a copy from the leader.
    pub(super) fn copied(&self, is_copied: bool) {
        self.copies.get_or_create(&Label("result", if is_copied { "copied" } else { "failed" })).inc();
    }

    pub(super) fn breakers(&self, breakers: &[Breaker]) {
        self.breakers.clear();
        for Breaker { kind, dependency, state, .. } in breakers {
            let towards = BreakerLabels { kind: kind.as_str(), dependency: dependency.to_string() };
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

    /// Counts an answer; `None` where there is no such function. A name takes no place: its function may be gone.
    pub(super) fn answered(&self, function: Option<&str>, status: u16) {
        let class = match status {
            200..=299 => 0,
            300..=399 => 1,
            400..=499 => 2,
            _ => 3,
        };
        if let Some(counter) = self.answers(&self.named.load(), function).1[class].get() {
            counter.inc();
            return;
        }
        // The first of its class. No function goes meanwhile.
        let _one = self.early();
        let named = self.named.load();
        let (function, answers) = self.answers(&named, function);
        let label = Requests::of(function, CLASSES[class]);
        answers[class].get_or_init(|| self.requests.get_or_create_owned(&label)).inc();
    }

    /// The key that labels are made of, and the counters of a function.
    fn answers<'a>(
        &'a self,
        named: &'a BTreeMap<Arc<str>, Arc<Answers>>,
        function: Option<&'a str>,
    ) -> (&'a str, &'a Answers) {
        let Some(function) = function else { return (UNKNOWN, &self.unknown) };
        named.get(function).map_or((OTHERS, &self.others), |answers| (function, &**answers))
    }
}

#[cfg(test)]
mod tests {
    use berth_worker::egress::Refusal;
    use prometheus_client::encoding::text::encode;

    use super::*;

    fn functions(names: impl Iterator<Item = String>) -> BTreeMap<String, ()> {
        names.map(|name| (name, ())).collect()
    }

    fn told(registry: &Registry) -> String {
        let mut text = String::new();
        encode(&mut text, registry).expect("text");
        text
    }

    #[test]
    fn functions_have_series_of_their_own_as_long_as_they_are_few() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let mut shown = functions((0..MOST_NAMED).map(|number| format!("f{number}")));
        metrics.name(&shown);
        shown.extend(functions(["late", "later"].map(str::to_owned).into_iter()));
        metrics.name(&shown);
        metrics.built("f0", "built");
        metrics.built("late", "failed");
        metrics.shown();
        metrics.answered(Some("later"), 200);
        metrics.answered(Some("f7"), 502);
        metrics.answered(Some("f7"), 500);
        metrics.answered(None, 404);
        metrics.connection("f7", Outcome::Refused(Refusal::Undeclared));
        metrics.connection("later", Outcome::Connected);
        let text = told(&registry);
        for line in [
            "berth_function_builds_total{namespace=\"default\",function=\"f0\",result=\"built\"} 1",
            "berth_function_connections_total{namespace=\"default\",function=\"f7\",outcome=\"undeclared\"} 1",
            "berth_function_connections_total{namespace=\"_others\",function=\"_others\",outcome=\"connected\"} 1",
            "berth_function_builds_total{namespace=\"_others\",function=\"_others\",result=\"failed\"} 1",
            "berth_function_requests_total{namespace=\"_others\",function=\"_others\",class=\"2xx\"} 1",
            "berth_function_requests_total{namespace=\"default\",function=\"f7\",class=\"5xx\"} 2",
            "berth_function_requests_total{namespace=\"_unknown\",function=\"_unknown\",class=\"4xx\"} 1",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        for gone in ["f7", "late"] {
            shown.remove(gone);
        }
        metrics.name(&shown);
        metrics.answered(Some("later"), 200);
        let text = told(&registry);
        assert!(!text.contains("\"f7\""), "{text}");
        assert!(
            text.contains("berth_function_requests_total{namespace=\"default\",function=\"later\",class=\"2xx\"} 1"),
            "{text}"
        );
    }

    #[test]
    fn what_ends_after_its_function_takes_no_place() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        metrics.name(&functions(["f".to_owned()].into_iter()));
        metrics.answered(Some("f"), 200);
        metrics.name(&functions(std::iter::empty()));
        metrics.answered(Some("f"), 200);
        metrics.built("f", "failed");
        metrics.shown();
        let text = told(&registry);
        assert!(!text.contains("\"f\""), "{text}");
        assert!(
            text.contains("berth_function_requests_total{namespace=\"_others\",function=\"_others\",class=\"2xx\"} 1"),
            "{text}"
        );
        assert!(
            text.contains(
                "berth_function_builds_total{namespace=\"_others\",function=\"_others\",result=\"failed\"} 1"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_build_that_ends_before_its_function_is_shown_is_counted_with_it() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        metrics.built("f", "failed");
        metrics.name(&functions(["f".to_owned()].into_iter()));
        metrics.shown();
        metrics.shown();
        let text = told(&registry);
        assert!(
            text.contains("berth_function_builds_total{namespace=\"default\",function=\"f\",result=\"failed\"} 1"),
            "{text}"
        );
    }

    #[test]
    fn functions_of_one_name_in_two_namespaces_have_series_of_their_own() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        metrics.name(&functions(["f", "team/f"].map(str::to_owned).into_iter()));
        metrics.answered(Some("f"), 200);
        metrics.answered(Some("team/f"), 200);
        metrics.answered(Some("team/f"), 200);
        let text = told(&registry);
        for line in [
            "berth_function_requests_total{namespace=\"default\",function=\"f\",class=\"2xx\"} 1",
            "berth_function_requests_total{namespace=\"team\",function=\"f\",class=\"2xx\"} 2",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        metrics.name(&functions(["team/f".to_owned()].into_iter()));
        let text = told(&registry);
        assert!(!text.contains("\"default\"") && text.contains("\"team\""), "{text}");
    }

    #[test]
    fn a_key_that_is_no_name_takes_no_series_along_when_it_goes() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        metrics.name(&functions(["default/f", "_unknown", "f"].map(str::to_owned).into_iter()));
        metrics.answered(Some("f"), 200);
        metrics.answered(None, 404);
        metrics.name(&functions(["f".to_owned()].into_iter()));
        let text = told(&registry);
        for line in [
            "berth_function_requests_total{namespace=\"default\",function=\"f\",class=\"2xx\"} 1",
            "berth_function_requests_total{namespace=\"_unknown\",function=\"_unknown\",class=\"4xx\"} 1",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
