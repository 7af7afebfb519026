//! Metrics of models: families that are registered once, and one set of handles per deployment that is loaded, so that
//! counting looks nothing up.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use berth_spec::{ByteSize, DeploymentName, InferError};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

use crate::egress::Outcome;

/// The label of a deployment.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabel {
    namespace: String,
    model: String,
}

impl ModelLabel {
    fn of(deployment: &DeploymentName) -> Self {
        Self { namespace: deployment.namespace().to_owned(), model: deployment.name().to_owned() }
    }
}

/// The labels of a failure.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabel {
    namespace: String,
    model: String,
    error: &'static str,
}

impl ErrorLabel {
    fn of(deployment: &DeploymentName, error: &'static str) -> Self {
        let ModelLabel { namespace, model } = ModelLabel::of(deployment);
        Self { namespace, model, error }
    }
}

/// The labels of a connection to a host.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EgressLabel {
    namespace: String,
    model: String,
    outcome: &'static str,
}

impl EgressLabel {
    fn of(deployment: &DeploymentName, outcome: &'static str) -> Self {
        let ModelLabel { namespace, model } = ModelLabel::of(deployment);
        Self { namespace, model, outcome }
    }
}

/// The words of [`InferError::reason`], all but limits on use, which are the gateway's: a model server of others says nearly any.
const REASONS: [&str; 19] = [
    "invalid",
    "unprocessable",
    "too_large",
    "not_found",
    "unsupported",
    "loading",
    "queue_full",
    "no_capacity",
    "load_failed",
    "scaled_down",
    "shutting_down",
    "unavailable",
    "no_memory",
    "overloaded",
    "deadline",
    "cancelled",
    "model",
    "lost",
    "internal",
];

/// A family of histograms whose buckets are chosen here.
type Histograms = Family<ModelLabel, Histogram, fn() -> Histogram>;

/// The families of all models. Clones share them.
#[derive(Clone)]
pub struct Families {
    inner: Arc<Inner>,
}

/// Numbers of model servers beside the built-in runtimes, all together.
#[derive(Debug, Clone)]
pub(crate) struct ServerMetrics {
    /// Time that a server took to say how large a model is.
    pub(crate) sizing: Histogram,
    /// Models that a server did not unload when it was told to.
    pub(crate) stuck: Counter,
    /// Attempts to unload that failed.
    pub(crate) failed_unloads: Counter,
}

impl ServerMetrics {
    fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            sizing: Histogram::new(exponential_buckets(1e-4, 2.5, 15)),
            stuck: Counter::default(),
            failed_unloads: Counter::default(),
        };
        let help = "Asking a model server how large a model is that it has loaded";
        registry.register_with_unit("berth_server_sizing", help, Unit::Seconds, metrics.sizing.clone());
        let help = "Models that a model server did not unload at the first attempt";
        registry.register("berth_server_unloads_stuck", help, metrics.stuck.clone());
        let help = "Attempts to have a model server unload a model that failed";
        registry.register("berth_server_unload_failures", help, metrics.failed_unloads.clone());
        metrics
    }
}

struct Inner {
    requests: Family<ModelLabel, Counter>,
    errors: Family<ErrorLabel, Counter>,
    duration: Histograms,
    queue: Histograms,
    rows: Histograms,
    restarts: Family<ModelLabel, Counter>,
    broken_answers: Family<ModelLabel, Counter>,
    memory: Family<ModelLabel, Gauge>,
    egress: Family<EgressLabel, Counter>,
    servers: ServerMetrics,
    /// Handles that are in use. Two revisions of one deployment share theirs.
    used: Mutex<HashMap<DeploymentName, Weak<ModelMetrics>>>,
}

/// 20 µs to 10 s: models are as fast as the former and as slow as the latter.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(20e-6, 2.5, 15))
}

/// 1 to 512 rows.
fn rows() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 10))
}

