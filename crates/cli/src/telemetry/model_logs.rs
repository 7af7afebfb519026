//! The recent log of each model on this node, for `berth logs`: its own output, and the steps of the worker with it.
//!
//! ```text
//! tracing ──events of the worker about a deployment──▶ ModelLogs ──after N──▶ GET /v1/deployments/NAME/log, over all nodes
//! ```
//! Kept whatever `--log` says, in memory alone. Two bounds: one for a model, so that a chatty one pushes out no other, and one
//! for all, which the oldest lines give way to.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use berth_control::api::log::LogQuery;
use berth_spec::{Time, WorkerId};
use berth_wire::api::{LogLine, NodeLog, Timestamp};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::{Layer, layer::Context, registry::LookupSpan};

use super::sentence::{self, Sentence};
use crate::terminal;

/// Bytes of one model's lines. A thousand lines of usual length.
const OF_ONE: usize = 128 << 10;

/// Bytes of all lines. The logs of a fleet of models that misbehave cost no more than a small model.
const OF_ALL: usize = 8 << 20;

/// Longest line in bytes; more of it is cut.
const LINE: usize = 4 << 10;

/// The cost of a line beside its text, in bytes: 80 of the structure, and what the allocator adds to its two texts.
const OVERHEAD: usize = 96;

/// Recent lines of all models of this node. Clones are one.
#[derive(Clone, Default)]
pub(crate) struct ModelLogs(Arc<Mutex<RecentLines>>);

#[derive(Default)]
struct RecentLines {
    models: HashMap<String, Model>,
    /// Number and model of each line by age; lines that a model pushed out itself are still named.
    order: VecDeque<(u64, String)>,
    lines: usize,
    bytes: usize,
    last: u64,
}

#[derive(Default)]
struct Model {
    lines: VecDeque<StoredLine>,
    bytes: usize,
}

struct StoredLine {
    number: u64,
    at: Time,
    level: &'static str,
    event: String,
    text: String,
}

impl StoredLine {
    fn cost(&self) -> usize {
        OVERHEAD + self.event.len() + self.text.len()
    }
}

impl RecentLines {
    fn push(&mut self, sentence: Sentence, at: Time) {
        let Sentence { event, level, about, mut text, .. } = sentence;
        let mut end = text.len().min(LINE);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        // Grows over a restart of the node, too: readers ask for what follows a number.
        self.last = (self.last + 1).max(at.0 / 1_000);
        let line = StoredLine { number: self.last, at, level, event, text };
        let cost = line.cost();
        self.order.push_back((line.number, about.clone()));
        let model = self.models.entry(about).or_default();
        model.lines.push_back(line);
        model.bytes += cost;
        self.bytes += cost;
        self.lines += 1;
        while model.bytes > OF_ONE && model.lines.len() > 1 {
            let Some(gone) = model.lines.pop_front() else { break };
            model.bytes -= gone.cost();
            self.bytes -= gone.cost();
            self.lines -= 1;
        }
        self.shrink();
    }

    /// Forgets the oldest lines until the rest fits, and the names of lines that are gone.
    fn shrink(&mut self) {
        while self.bytes > OF_ALL {
            let Some((number, name)) = self.order.pop_front() else { break };
            let Some(model) = self.models.get_mut(&name) else { continue };
            if model.lines.front().is_some_and(|line| line.number == number)
                && let Some(gone) = model.lines.pop_front()
            {
                model.bytes -= gone.cost();
                self.bytes -= gone.cost();
                self.lines -= 1;
                if model.lines.is_empty() {
                    self.models.remove(&name);
                }
            }
        }
        if self.order.len() > 2 * self.lines + 1_024 {
            let models = &self.models;
            let first = |name: &String| models.get(name).and_then(|model| model.lines.front()).map(|line| line.number);
            self.order.retain(|(number, name)| first(name).is_some_and(|first| *number >= first));
        }
    }
}

impl ModelLogs {
    fn locked(&self) -> MutexGuard<'_, RecentLines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lines of a model after a number, the latest of them if there are more than asked for.
    pub(crate) fn read(&self, node: &WorkerId, query: &LogQuery) -> NodeLog {
        let kept = self.locked();
        let found = kept.models.get(query.deployment.as_str()).map(|model| {
            let fresh = model.lines.iter().filter(|line| line.number > query.after);
            let line = |line: &StoredLine| LogLine {
                node: node.to_string(),
                number: line.number,
                at: Timestamp(line.at),
                level: line.level.to_owned(),
                event: line.event.clone(),
                text: line.text.clone(),
            };
            let mut lines: Vec<LogLine> = fresh.rev().take(query.limit).map(line).collect();
            lines.reverse();
            lines
        });
        NodeLog { node: node.to_string(), lines: found.unwrap_or_default(), last: kept.last.max(query.after) }
    }
}

impl<S: Subscriber + for<'span> LookupSpan<'span>> Layer<S> for ModelLogs {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let about = event.metadata().fields().field("deployment_id").is_some();
        if !about || *event.metadata().level() > Level::INFO || !event.metadata().target().starts_with("berth_worker") {
            return;
        }
        let sentence = sentence::of(event);
        if !sentence.about.is_empty() && sentence.event != "command_received" {
            self.locked().push(sentence, terminal::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_spec::DeploymentName;

    use super::*;

    fn say(logs: &ModelLogs, about: &str, text: &str) {
        let (event, about, text) = ("model_output".to_owned(), about.to_owned(), text.to_owned());
        logs.locked().push(Sentence { event, level: "INFO", about, text, is_step: false }, Time(1));
    }

    fn read(logs: &ModelLogs, name: &str, after: u64, limit: usize) -> Vec<String> {
        let query = LogQuery { deployment: DeploymentName::new(name).expect("a name"), after, limit };
        let node = WorkerId::new("a").expect("a name");
        logs.read(&node, &query).lines.into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn a_chatty_model_pushes_out_only_itself() {
        let logs = ModelLogs::default();
        say(&logs, "quiet", "here");
        for number in 0..5_000 {
            say(&logs, "chatty", &format!("line {number} {}", "x".repeat(200)));
        }
        assert_eq!(read(&logs, "quiet", 0, 10), ["here"]);
        let last = read(&logs, "chatty", 0, 1);
        assert!(last.len() == 1 && last[0].starts_with("line 4999 "), "{last:?}");
        let kept = logs.locked();
        assert!(kept.models["chatty"].bytes <= OF_ONE && kept.bytes <= OF_ONE + OF_ALL);
        assert!(kept.order.len() <= 2 * kept.lines + 1_025, "{} names of {} lines", kept.order.len(), kept.lines);
    }

    #[test]
    fn all_models_together_are_bounded_and_followed_by_number() {
        let logs = ModelLogs::default();
        for number in 0..30_000 {
            say(&logs, &format!("m{}", number % 3_000), &"y".repeat(900));
        }
        assert!(logs.locked().bytes <= OF_ALL);
        say(&logs, "iris", "one");
        let seen = logs.locked().last;
        say(&logs, "iris", &"ü".repeat(LINE));
        let after = read(&logs, "iris", seen, 10);
        assert_eq!((after.len(), after[0].len()), (1, LINE));
    }
}
