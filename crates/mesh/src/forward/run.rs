//! The forwarding loop: one request, from replica to replica until one answers it. REST, gRPC and the peer port differ in
//! their [`Codec`] only.
//!
//! ```text
//!            ┌───────────── not run ─────────────┐
//!            ▼                                   │
//!  admit ─▶ next ──▶ local:  codec reads, runs, writes ──▶ answer
//!            ▲  └──▶ remote: codec's head, the body as it came ──▶ another node ──▶ answer, as it comes
//!            └───────────── not run, or may be run again ──────────┘
//! ```

use berth_spec::InferError;
use http::{Response, request::Parts};

use crate::{
    body::{reply::ReplyBody, tapped::tapped, upload::Upload},
    calls::CountedCall,
    deployment::DeploymentState,
    endpoint::target::NextTarget,
    forward::{
        admitted::{AdmittedRequest, ForwardedAnswer},
        buffered::Failure,
        head::Head,
        retry_state::RetryState,
        runner::{LocalOutcome, Runner},
    },
    payload::Tap,
    stack::Stack,
    watch::Watch as _,
};

/// A wire form of requests: runs one on a replica of this process, and says how it goes to another node.
pub(crate) trait Codec: Send {
    type Answer: CodecAnswer;

    /// The head for another node.
    fn head(&self, stack: &Stack, deployment: &DeploymentState) -> Result<Head, InferError>;

    /// Reads the body, runs the request, and writes the answer.
    fn local<R: Runner>(
        &mut self,
        runner: &mut R,
        upload: &mut Upload,
    ) -> impl Future<Output = Result<LocalOutcome<Self::Answer>, Failure>> + Send;

    /// The head as the client sent it; `None`: a question about a model, which payload processors do not see.
    fn came(&self) -> Option<&Parts> {
        None
    }
}

/// The answer that a codec makes, whether of a local replica's outputs or of another node's answer.
pub(crate) trait CodecAnswer: Sized + Send {
    /// The answer of another node as the client gets it.
    fn relayed(forwarded: ForwardedAnswer) -> Self;

    /// The answer with its response changed, where it is one.
    fn with(self, change: impl FnOnce(Response<ReplyBody>) -> Response<ReplyBody>) -> Self {
        drop(change);
        self
    }
}

impl CodecAnswer for Response<ReplyBody> {
    fn relayed(forwarded: ForwardedAnswer) -> Self {
        forwarded.into_reply()
    }

    fn with(self, change: impl FnOnce(Response<ReplyBody>) -> Response<ReplyBody>) -> Self {
        change(self)
    }
}

/// Runs a request where it can be run.
pub(crate) async fn run<C: Codec>(
    admitted: &mut AdmittedRequest<'_>,
    codec: &mut C,
    upload: &mut Upload,
) -> Result<C::Answer, Failure> {
    if let Some(observers) = observers(admitted, codec) {
        // Boxed: requests that nobody watches do not pay for a second copy of the loop's state.
        return Box::pin(watched(admitted, codec, upload, observers)).await;
    }
    carry(admitted, codec, upload).await
}

/// The observers of a request: a tap, a count of calls, or both.
struct Observers {
    tap: Option<Tap>,
    call: Option<CountedCall>,
}

/// Starts the observers of a request; `None`: there are none.
fn observers<C: Codec>(admitted: &AdmittedRequest<'_>, codec: &C) -> Option<Observers> {
    let tap = admitted.payloads().and_then(|payloads| admitted.tap(payloads, codec.came()?));
    let call = admitted.calls().and_then(|calls| Some(admitted.counting(calls, codec.came()?)));
    (tap.is_some() || call.is_some()).then_some(Observers { tap, call })
}

/// Runs a request that payload processors or counts of calls observe.
async fn watched<C: Codec>(
    admitted: &mut AdmittedRequest<'_>,
    codec: &mut C,
    upload: &mut Upload,
    Observers { tap, mut call }: Observers,
) -> Result<C::Answer, Failure> {
    let mut payload = tap.map(|tap| {
        let (request, response) = tap.split();
        upload.tap(request);
        response
    });
    let answer = carry(admitted, codec, upload).await;
    if let Some(call) = &mut call {
        call.receives(upload.length());
    }
    match answer {
        Ok(answer) => Ok(answer.with(|mut answer| {
            if let Some(payload) = payload {
                answer = tapped(answer, Box::new(payload));
            }
            match call {
                Some(call) => tapped(answer, Box::new(call)),
                None => answer,
            }
        })),
        Err(failure) => {
            if let Some(payload) = &mut payload {
                payload.failed(failure.code());
            }
            if let Some(call) = &mut call {
                call.failed(failure.code());
            }
            Err(failure)
        }
    }
}

/// Takes a request from replica to replica until one answers it.
async fn carry<C: Codec>(
    admitted: &mut AdmittedRequest<'_>,
    codec: &mut C,
    upload: &mut Upload,
) -> Result<C::Answer, Failure> {
    let mut retries = RetryState::default();
    // Boxed: few requests have one.
    let mut head: Option<Box<Head>> = None;
    loop {
        match admitted.next(&mut retries).await? {
            NextTarget::Local(target) => {
                admitted.target = target;
                if let LocalOutcome::Answered(answer) = codec.local(admitted, upload).await? {
                    return Ok(answer);
                }
            }
            NextTarget::Remote(target) => {
                let head = match &mut head {
                    Some(head) => head,
                    none => none.insert(Box::new(admitted.head(codec)?)),
                };
                // Boxed: it is most of the state, which a request that is answered here does not pay for.
                let forwarded = Box::pin(admitted.forward(&mut retries, target, head, upload)).await?;
                if let Some(forwarded) = forwarded {
                    admitted.received(upload.received());
                    return Ok(C::Answer::relayed(forwarded));
                }
            }
        }
    }
}
