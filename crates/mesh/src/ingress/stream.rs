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
use tokio::time::Instant;
use tonic::{Status, Streaming, metadata::MetadataMap};

use super::{
    fault::{Fault, panicked},
    grpc,
};
use crate::{
    admit::{Door, shutting_down},
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
#[derive(Debug, Clone, Copy)]
pub(super) struct Manner {
    pub(super) errors: Errors,
    pub(super) patience: Patience,
}

/// Answers every request of a stream.
pub(super) fn answers(stack: Arc<Stack>, requests: Streaming<ModelInferRequest>, manner: Manner) -> Answers {
    let door = Arc::clone(&stack.door);
    let answers = open(requests, door).map(move |request| answer(Arc::clone(&stack), request, manner)).buffered(AHEAD);
    // A status ends a stream; nothing may follow it.
    Box::pin(answers.scan(false, |ended, answer| {
        let before = std::mem::replace(ended, *ended || answer.is_err());
        std::future::ready((!before).then_some(answer))
    }))
}

/// The requests of a stream until the server stops: an idle stream must not hold it up.
fn open(
    requests: Streaming<ModelInferRequest>,
    door: Arc<Door>,
) -> impl Stream<Item = Result<ModelInferRequest, Status>> + Send {
    futures::stream::unfold(Some((requests, door)), async |reading| {
        let (mut requests, door) = reading?;
        tokio::select! {
            biased;
            () = door.closed() => Some((Err(Fault::from(shutting_down()).into()), None)),
            request = requests.next() => request.map(|request| (request, Some((requests, door)))),
        }
    })
}

async fn answer(
    stack: Arc<Stack>,
    request: Result<ModelInferRequest, Status>,
    manner: Manner,
) -> Result<ModelStreamInferResponse, Status> {
    let request = request?;
    let id = request.id.clone();
    let inferred = AssertUnwindSafe(grpc::infer(&stack, request, manner.patience.now())).catch_unwind().await;
    match inferred.unwrap_or_else(|_| Err(panicked())) {
        Ok((mut response, options)) => {
            if options.final_response {
                let last = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
                response.parameters.insert("triton_final_response".to_owned(), last);
            }
            Ok(ModelStreamInferResponse { error_message: String::new(), infer_response: Some(response) })
        }
        Err(error) if manner.errors == Errors::AsStatus => Err(Fault::from(error).into()),
        Err(error) => Ok(ModelStreamInferResponse {
            error_message: format!("{}: {error}", error.reason()),
            // The id says which request failed.
            infer_response: Some(ModelInferResponse { id, ..Default::default() }),
        }),
    }
}
