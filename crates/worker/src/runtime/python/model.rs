//! A card's model, as gateways and the worker see it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use berth_mesh::{
    local::{Batching, DocumentSchemas, Model, Statistics},
    offload,
};
use berth_spec::{InferError, InferRequest, Serving, Signature, Tensor, Violation, inference::Shed};
use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use tokio::{sync::oneshot, time::timeout_at};

use super::{document::Interface, schema::AnswerFault};
use crate::runtime::process::{
    document::Document,
    failure::{self, down},
    queue::{Limits, Outcome, ProcessRequest},
    shared::Refused,
    supervise::Supervisor,
};

/// The requests in one replica at once where the deployment does not say: bursts are taken, and a slow model's last
/// request still gets its answer in time.
const DEFAULT_MAX_REQUESTS: u32 = 256;

pub(super) struct PythonModel {
    pub(super) supervisor: Supervisor,
    pub(super) interface: Arc<Interface>,
    /// The card's own bound on requests in one run.
    pub(super) batch_size: u32,
    /// An answer that did not fit its schema was told in the log already.
    told: AtomicBool,
}

/// The bounds of a deployment's requests.
pub(super) fn limits(serving: &Serving, batch_size: u32) -> Limits {
    Limits {
        max_requests: serving.concurrency.max.unwrap_or(DEFAULT_MAX_REQUESTS).max(1) as usize,
        max_rows: batch_size.min(serving.batching.max_rows).max(1) as usize,
        max_delay: serving.batching.max_delay,
        parallel_runs: 1,
    }
}

impl PythonModel {
    pub(super) fn new(supervisor: Supervisor, interface: Interface, batch_size: u32) -> Self {
        Self { supervisor, interface: Arc::new(interface), batch_size, told: AtomicBool::new(false) }
    }

