//! Logs as one JSON object per line, in the shape that log collectors of the registry's document expect:
//!
//! ```json
//! {"timestamp":"…","component":"worker-local","level":"INFO","event":"model_load_success","context":{"deployment_id":"iris"}}
//! ```
//! An event's own `event` field becomes `event`; without one it is made from the message. All other fields, those of the
//! spans around it included, are `context`. What a library says is the event `library`: its words are not ours to make
//! names of; `context` has its `target` and its message.

use std::{collections::BTreeMap, fmt};

use berth_spec::WorkerId;
use serde::Serialize;
use serde_json::Value;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};
use tracing_subscriber::{Layer, layer::Context, registry::LookupSpan};

use super::Sink;
use crate::terminal;

/// Layer that writes logs as JSON.
pub(super) struct JsonLogs {
    worker: String,
    sink: Sink,
}

/// Fields of an event.
pub(super) type Fields = BTreeMap<&'static str, Value>;

#[derive(Serialize)]
struct LogRecord<'a> {
    timestamp: String,
    component: &'a str,
    level: &'static str,
    event: String,
    context: Fields,
}

impl JsonLogs {
    pub(super) fn new(worker: &WorkerId, sink: Sink) -> Self {
        // Workers of a registry are called worker-… already.
        let worker = worker.as_str();
        let component = if worker.starts_with("worker-") { worker.to_owned() } else { format!("worker-{worker}") };
        Self { worker: component, sink }
    }

    /// The document's words: its broker is our controller.
    fn component(&self, metadata: &Metadata<'_>) -> &str {
        match metadata.target().split("::").next() {
            Some("berth_control" | "berth_gitops" | "berth_plan") => "broker",
            Some("berth_worker") => &self.worker,
            Some("berth_mesh") => "gateway",
            _ => "berth",
        }
    }
}

impl<S: Subscriber + for<'span> LookupSpan<'span>> Layer<S> for JsonLogs {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = Collector::default();
            attributes.record(&mut fields);
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Collector>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Collector::default();
        for span in context.event_scope(event).into_iter().flatten().collect::<Vec<_>>().iter().rev() {
            if let Some(around) = span.extensions().get::<Collector>() {
                fields.0.extend(around.0.iter().map(|(name, value)| (*name, value.clone())));
            }
        }
        event.record(&mut fields);
        let Collector(mut fields) = fields;
        let named = fields.remove("event");
        let target = event.metadata().target();
        let event_name = match (named, fields.get("message")) {
            _ if !is_ours(target) => {
                fields.insert("target", target.into());
                "library".to_owned()
            }
            (Some(Value::String(name)), _) => name,
            (_, Some(Value::String(message))) => snake_case(message),
            _ => "log".to_owned(),
        };
        let line = LogRecord {
            timestamp: terminal::now().to_string(),
            component: self.component(event.metadata()),
            level: level(event.metadata().level()),
            event: event_name,
            context: fields,
        };
        let mut text = serde_json::to_string(&line).expect("texts, numbers and maps with text keys are JSON");
        text.push('\n');
        (self.sink)(&text);
    }
}

/// True if the target is a part of Berth rather than a library.
pub(super) fn is_ours(target: &str) -> bool {
    let krate = target.split("::").next().unwrap_or_default();
    krate == "berth" || krate.starts_with("berth_")
}

pub(super) fn level(level: &Level) -> &'static str {
    match *level {
        Level::ERROR => "ERROR",
        Level::WARN => "WARN",
        Level::INFO => "INFO",
        _ => "DEBUG",
    }
}

/// `gateway: draining` becomes `gateway_draining`; at most its first eight words.
fn snake_case(message: &str) -> String {
    let words = message.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let name = words.take(8).collect::<Vec<_>>().join("_").to_lowercase();
    if name.is_empty() { "log".to_owned() } else { name }
}

/// Takes the fields of an event or a span.
#[derive(Default)]
pub(super) struct Collector(pub(super) Fields);

impl Collector {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name(), value.into());
    }
}

impl Visit for Collector {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::json;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn a_worker_is_named_once() {
        for (name, component) in [("a", "worker-a"), ("worker-eu-1a", "worker-eu-1a"), ("workers", "worker-workers")] {
            let logs = JsonLogs::new(&WorkerId::new(name).expect("a name"), Box::new(|_| {}));
            assert_eq!(logs.worker, component);
        }
    }

    #[test]
    fn events_have_the_agreed_shape() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lines);
        let sink = Box::new(move |line: &str| kept.lock().expect("unpoisoned").push(line.to_owned()));
        let worker = WorkerId::new("a").expect("a name");
        tracing::subscriber::with_default(tracing_subscriber::registry().with(JsonLogs::new(&worker, sink)), || {
            let span = tracing::info_span!("load", correlation_id = "c-1", later = tracing::field::Empty);
            let _entered = span.enter();
            span.record("later", 3);
            tracing::info!(target: "berth_worker::driver", event = "model_load_success", deployment_id = "iris", total_duration_ms = 12);
            tracing::warn!(target: "berth_mesh", reason = ?Some(1), "gateway: draining");
            tracing::warn!(target: "object_store::client", event = "odd", "Encountered transport error: backing off");
        });
        let lines = lines.lock().expect("unpoisoned");
        let mut objects: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        for object in &mut objects {
            assert!(object["timestamp"].take().as_str().is_some_and(|at| at.ends_with('Z')));
        }
        assert_eq!(
            objects[0],
            json!({
                "timestamp": null, "component": "worker-a", "level": "INFO", "event": "model_load_success",
                "context": {"correlation_id": "c-1", "later": 3, "deployment_id": "iris", "total_duration_ms": 12}
            })
        );
        assert_eq!(objects[1]["event"], "gateway_draining");
        assert_eq!(objects[1]["context"]["reason"], "Some(1)");
        assert_eq!((&objects[2]["component"], &objects[2]["event"]), (&json!("berth"), &json!("library")));
        assert_eq!(objects[2]["context"]["target"], "object_store::client");
        assert_eq!(objects[2]["context"]["message"], "Encountered transport error: backing off");
    }
}
