//! One request to a model over REST, from place to place until there is an answer: the order of [`stack`](crate::stack),
//! with the body between parking and lease, or on its way to another node.

use berth_spec::InferError;
use http::{HeaderMap, Response, Uri, request::Parts};
use hyper::body::Incoming;

use crate::forward::admitted::Call;
use crate::{
    body::{reply::ReplyBody, upload::Upload},
    endpoint::target::{LocalTarget, NextTarget},
    forward::{admitted::Admitted, head::Head, retry_state::RetryState},
    ingress::{
        fault::{Fault, Reply},
        rest::{document, infer, timeout},
    },
    metrics::Protocol,
    oip::content::Coding,
    stack::Stack,
};

/// What is asked of the model: how its body is read, and where another node answers it.
#[derive(Clone, Copy)]
pub(super) enum RestCall {
    /// An inference of the Open Inference Protocol.
    Inference,
    /// A JSON document of the model's own.
    Document,
}

impl RestCall {
    /// Asks `model`, of this version if one is named. `body` is left where nobody has touched it, to be discarded.
    pub(super) async fn run(
        self,
        stack: &Stack,
        head: &Parts,
        body: &mut Option<Incoming>,
        model: &str,
        version: Option<&str>,
    ) -> Reply {
        let wait = timeout(&head.headers)?;
        let mut admitted = stack.admit(Call { model, version, protocol: Protocol::Rest, timeout: wait })?;
        let coding = infer::coding(&head.headers).map_err(|error| Fault::wrong_encoding(admitted.failed(error)))?;
        let mut retries = RetryState::default();
        let next = admitted.next(&mut retries).await?;
        let Some(incoming) = body.take() else { return Err(Fault::from(InferError::Cancelled)) };
        let mut upload = Upload::new(incoming, stack.bounds());
        let reply = self.travel(stack, (head, coding), &mut admitted, (&mut retries, next), &mut upload).await;
        if reply.is_err() {
            *body = upload.untouched();
        }
        reply
    }

    async fn travel(
        self,
        stack: &Stack,
        (head, coding): (&Parts, Coding),
        admitted: &mut Admitted<'_>,
        (retries, mut next): (&mut RetryState, NextTarget),
        upload: &mut Upload,
    ) -> Reply {
        let mut forwarded: Option<Head> = None;
        loop {
            match next {
                NextTarget::Local(here) => {
                    if let Some(reply) = self.here(admitted, (&head.headers, coding), here.as_ref(), upload).await? {
                        return Ok(reply);
                    }
                }
                NextTarget::Remote(there) => {
                    let head = match &mut forwarded {
                        Some(head) => head,
                        empty => empty.insert(self.forwarded(stack, head, admitted.name())?),
                    };
                    let sent = admitted.forward(retries, there, head, upload).await;
                    if let Some(passed) = sent? {
                        admitted.received(upload.received());
                        return Ok(passed.into_reply());
                    }
                }
            }
            next = admitted.next(retries).await?;
        }
    }

    /// Reads the request and runs it here. `None`: the replica went away before it was run.
    async fn here(
        self,
        admitted: &mut Admitted<'_>,
        head: (&HeaderMap, Coding),
        here: Option<&LocalTarget>,
        upload: &mut Upload,
    ) -> Result<Option<Response<ReplyBody>>, Fault> {
        match self {
            Self::Inference => infer::here(admitted, head, here, upload).await,
            Self::Document => document::here(admitted, head, here, upload).await,
        }
    }

    /// The head as another node gets it. A deployment's own path may be one that the nodes use between themselves: a document
    /// is asked for by the model's name.
    fn forwarded(self, stack: &Stack, head: &Parts, model: &str) -> Result<Head, InferError> {
        let head = stack.head(head);
        match self {
            Self::Inference => Ok(head),
            Self::Document => {
                let path = format!("/v2/models/{model}/call");
                let path = Uri::try_from(path)
                    .map_err(|error| InferError::Internal(format!("model {model:?} makes no path: {error}")))?;
                Ok(head.at(path))
            }
        }
    }
}