    /// Runs some requests and gives their answers in order. The first failure is the failure of all.
    async fn run(&self, documents: Vec<Document>, deadline: Instant) -> Result<Vec<Bytes>, InferError> {
        let since = Instant::now();
        if deadline <= since {
            return Err(too_late());
        }
        let rows = documents.len();
        let (entries, answers): (Vec<_>, Vec<_>) = documents
            .into_iter()
            .enumerate()
            .map(|(index, document)| {
                let (reply, answer) = oneshot::channel();
                (ProcessRequest { document, deadline, since, first: index == 0, reply }, answer)
            })
            .unzip();
        self.supervisor.shared.push(entries).map_err(|refused| self.refusal(&refused))?;
        let mut documents = Vec::with_capacity(rows);
        for (row, answer) in answers.into_iter().enumerate() {
            let outcome = match timeout_at(deadline.into(), answer).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(_)) => Outcome::Lost("the model's process is gone".to_owned()),
                Err(_) => Outcome::Late,
            };
            let outcome = match outcome {
                Outcome::Answer(answer) => self.looked_at(answer).await?,
                other => self.answer(other, (rows > 1).then_some(row))?,
            };
            documents.push(outcome);
        }
        self.supervisor.shared.metrics.took(since.elapsed());
        Ok(documents)
    }

    pub(super) fn answer(&self, outcome: Outcome, row: Option<usize>) -> Result<Bytes, InferError> {
        match outcome {
            Outcome::Answer(answer) => {
                let fault = self.interface.output.fault_in(&answer);
                self.judged(answer, fault)
            }
            Outcome::Refused(refusal) => {
                let path = row.map_or_else(String::new, |row| format!("/{row}")) + &refusal.path;
                let violations = vec![Violation { path, message: refusal.message.clone() }];
                Err(InferError::Unprocessable { message: refusal.message, violations })
            }
            Outcome::Raised(raised) => {
                let shared = &self.supervisor.shared;
                let (stage, error, trace) = (&raised.stage, &raised.kind, &raised.trace);
                // A client that sends nonsense a thousand times a second does not fill the log with tracebacks.
                if shared.may_log() {
                    tracing::warn!(event = "model_raised", deployment_id = %shared.plan.deployment, stage, error, trace);
                }
                Err(InferError::Model(failure::told(&raised)))
            }
            Outcome::NotRun(wait) => Err(down(wait)),
            Outcome::Lost(why) => Err(InferError::Lost(why)),
            Outcome::Late => Err(too_late()),
        }
    }

    /// Looks at an answer: at a large one where nobody waits for the thread.
    async fn looked_at(&self, answer: Bytes) -> Result<Bytes, InferError> {
        let (interface, looked_at) = (Arc::clone(&self.interface), answer.clone());
        let weight = interface.output.weight(answer.len());
        let fault = offload::run(weight, move || Ok(interface.output.fault_in(&looked_at))).await?;
        self.judged(answer, fault)
    }

    /// Refuses an answer that is not what the card promises.
    fn judged(&self, answer: Bytes, fault: Option<AnswerFault>) -> Result<Bytes, InferError> {
        let why = match fault {
            None => return Ok(answer),
            Some(AnswerFault::NoJson(why)) => return Err(InferError::Model(why)),
            Some(AnswerFault::BreaksSchema(why)) => why,
        };
        self.supervisor.shared.metrics.broke_schema();
        if !self.told.swap(true, Ordering::Relaxed) {
            let deployment_id = &self.supervisor.shared.plan.deployment;
            tracing::warn!(event = "answer_breaks_schema", %deployment_id, why, note = "told once per replica");
        }
        Err(InferError::Model(why))
    }

    pub(super) fn refusal(&self, refused: &Refused) -> InferError {
        match refused {
            Refused::Down(wait) => down(*wait),
            Refused::Full { here, limits } => {
                let runs = here.div_ceil(limits.max_rows.max(1));
                let run = self.supervisor.shared.tally.run_time();
                let retry_in = run.saturating_mul(u32::try_from(runs).unwrap_or(u32::MAX));
                let most = limits.max_requests;
                InferError::shed(
                    Shed::QueueFull,
                    format!(
                        "{here} of {most} requests are in this replica already: try again later, or raise concurrency.max"
                    ),
                    retry_in.clamp(Duration::from_millis(1), Duration::from_secs(30)),
                )
            }
        }
    }

    /// Counts a request from its arrival to its end.
    async fn counted<T>(&self, work: impl Future<Output = Result<T, InferError>>) -> Result<T, InferError> {
        let shared = &self.supervisor.shared;
        let arrived = Instant::now();
        shared.metrics.request();
        let result = work.await;
        if let Err(error) = &result {
            shared.metrics.failed(error);
            shared.tally.failed(arrived.elapsed());
        }
        result
    }

    async fn infer_rows(&self, request: InferRequest, deadline: Instant) -> Result<Vec<Tensor>, InferError> {
        self.interface.check_outputs(&request)?;
        let interface = Arc::clone(&self.interface);
        let sent: usize = request.inputs.iter().map(|tensor| tensor.data.len()).sum();
        let weight = interface.input.weight(sent);
        let (rows, request) =
            offload::run(weight, move || interface.rows(&request).map(|rows| (rows, request))).await?;
        let answers = self.run(rows, deadline).await?;
        let interface = Arc::clone(&self.interface);
        let weight = answers.iter().map(Bytes::len).sum();
        offload::run(weight, move || interface.tensors(&answers, &request)).await
    }

    async fn call_one(&self, body: Bytes, deadline: Instant) -> Result<Bytes, InferError> {
        let interface = Arc::clone(&self.interface);
        let weight = interface.input.weight(body.len());
        let document = offload::run(weight, move || interface.document(body)).await?;
        let mut answers = self.run(vec![document], deadline).await?;
        answers.pop().ok_or_else(|| InferError::Internal("a request without an answer".to_owned()))
    }
}

fn too_late() -> InferError {
    InferError::TimedOut("the deadline passed before the model could answer".to_owned())
}

impl Model for PythonModel {
    fn signature(&self) -> &Arc<Signature> {
        &self.interface.signature
    }

    fn platform(&self) -> &'static str {
        "berth_python"
    }

    fn infer(&self, request: InferRequest, deadline: Instant) -> BoxFuture<'_, Result<Vec<Tensor>, InferError>> {
        self.counted(self.infer_rows(request, deadline)).boxed()
    }

    fn has_json(&self) -> bool {
        true
    }

    fn call(&self, body: Bytes, deadline: Instant) -> BoxFuture<'_, Result<Bytes, InferError>> {
        self.counted(self.call_one(body, deadline)).boxed()
    }

    fn schemas(&self) -> Option<DocumentSchemas<'_>> {
        Some(DocumentSchemas { input: self.interface.input.json(), output: self.interface.output.json() })
    }

    fn statistics(&self) -> Statistics {
        self.supervisor.shared.tally.statistics(self.supervisor.shared.memory().0)
    }

    fn batching(&self) -> Batching {
        let limits = self.supervisor.shared.limits();
        Batching { max_rows: u32::try_from(limits.max_rows).unwrap_or(u32::MAX), max_delay: limits.max_delay }
    }
}
