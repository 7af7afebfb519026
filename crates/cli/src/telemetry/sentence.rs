//! Log events as sentences for people: the thing that an event is about, and what happened to it.

use super::json::{Collector, Fields, is_ours, level};
use serde_json::Value;
use tracing::{Event, Level};

/// Events that are steps of something that another event tells in one line: a terminal leaves them out.
const STEPS: [&str; 27] = [
    "command_dispatched",
    "command_received",
    "state_drift_detected",
    "reconciliation_cycle_started",
    "model_load_started",
    "model_validation_success",
    "model_validation_skipped",
    "model_validation_failed",
    "model_process_loaded",
    "model_reload_started",
    "model_unload_started",
    "model_unload_success",
    "deployment_ready",
    "registry_commit_detected",
    "registry_validation_started",
    "registry_validation_success",
    "control_api_started",
    "control_api_stopped",
    "controller_attached",
    "started",
    "worker_built",
    "no_gpus",
    "controller_restored",
    "onnx_runtime_loaded",
    "gateway_draining",
    "gateway_drained",
    "worker_stopped",
];

/// Reasons of a `deployment_event` that are steps as well: workers tell of loads.
const STEP_REASONS: [&str; 5] = ["Placed", "TakenBack", "Loaded", "LoadFailed", "Joined"];

/// Fields that a sentence says already, or that only programs need.
const UNSAID: [&str; 8] =
    ["message", "deployment_id", "correlation_id", "revision", "worker_id", "alias", "commit_sha", "duration_ms"];

/// An event in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sentence {
    /// Name of the event.
    pub(super) event: String,
    /// `INFO`, `WARN` or `ERROR`. What is normal is `INFO`, whatever the specification of the log says.
    pub(super) level: &'static str,
    /// The deployment, worker or commit that it is about; empty where it is about none.
    pub(super) about: String,
    /// The sentence, in one line.
    pub(super) text: String,
    /// True for a step of something that is told elsewhere.
    pub(super) is_step: bool,
}

/// Puts an event into words.
pub(super) fn of(event: &Event<'_>) -> Sentence {
    let mut fields = Collector::default();
    event.record(&mut fields);
    told(event.metadata().target(), event.metadata().level(), fields.0)
}

fn told(target: &str, at: &Level, mut fields: Fields) -> Sentence {
    let event = match fields.remove("event") {
        Some(Value::String(name)) if is_ours(target) => name,
        _ if is_ours(target) => "log".to_owned(),
        _ => "library".to_owned(),
    };
    let about = ["deployment_id", "alias", "worker_id", "commit_sha"].iter().find_map(|key| text(&fields, key));
    let mut about = about.unwrap_or_default();
    if fields.contains_key("commit_sha") && !fields.contains_key("deployment_id") {
        about = about.get(..12).unwrap_or(&about).to_owned();
    }
    let is_step = STEPS.contains(&event.as_str())
        || event == "deployment_event" && is_step_of_load(&fields)
        || event == "manifest_applied" && is_told_as_declared(&fields);
    let is_normal = matches!(event.as_str(), "eviction_triggered" | "worker_recovered");
    let level = if is_normal { "INFO" } else { level(at) };
    let text = specific(&event, &fields).unwrap_or_else(|| general(&event, &fields));
    let mut text = text.lines().map(str::trim_end).collect::<Vec<_>>().join("; ");
    // Events of the controller name their deployment first, which has a column of its own.
    if let Some(rest) = text.strip_prefix(about.as_str()).filter(|_| !about.is_empty())
        && let Some(rest) = rest.strip_prefix(": ").or_else(|| rest.strip_prefix(' '))
    {
        text = rest.to_owned();
    }
    Sentence { event, level, about, text, is_step }
}

fn is_step_of_load(fields: &Fields) -> bool {
    let reason = text(fields, "reason").unwrap_or_default();
    STEP_REASONS.contains(&reason.as_str())
}

/// True for a new deployment of a source: the controller tells that it was declared.
fn is_told_as_declared(fields: &Fields) -> bool {
    fields.contains_key("deployment_id") && text(fields, "outcome").as_deref() == Some("created")
}

