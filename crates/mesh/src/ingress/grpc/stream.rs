//! A stream of inferences over gRPC, in Triton's form. Each request goes its own way, to any node, and is answered in the
//! order of the requests: with one answer, or with as many as a model gives that answers streams by itself.
//!
//! Up to [`MAX_CONCURRENT_REQUESTS`] requests of a stream run at once; the answers keep their order. A failed inference is an answer with
//! `error_message`, which begins with the typed reason, and the stream goes on, unless the client asked with
//! `triton_grpc_error: true` for real gRPC errors, which end it. Messages are passed on as bytes.
//!
//! ```text
//! reading ──client half-closes──→ finishing what runs ──→ end
//!    ├──── the server stops ────→ finishing what runs ──→ UNAVAILABLE, shutting_down
//!    └──── a status (see above) ────────────────────────→ that status
//! ```

mod answers;
mod messages;

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use berth_spec::NameKey;
use berth_wire::{
    oip::{ModelInferResponse, ModelStreamInferResponse},
    request_id::RequestId,
};
use bytes::Bytes;
use futures::{FutureExt as _, Stream, StreamExt as _};
use http::{HeaderValue, Request, Response, header, request::Parts};
use hyper::body::Incoming;
use tokio::time::Instant;
use tonic::Status;

use self::messages::{Message, MessageReader};
use super::{
    infer::{Form, Inference, named, sticky_field},
    message::coding,
    status, version, whole_call,
};
use crate::{
    admission::{Admission, shutting_down},
    body::{
        reply::{Messages, ReplyBody},
        upload::Upload,
    },
    forward::{admitted::Call, context::Purpose, run::run},
    ingress::{
        error_response::{ErrorResponse, panicked},
        namespace, rest,
    },
    metrics::Protocol,
    oip::{
        content::Coding,
        grpc::{frame::framed, methods::STREAM_INFER},
    },
    stack::Stack,
    sticky::Caller,
};

/// Requests of one stream that run at once: enough to fill a batch, and little of a model's queue.
const MAX_CONCURRENT_REQUESTS: usize = 16;

/// The form of a failed inference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Errors {
    /// An answer; the stream goes on.
    InAnswers,
    /// The status that ends the stream.
    AsStatus,
}

/// The time that the requests of a stream may take.
#[derive(Debug, Clone, Copy)]
struct Timeouts {
    /// `berth-timeout-ms`: each of them, counted from its arrival.
    each: Option<Duration>,
    /// `grpc-timeout`: all of them.
    until: Option<Instant>,
}

impl Timeouts {
    /// For a request that comes now.
    fn now(self) -> Option<Duration> {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        self.each.into_iter().chain(left).min()
    }
}

/// The form and the times that the head of a stream asks for, for all its requests.
struct StreamContext {
    errors: Errors,
    timeouts: Timeouts,
    /// The head of the call, which goes along to other nodes.
    head: Arc<Parts>,
}

impl StreamContext {
    fn of(head: Parts) -> Result<Self, Status> {
        let asked = head.headers.get("triton_grpc_error").is_some_and(|value| value == "true");
        let errors = if asked { Errors::AsStatus } else { Errors::InAnswers };
        let each = rest::timeout(&head.headers).map_err(status)?;
        let whole = whole_call(&head.headers).map_err(status)?;
        Ok(Self {
            errors,
            timeouts: Timeouts { each, until: whole.map(|whole| Instant::now() + whole) },
            head: Arc::new(head),
        })
    }
}

/// True if a gRPC request is such a stream, and its messages can be read here.
pub(in crate::ingress) fn takes(request: &Request<Incoming>) -> bool {
    request.uri().path() == STREAM_INFER && coding(request.headers()).is_some()
}

