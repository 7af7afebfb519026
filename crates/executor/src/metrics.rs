//! Metrics of the executor. Labels are few: ports, path templates, methods that HTTP defines, status codes.

use std::sync::{Arc, Mutex, PoisonError, atomic::AtomicI64};

use http::Method;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use crate::{jobs::JobFamilies, log::LogFamilies};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    pub(crate) port: Arc<str>,
    pub(crate) path: Arc<str>,
    pub(crate) method: &'static str,
    /// The status of HTTP.
    pub(crate) code: u16,
    /// The status of gRPC, empty where there is none.
    pub(crate) grpc: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PathLabels {
    port: Arc<str>,
    path: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PortLabel {
    port: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    port: Arc<str>,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// The metrics of one process.
pub(crate) struct Metrics {
    registry: Mutex<Registry>,
    requests: Family<RequestLabels, Counter>,
    seconds: Family<PathLabels, Histogram>,
    in_flight: Family<PortLabel, Gauge<i64, AtomicI64>>,
    request_bytes: Family<PathLabels, Counter>,
    response_bytes: Family<PathLabels, Counter>,
    refused: Family<ReasonLabels, Counter>,
    unread: Family<ReasonLabels, Counter>,
    retries: Family<PortLabel, Counter>,
    healthy: Family<PortLabel, Gauge<i64, AtomicI64>>,
    reloads: Family<ResultLabel, Counter>,
    jobs: JobFamilies,
    log: LogFamilies,
}

/// An exchange that is over.
pub(crate) struct Exchanged {
    pub(crate) labels: RequestLabels,
    pub(crate) seconds: f64,
    pub(crate) request_bytes: u64,
    pub(crate) response_bytes: u64,
}

/// From half a millisecond to 4 minutes.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.000_5, 2.0, 20))
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::default();
        let metrics = Self {
            registry: Mutex::default(),
            requests: Family::default(),
            seconds: Family::new_with_constructor(seconds as fn() -> Histogram),
            in_flight: Family::default(),
            request_bytes: Family::default(),
            response_bytes: Family::default(),
            refused: Family::default(),
            unread: Family::default(),
            retries: Family::default(),
            healthy: Family::default(),
            reloads: Family::default(),
            jobs: JobFamilies::default(),
            log: LogFamilies::default(),
        };
        metrics.jobs.register(&mut registry);
        metrics.log.register(&mut registry);
        registry.register("berth_executor_requests", "Requests, by the answer's status", metrics.requests.clone());
        registry.register(
            "berth_executor_request_duration_seconds",
            "Time from a request's head to the answer's end",
            metrics.seconds.clone(),
        );
        registry.register("berth_executor_requests_in_flight", "Requests in flight", metrics.in_flight.clone());
        registry.register("berth_executor_request_bytes", "Bytes of requests' bodies", metrics.request_bytes.clone());
        registry.register("berth_executor_response_bytes", "Bytes of answers' bodies", metrics.response_bytes.clone());
        registry.register(
            "berth_executor_refused",
            "Requests that the executor answered itself, by reason",
            metrics.refused.clone(),
        );
        registry.register(
            "berth_executor_unread",
            "Answers that were cut, since their clients left them unread, by reason",
            metrics.unread.clone(),
        );
        registry.register("berth_executor_retries", "Attempts after the first", metrics.retries.clone());
        registry.register(
            "berth_executor_upstream_healthy",
            "1 if the model server answers its health check",
            metrics.healthy.clone(),
        );
        registry.register(
            "berth_executor_config_reloads",
            "Changes of the configuration file, by result",
            metrics.reloads.clone(),
        );
        *metrics.registry.lock().unwrap_or_else(PoisonError::into_inner) = registry;
        metrics
    }

    /// Gives others a place for metrics of their own.
    pub(crate) fn with_registry<T>(&self, with: impl FnOnce(&mut Registry) -> T) -> T {
        with(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The text that Prometheus reads.
    pub(crate) fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        Ok(text)
    }

    pub(crate) fn exchanged(&self, exchanged: Exchanged) {
        let Exchanged { labels, seconds, request_bytes, response_bytes } = exchanged;
        let path = PathLabels { port: Arc::clone(&labels.port), path: Arc::clone(&labels.path) };
        self.requests.get_or_create(&labels).inc();
        self.seconds.get_or_create(&path).observe(seconds);
        self.request_bytes.get_or_create(&path).inc_by(request_bytes);
        self.response_bytes.get_or_create(&path).inc_by(response_bytes);
    }

    pub(crate) fn in_flight(&self, port: &Arc<str>, now: usize) {
        let label = PortLabel { port: Arc::clone(port) };
        self.in_flight.get_or_create(&label).set(i64::try_from(now).unwrap_or(i64::MAX));
    }

    pub(crate) fn refused(&self, port: &Arc<str>, reason: &'static str) {
        self.refused.get_or_create(&ReasonLabels { port: Arc::clone(port), reason }).inc();
    }

    /// The counter of a port's answers that were cut, since their clients left them unread.
    pub(crate) fn unread(&self, port: &Arc<str>, reason: &'static str) -> Counter {
        self.unread.get_or_create(&ReasonLabels { port: Arc::clone(port), reason }).clone()
    }

    pub(crate) fn retried(&self, port: &Arc<str>) {
        self.retries.get_or_create(&PortLabel { port: Arc::clone(port) }).inc();
    }

    pub(crate) fn healthy(&self, port: &Arc<str>, healthy: bool) {
        self.healthy.get_or_create(&PortLabel { port: Arc::clone(port) }).set(healthy.into());
    }

    /// Metrics of asynchronous serving.
    pub(crate) const fn jobs(&self) -> &JobFamilies {
        &self.jobs
    }

    /// Metrics of logs.
    pub(crate) const fn log(&self) -> &LogFamilies {
        &self.log
    }

    pub(crate) fn reloaded(&self, result: &'static str) {
        self.reloads.get_or_create(&ResultLabel { result }).inc();
    }
}

/// The method, or `OTHER`: strangers may send any.
pub(crate) fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        Method::TRACE => "TRACE",
        Method::CONNECT => "CONNECT",
        _ => "OTHER",
    }
}

/// The status of gRPC, or `other`: servers may send any.
pub(crate) fn grpc(status: &http::HeaderValue) -> Arc<str> {
    let number = status.to_str().ok().and_then(|text| text.parse::<u8>().ok()).filter(|number| *number <= 16);
    number.map_or_else(|| "other".into(), |number| number.to_string().into())
}
