//! `ModelInfer` straight from the body: what almost every gRPC request is.
//!
//! The generated service does the same through a boxed body, a decoder with a buffer of 8 KiB into which it copies,
//! converted metadata and a stream for one answer: 64 callers get 22 % more requests per second without it. It also hides
//! the bytes, which are what goes to another node.

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use hyper::body::Incoming;
use tokio::time::Instant;
use tonic::Status;

use crate::forward::admitted::Call;
use crate::{
    body::{read, reply::ReplyBody, upload::Upload},
    endpoint::target::{LocalTarget, NextTarget},
    forward::{
        admitted::{Admitted, LocalOutcome},
        retry_state::RetryState,
    },
    ingress::grpc::{
        message::{self, coding, unframed},
        status, timeout, version,
    },
    metrics::Protocol,
    oip::grpc::{frame::PREFIX, model_name},
    stack::Stack,
};

/// The method.
pub(crate) const METHOD: &str = "/inference.GRPCInferenceService/ModelInfer";

/// Whether a gRPC request can be answered here; others have a compression of which the service tells what there is.
pub(in crate::ingress) fn takes(request: &Request<Incoming>) -> bool {
    request.uri().path() == METHOD && coding(request.headers()).is_some()
}

/// Answers it.
pub(in crate::ingress) async fn answer(stack: &Stack, request: Request<Incoming>) -> Response<ReplyBody> {
    answered(stack, request).await.unwrap_or_else(Status::into_http)
}

async fn answered(stack: &Stack, request: Request<Incoming>) -> Result<Response<ReplyBody>, Status> {
    let (head, mut incoming) = request.into_parts();
    let wait = timeout(&head.headers).map_err(status)?;
    let limits = &stack.limits;
    let latest = Instant::now() + limits.deadline;
    let limit = limits.body.saturating_add(PREFIX);
    let body = read::read(&mut incoming, limit, limits.body_idle, latest).await.map_err(status)?;
    let coding = coding(&head.headers).unwrap_or(crate::oip::content::Coding::Identity);
    let message = unframed(body.clone(), coding, limits.body).await?;
    let Some(names) = model_name::names(&message) else {
        let error = message::decode(message.clone()).await.err();
        return Err(status(error.unwrap_or(berth_spec::InferError::Invalid("the request names no model".to_owned()))));
    };
    let call = Call { model: names.model, version: version(names.version), protocol: Protocol::Grpc, timeout: wait };
    let mut admitted = stack.admit(call).map_err(status)?;
    let mut retries = RetryState::default();
    let mut there_as = None;
    loop {
        match admitted.next(&mut retries).await.map_err(status)? {
            NextTarget::Local(here) => {
                let ran = here_then(&mut admitted, here.as_ref(), message.clone()).await;
                if let Some(message) = ran.map_err(status)? {
                    return Ok(well(message));
                }
            }
            NextTarget::Remote(there) => {
                let (head, upload) =
                    there_as.get_or_insert_with(|| (stack.head(&head), Upload::whole(body.clone(), stack.bounds())));
                let sent = admitted.forward(&mut retries, there, head, upload).await;
                if let Some(passed) = sent.map_err(status)? {
                    admitted.received(body.len());
                    return Ok(passed.into_reply());
                }
            }
        }
    }
}

/// Decodes the message and runs it here. `None`: the replica went away before it was run.
async fn here_then(
    admitted: &mut Admitted<'_>,
    here: Option<&LocalTarget>,
    message: Bytes,
) -> Result<Option<Bytes>, berth_spec::InferError> {
    let length = message.len();
    let decoded = message::decode(message).await.map_err(|error| admitted.failed(error))?;
    admitted.shorten(decoded.options.timeout);
    match admitted.infer(decoded.request, here).await? {
        LocalOutcome::Moved => Ok(None),
        LocalOutcome::Answered(response) => {
            admitted.received(length);
            let encoded = message::encode(response, decoded.form).await;
            let (message, raw) = encoded.map_err(|error| admitted.failed(error))?;
            admitted.sent(raw);
            Ok(Some(message))
        }
    }
}

/// The answer with this message.
pub(in crate::ingress) fn well(message: Bytes) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::Message(message));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}
