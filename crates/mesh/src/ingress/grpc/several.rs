//! One unary call for several models: all run it, and their answers are put together as one message.
//!
//! Protobuf makes the answer: repeated fields and maps of messages that follow each other add up, in the order in which the
//! models were named.

use std::{borrow::Cow, sync::Arc};

use berth_spec::NameKey;
use bytes::{BufMut as _, Bytes, BytesMut};
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream};
use http::{HeaderMap, Response, request::Parts};
use http_body_util::{BodyExt as _, Limited};
use tokio::time::Instant;
use tonic::{Code, Status};

use super::{infer::well, model_call, opaque::OpaqueCall, status, timeout};
use crate::{
    body::{reply::ReplyBody, upload::Upload},
    forward::{admitted::Call, context::Purpose, run::run},
    ingress::namespace,
    metrics::Protocol,
    stack::Stack,
    sticky::Caller,
};

/// The most models of one call: more than an ensemble has, and a bound on what one client has run.
const MAX_MODELS: usize = 256;

/// Models that run it at once: the time of a call is that of a few models, and it takes few places of other requests.
const MAX_CONCURRENT_CALLS: usize = 16;

/// Metadata of ModelMesh: `all` if all models must answer.
const REQUIRED_HEADER: &str = "mm-required";

/// True if models that are not found are left out. That is ModelMesh's default, and its meaning of every value but `all`.
fn any(headers: &HeaderMap) -> bool {
    headers.get(REQUIRED_HEADER).is_none_or(|value| !value.as_bytes().eq_ignore_ascii_case(b"all"))
}

/// Answers a call for `models`.
pub(super) async fn answer(
    stack: &Stack,
    head: &Arc<Parts>,
    models: &[Cow<'_, str>],
    mut upload: Upload,
) -> Result<Response<ReplyBody>, Status> {
    if models.len() > MAX_MODELS {
        return Err(Status::invalid_argument(format!(
            "a call is for at most {MAX_MODELS} models, not {}",
            models.len()
        )));
    }
    let any = any(&head.headers);
    let body = upload.bytes(Instant::now() + stack.limits.deadline).await.map_err(status)?;
    if model_call::message(&body).is_none() {
        return Err(Status::unimplemented("a call for several models has one message, which is not compressed"));
    }
    let mut answers = stream::iter(calls(stack, head, models, &body)).buffered(MAX_CONCURRENT_CALLS);
    let mut whole = BytesMut::from(&[0_u8; 5][..]);
    let mut answered = false;
    let mut missing = None;
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(message) => {
                answered = true;
                whole.put(message);
            }
            Err(status) if any && status.code() == Code::NotFound => missing = Some(status),
            Err(status) => return Err(status),
        }
        if whole.len() > stack.limits.body {
            return Err(Status::resource_exhausted("the answers of the models are too long together"));
        }
    }
    if let (false, Some(missing)) = (answered, missing) {
        return Err(missing);
    }
    let length = u32::try_from(whole.len() - 5).unwrap_or(u32::MAX);
    whole[1..5].copy_from_slice(&length.to_be_bytes());
    Ok(well(whole.freeze()))
}

/// The calls of all models. Boxed, because the compiler cannot prove closures over borrowed parts to be `Send`.
fn calls<'a>(
    stack: &'a Stack,
    head: &'a Arc<Parts>,
    models: &'a [Cow<'_, str>],
    body: &Bytes,
) -> Vec<BoxFuture<'a, Result<Bytes, Status>>> {
    models.iter().map(|model| one(stack, head, model, body.clone()).boxed()).collect()
}

/// The message of one model's answer.
async fn one(stack: &Stack, head: &Arc<Parts>, model: &str, body: Bytes) -> Result<Bytes, Status> {
    let model = NameKey { namespace: namespace(&head.headers), name: model };
    let timeout = timeout(&head.headers).map_err(status)?;
    let caller = Caller::of(head);
    let call = Call { model, version: None, caller, protocol: Protocol::Grpc, timeout, purpose: Purpose::Exchange };
    let mut admitted = stack.admit(call).map_err(status)?;
    let mut upload = Upload::whole(body, admitted.bounds());
    let response = run(&mut admitted, &mut OpaqueCall { head: Arc::clone(head) }, &mut upload).await?;
    let (head, body) = response.into_parts();
    refused(Some(&head.headers))?;
    let collected = Limited::new(body, stack.limits.body).collect().await;
    let collected = collected.map_err(|error| Status::internal(format!("an answer broke off: {error}")))?;
    refused(collected.trailers())?;
    let message = model_call::message(&collected.to_bytes());
    message.ok_or_else(|| Status::unimplemented("a call for several models has one message as its answer"))
}

fn refused(headers: Option<&HeaderMap>) -> Result<(), Status> {
    match headers.and_then(Status::from_header_map) {
        Some(status) if status.code() != Code::Ok => Err(status),
        _ => Ok(()),
    }
}