/// The events of every day.
fn specific(event: &str, fields: &Fields) -> Option<String> {
    let of = |key: &str| text(fields, key).unwrap_or_default();
    let took =
        |key: &str| fields.get(key).and_then(Value::as_f64).map_or_else(String::new, |ms| format!(" in {}", time(ms)));
    Some(match event {
        "model_output" => of("line"),
        "model_log" | "model_raised" => of("text"),
        "model_load_started" => format!("loading version {}", of("model_version")),
        "model_load_success" => format!("version {} loaded{}", of("model_version"), took("total_duration_ms")),
        "model_validation_success" => format!("validated{}", took("validation_duration_ms")),
        "model_validation_skipped" => "not validated: no request was run (spec.warmup gives one)".to_owned(),
        "model_reload_success" => format!("new version {} loaded{}", of("new_version"), took("total_duration_ms")),
        "model_unload_success" => "unloaded".to_owned(),
        "model_load_failed" => {
            let again = text(fields, "retry_at").map_or_else(String::new, |at| format!("; tried again at {at}"));
            format!("cannot be loaded (attempt {}): {}{again}", of("attempts"), of("error_message"))
        }
        "model_validation_failed" => format!("did not pass its validation: {}", of("validation_error")),
        "model_process_died" => format!("its process died: {}", of("reason")),
        "eviction_triggered" => of("reason"),
        "deployment_event" | "manifest_trouble" => of("details"),
        "manifest_applied" => format!("manifest {}", of("outcome")),
        "manifest_removed" => "manifest removed".to_owned(),
        "registry_commit_applied" => {
            format!("commit applied, by {}: {}; {}", of("author"), of("subject"), of("changes"))
        }
        "registry_validation_failed" => format!("commit refused: {}", of("validation_errors")),
        "worker_marked_failed" => "lost: its models are placed elsewhere".to_owned(),
        "worker_marked_suspect" => "not reached".to_owned(),
        _ => return None,
    })
}

/// Any other event: its message or its name, then what it says beside.
fn general(event: &str, fields: &Fields) -> String {
    let what = text(fields, "message").unwrap_or_else(|| event.replace('_', " "));
    let more: Vec<String> = fields
        .keys()
        .filter(|key| !UNSAID.contains(*key))
        .filter_map(|key| text(fields, key).filter(|value| !value.is_empty()).map(|value| format!("{key} {value}")))
        .collect();
    if more.is_empty() { what } else { format!("{what} ({})", more.join(", ")) }
}

/// A field as text.
fn text(fields: &Fields, key: &str) -> Option<String> {
    match fields.get(key)? {
        Value::String(text) => Some(text.clone()),
        Value::Null => None,
        other => Some(other.to_string()),
    }
}

/// Milliseconds for people: `12 ms`, `1.2 s`.
fn time(ms: f64) -> String {
    if ms < 1_000.0 { format!("{ms:.0} ms") } else { format!("{:.1} s", ms / 1e3) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sentence(target: &str, level: Level, fields: &[(&'static str, Value)]) -> Sentence {
        told(target, &level, fields.iter().cloned().collect())
    }

    #[test]
    fn a_cold_start_is_one_line() {
        let load = [
            ("event", json!("model_load_success")),
            ("deployment_id", json!("iris")),
            ("model_version", json!("3")),
            ("total_duration_ms", json!(1_234.5)),
        ];
        let loaded = sentence("berth_worker::driver", Level::INFO, &load);
        assert_eq!((loaded.about.as_str(), loaded.text.as_str()), ("iris", "version 3 loaded in 1.2 s"));
        assert!(!loaded.is_step);
        let validation = |event: &str| sentence("berth_worker::driver", Level::INFO, &[("event", json!(event))]).text;
        assert_eq!(validation("model_validation_success"), "validated");
        let skipped = "not validated: no request was run (spec.warmup gives one)";
        assert_eq!(validation("model_validation_skipped"), skipped);
        let applied = |outcome: &str| {
            let fields =
                [("event", json!("manifest_applied")), ("deployment_id", json!("iris")), ("outcome", json!(outcome))];
            sentence("berth_control::source", Level::INFO, &fields)
        };
        assert!(applied("created").is_step, "the line that it was declared is enough");
        assert_eq!(
            (applied("configured").is_step, applied("configured").text.as_str()),
            (false, "manifest configured")
        );
        for step in ["command_dispatched", "command_received", "state_drift_detected", "model_load_started"] {
            assert!(sentence("berth_worker", Level::INFO, &[("event", json!(step))]).is_step, "{step}");
        }
    }

    #[test]
    fn what_is_normal_is_no_warning_and_strangers_are_told_as_such() {
        let evicted = [("event", json!("eviction_triggered")), ("reason", json!("a leaves w for b"))];
        let evicted = sentence("berth_control::driver", Level::WARN, &evicted);
        assert_eq!((evicted.level, evicted.text.as_str()), ("INFO", "a leaves w for b"));
        let other = [("message", json!("backing off")), ("attempt", json!(2))];
        let other = sentence("object_store::client", Level::WARN, &other);
        assert_eq!(
            (other.event.as_str(), other.level, other.text.as_str()),
            ("library", "WARN", "backing off (attempt 2)")
        );
    }
}
