//! Reads the frames of a model's process: load results, answers, log lines. Runs on the reader thread.

use std::time::{Duration, Instant};

use super::{
    frame::{Frame, Kind},
    message::{Answer, Answers, Computed, Log, Step},
    queue::{Outcome, SentRun},
    shared::{Reported, Shared},
};
use crate::runtime::batch::{join::RunTimings, tally};

impl Shared {
    /// Handles a frame from the process, on the thread that reads it.
    pub(in crate::runtime) fn on_frame(&self, frame: Option<Frame>) {
        let Some(frame) = frame else { return self.set_reported(Reported::Gone) };
        let read = match frame.kind {
            Kind::Step => serde_json::from_slice(&frame.head).map(|Step { step }| {
                tracing::debug!(event = "model_load_step", deployment_id = %self.plan.deployment, step);
            }),
            Kind::Loaded => {
                serde_json::from_slice(&frame.head).map(|loaded| self.set_reported(Reported::Loaded(loaded)))
            }
            Kind::Failed => {
                serde_json::from_slice(&frame.head).map(|raised| self.set_reported(Reported::Failed(raised)))
            }
            Kind::Computed => serde_json::from_slice(&frame.head).map(|Computed { run }| self.computed(run)),
            Kind::Result => serde_json::from_slice(&frame.head).map(|answers| self.answer(answers, &frame)),
            Kind::Log => serde_json::from_slice(&frame.head).map(|log| self.log(&log)),
            Kind::Load | Kind::Run | Kind::Shutdown | Kind::Stop => Ok(()),
        };
        let Err(error) = read else { return };
        tracing::warn!(event = "model_sent_nonsense", deployment_id = %self.plan.deployment, %error);
        if !matches!(frame.kind, Kind::Step | Kind::Log) {
            self.set_reported(Reported::Broken(format!(
                "it sent what the worker cannot read ({error}), and was ended"
            )));
        }
    }

    fn set_reported(&self, reported: Reported) {
        let mut state = self.locked();
        // Why it could not be loaded says more than that it ended after saying so.
        if !matches!((&state.reported, &reported), (Some(Reported::Failed(_)), Reported::Gone)) {
            state.reported = Some(reported);
        }
        drop(state);
        self.changed.notify_all();
    }

    fn log(&self, Log { level, text }: &Log) {
        if !self.may_log() {
            return;
        }
        let deployment_id = &self.plan.deployment;
        match level.as_str() {
            "error" | "critical" => tracing::error!(event = "model_log", %deployment_id, text),
            "warning" => tracing::warn!(event = "model_log", %deployment_id, text),
            "debug" => tracing::debug!(event = "model_log", %deployment_id, text),
            _ => tracing::info!(event = "model_log", %deployment_id, text),
        }
    }

    /// Sends the next run while the answers of this one are written.
    fn computed(&self, run: u64) {
        let now = Instant::now();
        let mut state = self.locked();
        let wake = state.queue.computed(run, now) && state.dispatch(now);
        drop(state);
        if wake {
            self.changed.notify_all();
        }
    }

    /// Answers the requests of a run. Lengths that do not add up are failures of the requests that they belong to.
    fn answer(&self, answers: Answers, frame: &Frame) {
        let now = Instant::now();
        let mut state = self.locked();
        let Some(running) = state.queue.answered(answers.run, now) else { return };
        // The process goes on while its answers are passed on.
        let wake = state.dispatch(now);
        drop(state);
        if wake {
            self.changed.notify_all();
        }
        if self.plan.program.is_counted() {
            self.count(&running, &answers.answers, now);
        }
        let (mut at, mut answers) = (0_usize, answers.answers.into_iter());
        for entry in running.entries {
            let outcome = match answers.next() {
                Some(Answer::Well(length)) => {
                    let end = at.saturating_add(length);
                    let whole = frame.body.len() >= end;
                    let part = whole.then(|| frame.body.slice(at..end));
                    at = end;
                    part.map_or_else(|| Outcome::Lost("its answer was cut off".to_owned()), Outcome::Answer)
                }
                Some(Answer::Refused { request }) => Outcome::Refused(request),
                Some(Answer::Raised(raised)) => Outcome::Raised(raised),
                None => Outcome::Lost("it was left out of the answers".to_owned()),
            };
            // Nobody may be waiting any more.
            let _ = entry.reply.send(outcome);
        }
    }

    fn count(&self, running: &SentRun, answers: &[Answer], now: Instant) {
        let rows = running.entries.len() as u64;
        let timings = RunTimings { infer: now.saturating_duration_since(running.sent), ..RunTimings::default() };
        let (queued, total) = (Duration::ZERO, Duration::ZERO);
        let mut run = tally::Run { requests: 0, succeeded: 0, rows, executions: 1, timings, queued, total };
        for (entry, answer) in running.entries.iter().zip(answers).filter(|(entry, _)| entry.first) {
            let queued = running.sent.saturating_duration_since(entry.since);
            run.requests += 1;
            run.queued += queued;
            self.metrics.queued(queued);
            if matches!(answer, Answer::Well(_)) {
                run.succeeded += 1;
                run.total += now.saturating_duration_since(entry.since);
            }
        }
        self.metrics.batch(rows);
        self.tally.ran(&run);
    }
}