impl Families {
    /// Makes the families of metrics and registers them; call it once for a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let inner = Inner {
            requests: Family::default(),
            errors: Family::default(),
            duration: Histograms::new_with_constructor(seconds),
            queue: Histograms::new_with_constructor(seconds),
            rows: Histograms::new_with_constructor(rows),
            restarts: Family::default(),
            broken_answers: Family::default(),
            memory: Family::default(),
            egress: Family::default(),
            servers: ServerMetrics::register(registry),
            used: Mutex::default(),
        };
        registry.register("worker_inference_requests", "Requests to a model", inner.requests.clone());
        registry.register("worker_inference_errors", "Requests that failed, by reason", inner.errors.clone());
        registry.register_with_unit(
            "worker_inference_duration",
            "From arrival at the model to its answer, successful requests",
            Unit::Seconds,
            inner.duration.clone(),
        );
        registry.register_with_unit(
            "berth_queue",
            "Waiting in a model's queue before a run",
            Unit::Seconds,
            inner.queue.clone(),
        );
        registry.register("berth_batch_rows", "Rows in one run of the engine", inner.rows.clone());
        registry.register(
            "worker_model_process_deaths",
            "Processes of a model that ended by themselves",
            inner.restarts.clone(),
        );
        registry.register(
            "worker_model_answers_broke_schema",
            "Answers of a model that were not as its output schema says",
            inner.broken_answers.clone(),
        );
        registry.register_with_unit(
            "worker_model_memory",
            "Memory of a model's processes, measured",
            Unit::Bytes,
            inner.memory.clone(),
        );
        registry.register(
            "worker_model_connections",
            "Connections of a model's process to hosts, by outcome",
            inner.egress.clone(),
        );
        Self { inner: Arc::new(inner) }
    }

    /// The numbers of model servers.
    pub(crate) fn servers(&self) -> &ServerMetrics {
        &self.inner.servers
    }

    /// The handles of a deployment; they disappear from the registry with the last clone of the `Arc`.
    #[must_use]
    pub fn model(&self, deployment: &DeploymentName) -> Arc<ModelMetrics> {
        let mut used = self.inner.used();
        if let Some(metrics) = used.get(deployment).and_then(Weak::upgrade) {
            return metrics;
        }
        let label = ModelLabel::of(deployment);
        let metrics = Arc::new(ModelMetrics {
            requests: self.inner.requests.get_or_create_owned(&label),
            duration: self.inner.duration.get_or_create_owned(&label),
            queue: self.inner.queue.get_or_create_owned(&label),
            rows: self.inner.rows.get_or_create_owned(&label),
            deployment: deployment.clone(),
            families: self.clone(),
        });
        used.insert(deployment.clone(), Arc::downgrade(&metrics));
        metrics
    }
}

impl Inner {
    fn used(&self) -> MutexGuard<'_, HashMap<DeploymentName, Weak<ModelMetrics>>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The handles of one deployment.
pub struct ModelMetrics {
    requests: Counter,
    duration: Histogram,
    queue: Histogram,
    rows: Histogram,
    deployment: DeploymentName,
    families: Families,
}

impl ModelMetrics {
    /// The name of the deployment.
    #[must_use]
    pub fn deployment(&self) -> &DeploymentName {
        &self.deployment
    }

    /// Counts a request.
    pub fn request(&self) {
        self.requests.inc();
    }

    /// Counts a failed request under the reason of its error.
    pub fn failed(&self, error: &InferError) {
        let label = ErrorLabel::of(&self.deployment, error.reason());
        self.families.inner.errors.get_or_create(&label).inc();
    }

    /// The model's process died.
    pub fn restarted(&self) {
        self.families.inner.restarts.get_or_create(&self.label()).inc();
    }

    /// A connection of its process to a host: one of [`Outcome::WORDS`].
    pub(super) fn egress(&self, outcome: &'static str) {
        self.families.inner.egress.get_or_create(&EgressLabel::of(&self.deployment, outcome)).inc();
    }

    /// An answer was not as its schema says.
    pub fn broke_schema(&self) {
        self.families.inner.broken_answers.get_or_create(&self.label()).inc();
    }

    /// The memory of one of its processes is `now` and was `before`. Revisions of a deployment count together.
    pub fn memory(&self, before: ByteSize, now: ByteSize) {
        let change = i64::try_from(now.0).unwrap_or(i64::MAX) - i64::try_from(before.0).unwrap_or(i64::MAX);
        self.families.inner.memory.get_or_create(&self.label()).inc_by(change);
    }

