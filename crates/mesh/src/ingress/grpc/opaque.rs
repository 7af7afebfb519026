//! Any gRPC method that is none of the Open Inference Protocol's: answered by the model that the call's metadata names.
//!
//! Nothing of it is read here: head, pieces and trailers pass as they come, both ways.

use std::sync::Arc;

use berth_spec::{InferError, NameKey};
use http::{Request, Response, Uri, request::Parts};
use hyper::body::Incoming;
use tonic::Status;

use super::timeout;
use crate::{
    body::{reply::ReplyBody, upload::Upload},
    deployment::DeploymentState,
    forward::{
        admitted::{Call, Forwarded},
        buffered::Failure,
        head::{Head, PATH},
        run::{Codec, run},
        runner::{LocalOutcome, Runner},
    },
    ingress::{grpc::status, model_name, namespace},
    metrics::Protocol,
    stack::Stack,
    sticky::Caller,
};

/// A call that the model answers by itself.
pub(in crate::ingress) struct Opaque {
    pub(in crate::ingress) head: Arc<Parts>,
}

impl Codec for Opaque {
    type Answer = Response<ReplyBody>;

    fn head(&self, stack: &Stack, _: &DeploymentState) -> Result<Head, InferError> {
        Ok(stack.head(&self.head).exchanged())
    }

    async fn local<R: Runner>(
        &mut self,
        runner: &mut R,
        upload: &mut Upload,
    ) -> Result<LocalOutcome<Response<ReplyBody>>, Failure> {
        Ok(runner.exchange(self.asked(), upload).await?)
    }

    fn relayed(&mut self, forwarded: Forwarded) -> Response<ReplyBody> {
        forwarded.into_reply()
    }
}

impl Opaque {
    /// The head as the model gets it: at the path that the client asked for.
    fn asked(&self) -> Parts {
        let mut parts = self.head.as_ref().clone();
        let path = parts.headers.remove(PATH).and_then(|path| Uri::try_from(path.as_bytes()).ok());
        if let Some(path) = path {
            parts.uri = path;
        }
        parts
    }
}

/// Answers a call.
pub(in crate::ingress) async fn answer(stack: &Stack, request: Request<Incoming>) -> Response<ReplyBody> {
    let (mut head, incoming) = request.into_parts();
    head.headers.remove(PATH);
    answered(stack, head, incoming).await.unwrap_or_else(Status::into_http)
}

async fn answered(stack: &Stack, head: Parts, incoming: Incoming) -> Result<Response<ReplyBody>, Status> {
    let timeout = timeout(&head.headers).map_err(status)?;
    let headers = head.headers.clone();
    let Some(model) = model_name::of_metadata(&headers).map_err(status)? else {
        let path = head.uri.path();
        return Err(Status::unimplemented(format!(
            "no such method: {path}; to call a method of a model, name the model in the metadata berth-model"
        )));
    };
    let version = model_name::version_of_metadata(&headers).map_err(status)?;
    let model = NameKey { namespace: namespace(&headers), name: &model };
    let caller = Caller { headers: Some(&headers), client: head.extensions.get().copied(), field: None };
    let call = Call { model, version, caller, protocol: Protocol::Grpc, timeout, exchange: true };
    let mut admitted = stack.admit(call).map_err(status)?;
    let mut upload = Upload::new(incoming, stack.bounds().of_stream());
    Ok(run(&mut admitted, &mut Opaque { head: Arc::new(head) }, &mut upload).await?)
}
