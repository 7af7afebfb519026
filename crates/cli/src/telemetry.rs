//! Logs and traces of a server.
//!
//! ```text
//! tracing ──filter──▶ lines for people on a terminal │ JSON otherwise   (standard error)
//!         ──────────▶ the recent log of each model, for `berth logs`    (memory)
//!         ──filter──▶ OTLP, where a collector is configured      (spans only)
//! ```
//! Metrics go another way: every part registers its own with the registry that `/metrics` encodes.

mod json;
mod levels;
mod library_damper;
pub(crate) mod model_logs;
mod people;
mod sentence;
mod trace;

use std::io::{self, IsTerminal, Write};

use berth_functions::source::TraceHook;
use berth_mesh::{PropagateHook, SpanHook, controls::LogControl};
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    filter::{FilterExt as _, LevelFilter},
    layer::SubscriberExt,
    reload,
    util::SubscriberInitExt,
};

use self::{library_damper::LibraryDamper, model_logs::ModelLogs};
use crate::{commands::wait::progress::in_its_place, failure::Failure, settings::TelemetrySettings};

/// Takes a finished line, its end included.
type Sink = Box<dyn Fn(&str) + Send + Sync>;

/// Started parts of telemetry, to be flushed at the end.
pub(crate) struct Telemetry {
    traces: Option<SdkTracerProvider>,
    /// Recent lines of each model.
    pub(crate) model_logs: ModelLogs,
    /// Levels of the log.
    log: LogControl,
}

impl Telemetry {
    /// Installs it for the whole process. Must be called inside a runtime where traces are exported.
    pub(crate) fn start(settings: &TelemetrySettings) -> Result<Self, Failure> {
        let filter = {
            EnvFilter::try_new(&settings.filter).map_err(|e| {
                Failure::Usage(format!(
                    "--log {:?} is not a filter: {e}; write for example warn,berth=info,berth_worker=debug",
                    settings.filter
                ))
            })?
        };
        let (filter, handle) = reload::Layer::<_, Registry>::new(filter);
        let log = levels::control(&settings.filter, handle);
        let filter = filter.and(LibraryDamper::default());
        let sink: Sink = Box::new(|line: &str| {
            let mut out = io::stderr().lock();
            // Logging has nowhere to report that logging failed.
            let _ = out.write_all(in_its_place().as_bytes()).and_then(|()| out.write_all(line.as_bytes()));
        });
        let logs = if settings.json {
            json::JsonLogs::new(&settings.worker, sink).with_filter(filter).boxed()
        } else {
            let colours =
                io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            let steps = ["debug", "trace"].iter().any(|level| settings.filter.contains(level));
            people::PeopleLogs::new(colours, steps, sink).with_filter(filter).boxed()
        };
        let traces = settings.otlp.as_ref().map(|endpoint| trace::provider(endpoint, &settings.worker)).transpose()?;
        let spans = traces.as_ref().map(trace::layer);
        let model_logs = ModelLogs::default();
        tracing_subscriber::registry()
            .with(logs)
            .with(spans)
            .with(model_logs.clone().with_filter(LevelFilter::INFO))
            .try_init()
            .map_err(|e| Failure::doing("cannot start logging", e))?;
        Ok(Self { traces, model_logs, log })
    }

    /// Levels of the log, to be read and changed.
    pub(crate) fn log(&self) -> LogControl {
        self.log.clone()
    }

    /// Makes the span of a request, continuing the caller's trace; `None` when traces go nowhere.
    pub(crate) fn request_spans(&self) -> Option<SpanHook> {
        self.traces.as_ref().map(|_| trace::request_spans())
    }

    /// Writes the context of the current span into headers of requests to other nodes; `None` when traces go nowhere.
    pub(crate) fn propagation(&self) -> Option<PropagateHook> {
        self.traces.as_ref().map(|_| trace::propagation())
    }

    /// Joins spans of functions to the traces of who has put their objects; `None` when traces go nowhere.
    pub(crate) fn continuation(&self) -> Option<TraceHook> {
        self.traces.as_ref().map(|_| trace::continuation())
    }

    /// Sends what is left.
    pub(crate) fn stop(self) {
        if let Some(Err(error)) = self.traces.map(|traces| traces.shutdown()) {
            tracing::warn!(event = "traces_unsent", %error, "the last traces were not sent");
        }
    }
}