    fn label(&self) -> ModelLabel {
        ModelLabel::of(&self.deployment)
    }

    /// A successful request took this long.
    pub fn took(&self, time: Duration) {
        self.duration.observe(time.as_secs_f64());
    }

    /// A request waited this long.
    pub fn queued(&self, time: Duration) {
        self.queue.observe(time.as_secs_f64());
    }

    /// A run had so many rows.
    pub fn batch(&self, rows: u64) {
        self.rows.observe(rows as f64);
    }
}

impl fmt::Debug for ModelMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelMetrics").field("deployment", &self.deployment).finish_non_exhaustive()
    }
}

impl Drop for ModelMetrics {
    fn drop(&mut self) {
        let inner = &self.families.inner;
        let mut used = inner.used();
        if used.get(&self.deployment).is_some_and(|metrics| metrics.strong_count() > 0) {
            return; // Loaded again in the meantime.
        }
        used.remove(&self.deployment);
        for error in REASONS {
            inner.errors.remove(&ErrorLabel::of(&self.deployment, error));
        }
        let label = self.label();
        inner.requests.remove(&label);
        inner.duration.remove(&label);
        inner.queue.remove(&label);
        inner.rows.remove(&label);
        inner.restarts.remove(&label);
        inner.broken_answers.remove(&label);
        inner.memory.remove(&label);
        for outcome in Outcome::WORDS {
            inner.egress.remove(&EgressLabel::of(&self.deployment, outcome));
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_spec::inference::Shed;
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn a_deployment_is_seen_as_long_as_one_of_its_revisions_is_loaded() {
        let mut registry = Registry::default();
        let families = Families::register(&mut registry);
        let text = |registry: &Registry| {
            let mut text = String::new();
            encode(&mut text, registry).expect("it encodes");
            text
        };
        let name: DeploymentName = "iris".parse().expect("a name");
        let (old, new) = (families.model(&name), families.model(&name));
        old.request();
        drop(old);
        new.request();
        new.took(Duration::from_millis(1));
        new.queued(Duration::ZERO);
        new.batch(3);
        new.failed(&InferError::Cancelled);
        let seen = text(&registry);
        for line in [
            "worker_inference_requests_total{namespace=\"default\",model=\"iris\"} 2",
            "worker_inference_errors_total{namespace=\"default\",model=\"iris\",error=\"cancelled\"} 1",
            "worker_inference_duration_seconds_count{namespace=\"default\",model=\"iris\"} 1",
            "berth_queue_seconds_count{namespace=\"default\",model=\"iris\"} 1",
            "berth_batch_rows_sum{namespace=\"default\",model=\"iris\"} 3.0",
        ] {
            assert!(seen.contains(line), "{line} in {seen}");
        }
        drop(new);
        assert!(!text(&registry).contains("iris"));
    }

    #[test]
    fn errors_of_all_kinds_go_with_the_deployment() {
        let mut registry = Registry::default();
        let metrics = Families::register(&mut registry).model(&"iris".parse().expect("a name"));
        let mut errors = vec![
            InferError::Invalid(String::new()),
            InferError::Unprocessable { message: String::new(), violations: Vec::new() },
            InferError::TooLarge(String::new()),
            InferError::NotFound(String::new()),
            InferError::Unsupported(String::new()),
            InferError::TimedOut(String::new()),
            InferError::Cancelled,
            InferError::Model(String::new()),
            InferError::Lost(String::new()),
            InferError::Internal(String::new()),
        ];
        let sheds = [
            Shed::Loading,
            Shed::QueueFull,
            Shed::NoCapacity,
            Shed::LoadFailed,
            Shed::ScaledDown,
            Shed::ShuttingDown,
            Shed::Unavailable,
            Shed::NoMemory,
            Shed::Overloaded,
        ];
        errors.extend(sheds.map(|shed| InferError::shed(shed, "", Duration::ZERO)));
        errors.iter().for_each(|error| metrics.failed(error));
        drop(metrics);
        let mut text = String::new();
        encode(&mut text, &registry).expect("it encodes");
        assert!(!text.contains("iris"), "{text}");
    }
}
