//! A stream of inferences over gRPC, in Triton's form: one answer per request, in the order of the requests.
//!
//! Up to [`AHEAD`] requests of a stream run at once; the answers keep their order. A failed inference is an answer with
//! `error_message`, which begins with the typed reason, and the stream goes on, unless the client asked with
//! `triton_grpc_error: true` for real gRPC errors, which end it.
//!
//! ```text
//! reading ──client half-closes──→ finishing what runs ──→ end
//!    ├──── the server stops ────→ finishing what runs ──→ UNAVAILABLE, shutting_down
//!    └──── a status (see above) ────────────────────────→ that status
//! ```

use std::{panic::AssertUnwindSafe, pin::Pin, sync::Arc, time::Duration};

use berth_wire::oip::{
    InferParameter, ModelInferRequest, ModelInferResponse, ModelStreamInferResponse, infer_parameter::ParameterChoice,
};
use futures::{FutureExt as _, Stream, StreamExt as _};
use http::HeaderMap;
use tokio::time::Instant;
use tonic::{Status, Streaming, metadata::MetadataMap};

use crate::{
    admission::{Admission, shutting_down},
    forward::buffered::Failure,
    ingress::{
        fault::{Fault, panicked},
        grpc::{self, NoAnswer},
    },
    stack::Stack,
};

/// Requests of one stream that run at once. Halved: one stream keeps a batching model less busy. Doubled: one client
/// takes more of a model's queue.
const AHEAD: usize = 16;

/// The answers of a stream.
pub(super) type Answers = Pin<Box<dyn Stream<Item = Result<ModelStreamInferResponse, Status>> + Send>>;

/// How a failed inference is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Errors {
    /// In the answer; the stream goes on.
    InAnswers,
    /// As the status that ends the stream.
    AsStatus,
}

impl Errors {
    /// What the client asked for.
    pub(super) fn of(metadata: &MetadataMap) -> Self {
        let asked = metadata.get("triton_grpc_error").is_some_and(|value| value.as_encoded_bytes() == b"true");
        if asked { Self::AsStatus } else { Self::InAnswers }
    }
}

/// How long the requests of a stream may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// `berth-timeout-ms`: each of them, counted from its arrival.
    each: Option<Duration>,
    /// `grpc-timeout`: all of them.
    until: Option<Instant>,
}

impl Patience {
    /// For a stream that begins now.
    pub(super) fn new(each: Option<Duration>, whole: Option<Duration>) -> Self {
        Self { each, until: whole.map(|whole| Instant::now() + whole) }
    }

    /// For a request that comes now.
    fn now(self) -> Option<Duration> {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        self.each.into_iter().chain(left).min()
    }
}

/// What the client said of the stream as a whole.
pub(super) struct Manner {
    pub(super) errors: Errors,
    pub(super) patience: Patience,
    /// The headers of the call: they go along to other nodes.
    pub(super) headers: HeaderMap,
}

/// Answers every request of a stream.
pub(super) fn answers(stack: Arc<Stack>, requests: Streaming<ModelInferRequest>, manner: Arc<Manner>) -> Answers {
    let admission = Arc::clone(&stack.admission);
    let answer = move |request| answer(Arc::clone(&stack), request, Arc::clone(&manner));
    let answers = open(requests, admission).map(answer).buffered(AHEAD);
    // A status ends a stream; nothing may follow it.
    Box::pin(answers.scan(false, |ended, answer| {
        let before = std::mem::replace(ended, *ended || answer.is_err());
        std::future::ready((!before).then_some(answer))
    }))
}

/// The requests of a stream until the server stops: an idle stream must not hold it up.
fn open(
    requests: Streaming<ModelInferRequest>,
    admission: Arc<Admission>,
) -> impl Stream<Item = Result<ModelInferRequest, Status>> + Send {
    futures::stream::unfold(Some((requests, admission)), async |reading| {
        let (mut requests, admission) = reading?;
        tokio::select! {
            biased;
            () = admission.closed() => Some((Err(Fault::from(shutting_down()).into()), None)),
            request = requests.next() => request.map(|request| (request, Some((requests, admission)))),
        }
    })
}

async fn answer(
    stack: Arc<Stack>,
    request: Result<ModelInferRequest, Status>,
    manner: Arc<Manner>,
) -> Result<ModelStreamInferResponse, Status> {
    let request = request?;
    let id = request.id.clone();
    let says_last = wants_final_response(&request);
    let inferred = grpc::infer(&stack, request, manner.patience.now(), &manner.headers);
    let inferred = AssertUnwindSafe(inferred).catch_unwind().await;
    match inferred.unwrap_or_else(|_| Err(panicked().into())) {
        Ok(mut response) => {
            if says_last {
                let last = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
                response.parameters.insert("triton_final_response".to_owned(), last);
            }
            Ok(ModelStreamInferResponse { error_message: String::new(), infer_response: Some(response) })
        }
        Err(no) if manner.errors == Errors::AsStatus => Err(no.into()),
        Err(no) => Ok(ModelStreamInferResponse {
            error_message: reason_and_message(&no),
            // The id says which request failed.
            infer_response: Some(ModelInferResponse { id, ..Default::default() }),
        }),
    }
}

/// The request asks that the last answer say that it is the last: the stream's to add, wherever the model runs.
fn wants_final_response(request: &ModelInferRequest) -> bool {
    let asked = request.parameters.get("triton_enable_empty_final_response");
    matches!(asked.and_then(|asked| asked.parameter_choice.as_ref()), Some(ParameterChoice::BoolParam(true)))
}

fn reason_and_message(no: &NoAnswer) -> String {
    match no {
        NoAnswer::Failed(Failure::Infer(error)) => format!("{}: {error}", error.reason()),
        NoAnswer::Failed(lost @ Failure::Lost { .. }) => format!("unavailable: {lost}"),
        NoAnswer::Told(status) => {
            let reason = status.metadata().get("berth-reason").and_then(|reason| reason.to_str().ok());
            format!("{}: {}", reason.unwrap_or("internal"), status.message())
        }
    }
}
