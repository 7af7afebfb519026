//! Logs for people at a terminal: one line for each thing that happened.
//!
//! ```text
//! 03:41:07  iris                  version 3 loaded in 1.2 s
//! 03:41:09  wine            warn  its process died: it was killed by signal 9
//! ```
//! Steps of what another line tells are left out, unless the filter asks for more than usual.

use std::fmt::Write as _;

use tracing::{Event, Subscriber};
use tracing_subscriber::{Layer, layer::Context, registry::LookupSpan};

use super::{Sink, sentence};
use crate::terminal;

/// Width of the column that names the thing: most names fit.
const ABOUT: usize = 20;

/// Layer that writes lines for people.
pub(super) struct PeopleLogs {
    colours: bool,
    /// Steps are written as well.
    steps: bool,
    sink: Sink,
}

impl PeopleLogs {
    pub(super) fn new(colours: bool, steps: bool, sink: Sink) -> Self {
        Self { colours, steps, sink }
    }

    fn line(&self, at: &str, sentence: &sentence::Sentence) -> String {
        let paint = |code: &str, text: &str| match self.colours {
            true if !text.trim().is_empty() => format!("\x1b[{code}m{text}\x1b[0m"),
            _ => text.to_owned(),
        };
        let (mark, code) = match sentence.level {
            "ERROR" => ("ERROR", "31"),
            "WARN" => ("warn ", "33"),
            _ => ("     ", "0"),
        };
        let about = format!("{:ABOUT$}", clean(&sentence.about));
        let mut line = String::new();
        let text = clean(&sentence.text);
        let text = if mark.trim().is_empty() { text } else { paint(code, &text) };
        // Formatting into a string cannot fail.
        let _ = writeln!(line, "{}  {}  {} {text}", paint("2", at), paint("1", &about), paint(code, mark));
        line
    }
}

/// Text of models and of strangers cannot steer the terminal.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

impl<S: Subscriber + for<'span> LookupSpan<'span>> Layer<S> for PeopleLogs {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let sentence = sentence::of(event);
        if sentence.is_step && !self.steps {
            return;
        }
        let now = terminal::now().to_string();
        // The time of day of `2026-11-21T07:30:00.000Z`.
        (self.sink)(&self.line(now.get(11..19).unwrap_or(&now), &sentence));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    fn told(colours: bool, steps: bool) -> String {
        let lines = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&lines);
        let sink =
            Box::new(move |line: &str| kept.lock().expect("unpoisoned").push_str(line.get(10..).unwrap_or(line)));
        tracing::subscriber::with_default(
            tracing_subscriber::registry().with(PeopleLogs::new(colours, steps, sink)),
            || {
                tracing::info!(target: "berth_worker", event = "command_received", deployment_id = "iris");
                tracing::info!(target: "berth_worker", event = "model_load_success", deployment_id = "iris", model_version = "1");
                tracing::warn!(target: "berth_worker", event = "model_process_died", deployment_id = "w\x1b[2J", reason = "x");
            },
        );
        lines.lock().expect("unpoisoned").clone()
    }

    #[test]
    fn lines_are_aligned_and_harmless() {
        let plain = "iris                        version 1 loaded\n\
                     w [2J                 warn  its process died: x\n";
        assert_eq!(told(false, false), plain);
        assert_eq!(told(false, true).lines().count(), 3);
        assert!(told(true, false).contains("\x1b[33mits process died: x\x1b[0m"));
    }
}
