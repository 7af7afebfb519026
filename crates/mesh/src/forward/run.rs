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
    deployment::DeploymentState,
    endpoint::target::NextTarget,
    forward::{
        admitted::{Admitted, Forwarded},
        buffered::Failure,
        head::Head,
        retry_state::RetryState,
        runner::{LocalOutcome, Runner},
    },
    stack::Stack,
};

/// A wire form of requests: runs one on a replica of this process, and says how it goes to another node.
pub(crate) trait Codec: Send {
    type Answer: Send;

    /// The head for another node.
    fn head(&self, stack: &Stack, deployment: &DeploymentState) -> Result<Head, InferError>;

    /// Reads the body, runs the request, and writes the answer.
    fn local<R: Runner>(
        &mut self,
        runner: &mut R,
        upload: &mut Upload,
    ) -> impl Future<Output = Result<LocalOutcome<Self::Answer>, Failure>> + Send;

    /// The answer of another node as the client gets it.
    fn relayed(&mut self, forwarded: Forwarded) -> Self::Answer;

    /// The head as the client sent it; `None`: a question about a model, which payload processors do not see.
    fn came(&self) -> Option<&Parts> {
        None
    }

    /// The answer with its response changed.
    fn with(answer: Self::Answer, change: impl FnOnce(Response<ReplyBody>) -> Response<ReplyBody>) -> Self::Answer {
        drop(change);
        answer
    }
}

/// Runs a request where it can be run, and has payload processors see it.
pub(crate) async fn run<C: Codec>(
    admitted: &mut Admitted<'_>,
    codec: &mut C,
    upload: &mut Upload,
) -> Result<C::Answer, Failure> {
    let Some(tap) = admitted.payloads().and_then(|payloads| admitted.tap(payloads, codec.came()?)) else {
        return carry(admitted, codec, upload).await;
    };
    let (request, mut response) = tap.split();
    upload.tap(request);
    // Boxed: requests that nobody sees do not pay for a second copy of the loop's state.
    match Box::pin(carry(admitted, codec, upload)).await {
        Ok(answer) => Ok(C::with(answer, |answer| tapped(answer, response))),
        Err(failure) => {
            response.failed(failure.code());
            Err(failure)
        }
    }
}

/// Takes a request from replica to replica until one answers it.
async fn carry<C: Codec>(
    admitted: &mut Admitted<'_>,
    codec: &mut C,
    upload: &mut Upload,
) -> Result<C::Answer, Failure> {
    let mut retries = RetryState::default();
    let mut head = None;
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
                    none => none.insert(admitted.head(codec)?),
                };
                // Boxed: it is most of the state, which a request that is answered here does not pay for.
                let forwarded = Box::pin(admitted.forward(&mut retries, target, head, upload)).await?;
                if let Some(forwarded) = forwarded {
                    admitted.received(upload.received());
                    return Ok(codec.relayed(forwarded));
                }
            }
        }
    }
}
