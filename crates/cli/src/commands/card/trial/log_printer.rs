//! Prints the output of a model's code during a trial: its `print` and its logs. A worker of a fleet writes both into
//! its log.

use std::fmt::{self, Write as _};

use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
    util::SubscriberInitExt,
};

/// Shows from now on what the model's code says, on standard error.
pub(super) fn show() {
    // Where something else takes the logs of this process, it shows them.
    let _ = tracing_subscriber::registry().with(LogPrinter).try_init();
}

struct LogPrinter;

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for LogPrinter {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut words = EventText::default();
        event.record(&mut words);
        if let Some(text) = words.shown() {
            eprint!("{text}");
        }
    }
}

/// The fields of an event that are of interest here.
#[derive(Default)]
struct EventText {
    event: String,
    text: String,
    lines: u64,
}

impl EventText {
    /// Text to print; `None` for messages of the worker itself.
    fn shown(&self) -> Option<String> {
        let text = match self.event.as_str() {
            "model_output" | "model_log" | "model_raised" => self.text.trim_end(),
            "model_output_dropped" | "model_log_dropped" => &format!("({} lines more)", self.lines),
            _ => return None,
        };
        let mut shown = String::new();
        for line in text.lines() {
            let _ = writeln!(shown, "         | {line}");
        }
        Some(shown)
    }
}

impl Visit for EventText {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "lines" {
            self.lines = value;
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "event" => value.clone_into(&mut self.event),
            "line" | "text" | "trace" => value.clone_into(&mut self.text),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_models_words_are_shown_and_the_workers_are_not() {
        let words = |event: &str, text: &str| EventText { event: event.to_owned(), text: text.to_owned(), lines: 7 };
        for (event, text, shown) in [
            ("model_output", "one\ntwo\n", Some("         | one\n         | two\n")),
            ("model_log", "fine", Some("         | fine\n")),
            ("model_output_dropped", "", Some("         | (7 lines more)\n")),
            ("model_load_started", "", None),
        ] {
            assert_eq!(words(event, text).shown().as_deref(), shown, "{event}");
        }
    }
}
