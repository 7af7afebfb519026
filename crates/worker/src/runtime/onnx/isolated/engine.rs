//! The worker's side of a run: hands it to the model's process and waits.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use berth_spec::{InferError, Signature, Tensor, inference::Shed};
use tokio::sync::oneshot;

use super::documents;
use crate::runtime::{
    batch::{Engine, StopCondition, View},
    process::{
        failure::down,
        message::Raised,
        queue::{Outcome, ProcessRequest},
        shared::Refused,
        supervise::Supervisor,
        wait::wait,
    },
};

/// The interval at which a waiting run asks if anybody still waits for it, as the engine's own watchdog does.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// An engine in another process.
pub(super) struct RemoteEngine {
    supervisor: Arc<Supervisor>,
    signature: Arc<Signature>,
    inputs: Vec<Arc<str>>,
}

impl RemoteEngine {
    /// The engine that `supervisor` keeps running.
    pub(super) fn new(supervisor: Arc<Supervisor>, signature: Arc<Signature>) -> Self {
        let inputs = signature.inputs.iter().map(|spec| spec.name.as_str().into()).collect();
        Self { supervisor, signature, inputs }
    }

    fn told(&self, outcome: Outcome, wanted: &[usize]) -> Result<Vec<Tensor>, InferError> {
        match outcome {
            Outcome::Answer(answer) => documents::outputs(&answer, &self.signature.outputs, wanted).map_err(|why| {
                InferError::Lost(format!("the model's process sent an answer that cannot be used: {why}"))
            }),
            Outcome::Refused(refusal) => Err(InferError::Model(refusal.message)),
            Outcome::Raised(raised) => Err(failed(raised)),
            Outcome::NotRun(wait) => Err(down(wait)),
            Outcome::Lost(why) => Err(InferError::Lost(why)),
            Outcome::Late => Err(too_late()),
        }
    }
}

/// The engine's own word; [`host`](super::host) writes the categories.
fn failed(raised: Raised) -> InferError {
    match raised.category.as_str() {
        "deadline" => InferError::TimedOut(raised.message),
        "internal" => InferError::Internal(raised.message),
        _ => InferError::Model(raised.message),
    }
}

fn too_late() -> InferError {
    InferError::TimedOut("the deadline passed while the model ran".to_owned())
}

impl Engine for RemoteEngine {
    fn run(&self, inputs: &[View<'_>], outputs: &[usize], stop: &StopCondition) -> Result<Vec<Tensor>, InferError> {
        let document = documents::request(&self.inputs, inputs, outputs, stop.until);
        let (reply, mut answer) = oneshot::channel();
        let entry = ProcessRequest { document, deadline: stop.until, since: Instant::now(), first: false, reply };
        let shared = &self.supervisor.shared;
        shared.push(vec![entry]).map_err(|refused| match refused {
            Refused::Down(wait) => down(wait),
            Refused::Full { here, .. } => {
                InferError::shed(Shed::QueueFull, format!("{here} runs are in this replica already"), LOOK_EVERY)
            }
        })?;
        loop {
            let look = (Instant::now() + LOOK_EVERY).min(stop.until);
            if let Some(outcome) = wait(&mut answer, if stop.callers.is_empty() { stop.until } else { look }) {
                return self.told(outcome, outputs);
            }
            if Instant::now() >= stop.until || StopCondition::is_abandoned(&stop.callers) {
                drop(answer);
                // The process is told to stop the run.
                shared.changed.notify_all();
                return Err(too_late());
            }
        }
    }

    /// Its run waits for another process: the thread of a connection never does.
    fn is_bounded(&self) -> bool {
        false
    }

    fn end(&self) {
        self.supervisor.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engines_word_keeps_its_meaning() {
        let raised = |category: &str| Raised { category: category.to_owned(), ..Raised::default() };
        assert!(matches!(failed(raised("deadline")), InferError::TimedOut(_)));
        assert!(matches!(failed(raised("internal")), InferError::Internal(_)));
        assert!(matches!(failed(raised("anything")), InferError::Model(_)));
    }
}
