//! Validates a card's model: one request through all of it, on a thread that may block.

use std::time::{Duration, Instant};

use berth_mesh::oip;
use berth_spec::{FailureCategory, InferError, Serving, deployment::Warmup};
use bytes::Bytes;
use tokio::sync::{oneshot, watch};

use super::{
    model::{PythonModel, limits},
    sample,
};
use crate::runtime::{
    Health, LoadError, LoadedModel, Validation,
    process::{
        document::Document,
        failure,
        queue::{Outcome, ProcessRequest},
        wait::wait,
    },
    refused,
};

/// The time limit of the validation inference: below the worker's own of 60 s, so that the failure says in words what
/// was too slow.
const VALIDATION: Duration = Duration::from_secs(55);

impl LoadedModel for PythonModel {
    fn validate(&self, warmup: &Warmup) -> Result<Validation, LoadError> {
        let failed = |message: String| {
            LoadError::new(FailureCategory::Validation, format!("the validation inference failed: {message}"))
        };
        let schema = &self.interface.input;
        let warmup = match warmup {
            // The author's own request: the card says that it is answered.
            Warmup::Generated if sample::is_given(schema) => &Warmup::Required,
            warmup => warmup,
        };
        let documents = match self.rehearsal(warmup) {
            Ok(documents) if documents.is_empty() => return Ok(Validation::NotRun),
            Ok(documents) => documents,
            Err(message) => return refused(warmup, message),
        };
        let deadline = Instant::now() + VALIDATION;
        let outcomes = self.outcomes(documents, deadline).map_err(|error| failed(error.to_string()))?;
        for outcome in outcomes {
            match outcome {
                Outcome::Raised(raised) if raised.memory => {
                    let message = format!("out of memory during the validation inference: {}", failure::told(&raised));
                    return Err(LoadError::new(FailureCategory::Memory, message).with_trace(&raised.trace));
                }
                Outcome::Raised(raised) => {
                    return refused(warmup, failure::told(&raised)).map_err(|error| error.with_trace(&raised.trace));
                }
                Outcome::Lost(why) => {
                    let shared = &self.supervisor.shared;
                    return Err(match shared.ended() {
                        Some(ended) => failure::died_validating(&ended, shared.plan.memory()),
                        None => failed(why),
                    });
                }
                other => self.answer(other, None).map(drop).map_err(|error| failed(error.to_string()))?,
            }
        }
        // The first run allocates.
        self.supervisor.shared.measure();
        Ok(Validation::Passed)
    }

    fn end(&self) {
        self.supervisor.end();
    }

    fn health(&self) -> Health {
        self.supervisor.shared.health()
    }

    fn changes(&self) -> Option<watch::Receiver<Health>> {
        Some(self.supervisor.shared.changes())
    }

    fn set_serving(&self, serving: &Serving) {
        self.supervisor.shared.set_limits(limits(serving, self.batch_size));
    }
}

impl PythonModel {
    /// The requests of the validation inference.
    fn rehearsal(&self, warmup: &Warmup) -> Result<Vec<Document>, String> {
        let given = match warmup {
            Warmup::Off => return Ok(Vec::new()),
            Warmup::Generated | Warmup::Required => Bytes::from(sample::request(&self.interface.input)?.to_string()),
            Warmup::Given(json) => Bytes::copy_from_slice(json.as_bytes()),
        };
        let as_document = match self.interface.document(given.clone()) {
            Ok(document) => return Ok(vec![document]),
            Err(error) => error,
        };
        // In the form of the protocol, as for any other model.
        let decoded =
            oip::decode(&given, oip::Layout::Json, &self.interface.signature).and_then(oip::Decoded::with_data);
        let rows = decoded.and_then(|decoded| self.interface.rows(&decoded.request));
        rows.map_err(|as_tensors| format!("{as_document}; nor is it a request in tensors: {as_tensors}"))
    }

    /// As [`run`](Self::run), for a thread that may block, with everything that Python said.
    fn outcomes(&self, documents: Vec<Document>, deadline: Instant) -> Result<Vec<Outcome>, InferError> {
        let since = Instant::now();
        let (entries, answers): (Vec<_>, Vec<_>) = documents
            .into_iter()
            .map(|document| {
                let (reply, answer) = oneshot::channel();
                (ProcessRequest { document, deadline, since, first: false, reply }, answer)
            })
            .unzip();
        self.supervisor.shared.push(entries).map_err(|refused| self.refusal(&refused))?;
        answers.into_iter().map(|answer| waited(answer, deadline)).collect()
    }
}

/// Waits on this thread.
fn waited(mut answer: oneshot::Receiver<Outcome>, deadline: Instant) -> Result<Outcome, InferError> {
    let seconds = VALIDATION.as_secs();
    wait(&mut answer, deadline).ok_or_else(|| InferError::TimedOut(format!("it took longer than {seconds} s")))
}
