//! Traces to an OpenTelemetry collector, continuing the caller's by W3C trace context.

use std::sync::Arc;

use berth_functions::source::TraceHook;
use berth_mesh::{PropagateHook, SpanHook};
use berth_spec::WorkerId;
use berth_wire::request_id::RequestId;
use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::{
    KeyValue,
    propagation::{Extractor, Injector, TextMapPropagator},
    trace::TracerProvider as _,
};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::{Resource, propagation::TraceContextPropagator, trace::SdkTracerProvider};
use tracing::{Level, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};
use url::Url;

use crate::failure::Failure;

/// Creates spans and sends them in batches, on a thread of its own.
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
    let ours =
        ["berth", "berth_mesh", "berth_worker", "berth_control", "berth_gitops", "berth_plan", "berth_functions"];
    let filter = Targets::new().with_targets(ours.map(|target| (target, Level::INFO)));
    tracing_opentelemetry::layer().with_tracer(provider.tracer("berth")).with_filter(filter)
}

/// Makes the span of a request from its headers.
pub(super) fn request_spans() -> SpanHook {
    let propagator = TraceContextPropagator::new();
    Arc::new(move |headers| {
        let id = RequestId::of(headers);
        let request_id = id.as_ref().map(RequestId::as_str);
        let span = tracing::info_span!(target: "berth", "request", otel.kind = "server", request_id);
        // Without a layer that sends spans there is no parent to set.
        let _ = span.set_parent(propagator.extract(&Headers(headers)));
        Some(span)
    })
}

/// Makes a span a part of the trace that a `traceparent` names.
pub(super) fn continuation() -> TraceHook {
    let propagator = TraceContextPropagator::new();
    TraceHook(Arc::new(move |span, traceparent| {
        let headers = HeaderValue::try_from(traceparent).map(|value| (HeaderName::from_static("traceparent"), value));
        let headers = HeaderMap::from_iter(headers);
        // Without a layer that sends spans there is no parent to set.
        let _ = span.set_parent(propagator.extract(&Headers(&headers)));
    }))
}

/// Writes the current span's place in its trace into headers. Where there is no span that is traced, the caller's own
/// headers stay as they are.
pub(super) fn propagation() -> PropagateHook {
    let propagator = TraceContextPropagator::new();
    Arc::new(move |headers| {
        let context = tracing::Span::current().context();
        propagator.inject_context(&context, &mut HeadersMut(headers));
    })
}

struct HeadersMut<'a>(&'a mut HeaderMap);

impl Injector for HeadersMut<'_> {
    fn set(&mut self, key: &str, value: String) {
        let Ok(name) = HeaderName::try_from(key) else { return };
        // What is empty says nothing (`tracestate`), and must not stay from another span.
        match HeaderValue::try_from(value) {
            Ok(value) if !value.is_empty() => drop(self.0.insert(name, value)),
            _ => drop(self.0.remove(name)),
        }
    }
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

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const PARENT: &str = "00f067aa0ba902b7";

    fn headers(said: &[(&'static str, &str)]) -> HeaderMap {
        let header = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).expect("a value"))
        };
        said.iter().map(header).collect()
    }

    #[test]
    fn a_trace_goes_on_at_the_next_node() {
        let provider = SdkTracerProvider::builder().build();
        let subscriber = tracing_subscriber::registry().with(layer(&provider));
        let _guard = tracing::subscriber::set_default(subscriber);
        let parent = format!("00-{TRACE}-{PARENT}-01");
        let came = headers(&[("traceparent", &parent), ("tracestate", "other=1"), ("x-mine", "kept")]);

        let span = request_spans()(&came).expect("a span");
        let mut goes = came.clone();
        span.in_scope(|| propagation()(&mut goes));
        let said = goes["traceparent"].to_str().expect("text");
        // The same trace, and this node's span is now the parent.
        assert!(said.starts_with(&format!("00-{TRACE}-")) && said.ends_with("-01") && !said.contains(PARENT), "{said}");
        assert_eq!((&goes["tracestate"], &goes["x-mine"]), (&came["tracestate"], &came["x-mine"]));
        assert_eq!(goes.len(), came.len());

        // The next node reads what this one wrote.
        let next = request_spans()(&goes).expect("a span");
        let mut further = goes.clone();
        next.in_scope(|| propagation()(&mut further));
        assert_ne!(further["traceparent"], goes["traceparent"]);
        assert!(further["traceparent"].to_str().expect("text").contains(TRACE));
    }

    #[test]
    fn without_a_span_headers_go_as_they_came() {
        let came = headers(&[("traceparent", &format!("00-{TRACE}-{PARENT}-01"))]);
        let mut goes = came.clone();
        propagation()(&mut goes);
        assert_eq!(goes, came);
    }
}