/// Answers every request of a `ModelStreamInfer`, some of them at once. Answers come in the order of the requests.
pub(in crate::ingress) fn answer(stack: Arc<Stack>, request: Request<Incoming>) -> Response<ReplyBody> {
    let (head, body) = request.into_parts();
    let reader = MessageReader::new(body, coding(&head.headers).unwrap_or(Coding::Identity), &stack);
    let context = match StreamContext::of(head) {
        Ok(context) => Arc::new(context),
        Err(status) => return status.into_http(),
    };
    let admission = Arc::clone(&stack.admission);
    let answer = move |request| answered(Arc::clone(&stack), request, Arc::clone(&context));
    let answers = open(reader, admission).map(answer).buffered(MAX_CONCURRENT_REQUESTS).flatten();
    let mut response = Response::new(ReplyBody::Stream(Box::pin(answers)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// The requests of a stream until the server stops: an idle stream must not hold it up.
fn open(reader: MessageReader, admission: Arc<Admission>) -> impl Stream<Item = Result<Message, Status>> + Send {
    futures::stream::unfold(Some((reader, admission)), async |reading| {
        let (mut reader, admission) = reading?;
        tokio::select! {
            biased;
            () = admission.closed() => Some((Err(ErrorResponse::from(shutting_down()).into()), None)),
            request = reader.next() => match request {
                Ok(None) => None,
                Ok(Some(message)) => Some((Ok(message), Some((reader, admission)))),
                Err(status) => Some((Err(status), None)),
            },
        }
    })
}

/// The answers to one request. An error ends the stream.
async fn answered(stack: Arc<Stack>, request: Result<Message, Status>, context: Arc<StreamContext>) -> Messages {
    let request = match request {
        Ok(request) => request,
        Err(status) => return ended(status),
    };
    let bytes = request.message.clone();
    let answers = AssertUnwindSafe(infer(&stack, request, &context)).catch_unwind().await;
    let answers = answers.unwrap_or_else(|_| Err(status(panicked(RequestId::of(&context.head.headers).as_ref()))));
    let errors = context.errors;
    let told = move |error: Status| match errors {
        Errors::AsStatus => Err(error),
        Errors::InAnswers => Ok(failed(&bytes, &error)),
    };
    match answers {
        Ok(answers) => Box::pin(answers.map(move |answer| answer.or_else(&told))),
        Err(error) => Box::pin(futures::stream::once(std::future::ready(told(error)))),
    }
}

fn ended(status: Status) -> Messages {
    Box::pin(futures::stream::once(std::future::ready(Err(status))))
}

/// Runs one request, here or elsewhere.
async fn infer(stack: &Stack, request: Message, context: &StreamContext) -> Result<Messages, Status> {
    let names = named(&request.message, &stack.memory).await?;
    let model = NameKey { namespace: namespace(&context.head.headers), name: names.model };
    let call = Call {
        model,
        version: version(names.version),
        caller: Caller { field: sticky_field(stack, model, &request.message), ..Caller::of(&context.head) },
        protocol: Protocol::Grpc,
        timeout: context.timeouts.now(),
        purpose: Purpose::Infer,
    };
    let asks_last = names.asks_last;
    let mut admitted = stack.admit(call).map_err(status)?;
    let mut upload = Upload::whole(request.framed(), admitted.bounds());
    let mut codec =
        Inference { head: Arc::clone(&context.head), form: Form::Stream, message: Some(request.message.clone()) };
    let answer = run(&mut admitted, &mut codec, &mut upload).await?;
    answers::of(answer, asks_last).await
}

/// The answer that says why an inference failed, and which.
fn failed(request: &Bytes, error: &Status) -> Bytes {
    let id = crate::oip::grpc::model_name::names(request).map_or("", |names| names.id).to_owned();
    let reason = error.metadata().get("berth-reason").and_then(|reason| reason.to_str().ok());
    framed(&ModelStreamInferResponse {
        error_message: format!("{}: {}", reason.unwrap_or("internal"), error.message()),
        infer_response: Some(ModelInferResponse { id, ..Default::default() }),
    })
}
