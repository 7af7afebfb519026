//! Traces from the put to the answer: a span for each turn of a function, its build and its deployment in it.
//!
//! ```text
//! function ┬─ build ┬─ fetch        traceparent of the object's annotation, where it has one
//!          │        ├─ step …       (npm ci, rollup, uv pip install)
//!          │        └─ check
//!          └─ deploy
//! ```

use std::{collections::BTreeMap, fmt, sync::Arc};

use tracing::{Span, field::Empty};

use crate::controller::{Event, Task, TaskId};

/// Makes a span a part of the trace that a W3C `traceparent` names.
#[derive(Clone)]
pub struct TraceHook(pub Arc<Join>);

/// See [`TraceHook`]: the span and the `traceparent`.
pub type Join = dyn Fn(&Span, &str) + Send + Sync;

impl fmt::Debug for TraceHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TraceHook")
    }
}

/// The spans of functions that have a turn.
#[derive(Debug, Default)]
pub(crate) struct Spans(BTreeMap<TaskId, Span>);

impl Spans {
    /// The span of a turn that begins.
    pub(crate) fn begin(&mut self, id: TaskId, task: &Task, hook: Option<&TraceHook>) -> Span {
        let span = tracing::info_span!(
            "function",
            function = %task.spec.name,
            generation = task.generation,
            build = %id,
            since_heard_ms = u64::try_from(crate::driver::now().since(task.seen).as_millis()).unwrap_or(u64::MAX),
            otel.status_code = Empty,
            error = Empty,
        );
        if let (Some(TraceHook(hook)), Some(traceparent)) = (hook, &task.traceparent) {
            hook(&span, traceparent);
        }
        self.0.insert(id, span.clone());
        span
    }

    /// The span of a turn.
    pub(crate) fn of(&self, id: TaskId) -> Span {
        self.0.get(&id).cloned().unwrap_or_else(Span::none)
    }

    /// Ends the span of a turn that an event ends.
    pub(crate) fn ended(&mut self, event: &Event) {
        let (id, failure) = match event {
            Event::Built(id, built) => match &**built {
                Ok(_) => return,
                Err(failure) => (id, Some(failure)),
            },
            Event::Deployed(id, deployed) => (id, deployed.as_ref().err()),
            _ => return,
        };
        if let (Some(span), Some(failure)) = (self.0.remove(id), failure) {
            span.record("otel.status_code", "ERROR").record("error", failure.message.as_str());
        }
    }

    /// Ends the span of a turn that is given up.
    pub(crate) fn cancelled(&mut self, id: TaskId) {
        self.0.remove(&id);
    }
}
