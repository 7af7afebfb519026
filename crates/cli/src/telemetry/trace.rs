//! Traces to an OpenTelemetry collector, continuing the caller's by W3C trace context.

use std::sync::Arc;

use berth_mesh::SpanHook;
use berth_spec::WorkerId;
use http::HeaderMap;
use opentelemetry::{
    KeyValue,
    propagation::{Extractor, TextMapPropagator},
    trace::TracerProvider as _,
};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::{Resource, propagation::TraceContextPropagator, trace::SdkTracerProvider};
use tracing::{Level, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};
use url::Url;

use crate::failure::Failure;

/// What makes spans and sends them, in batches, from a thread of its own.
pub(super) fn provider(endpoint: &Url, worker: &WorkerId) -> Result<SdkTracerProvider, Failure> {
    let exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint.as_str())
        .build()
        .map_err(|e| Failure::Usage(format!("--otlp {endpoint} cannot be used: {e}")))?;
    let resource = Resource::builder()
        .with_service_name("berth")
        .with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", worker.to_string()),
        ])
        .build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}

/// Our spans from `info` up; those of libraries would trace the sending of traces.
pub(super) fn layer<S>(provider: &SdkTracerProvider) -> impl Layer<S> + use<S>
where
    S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
{
    let ours = ["berth", "berth_mesh", "berth_worker", "berth_control", "berth_plan"];
    let filter = Targets::new().with_targets(ours.map(|target| (target, Level::INFO)));
    tracing_opentelemetry::layer().with_tracer(provider.tracer("berth")).with_filter(filter)
}

/// Makes the span of a request from its headers.
pub(super) fn request_spans() -> SpanHook {
    let propagator = TraceContextPropagator::new();
    Arc::new(move |headers| {
        let span = tracing::info_span!(target: "berth", "request", otel.kind = "server");
        // Without a layer that sends spans there is no parent to set.
        let _ = span.set_parent(propagator.extract(&Headers(headers)));
        Some(span)
    })
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}
