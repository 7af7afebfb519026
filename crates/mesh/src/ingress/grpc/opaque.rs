//! Any gRPC method that is none of the Open Inference Protocol's: answered by the model that the call's metadata names. In
//! ModelMesh's place also inferences that name their model so.
//!
//! Nothing of it is read here: head, pieces and trailers pass as they come, both ways.

use std::sync::Arc;

use berth_spec::{InferError, NameKey};
use http::{Request, Response, Uri, request::Parts};
use hyper::body::Incoming;
use tokio::time::Instant;
use tonic::Status;

use super::{model_call, several, timeout};
use crate::{
    body::{reply::ReplyBody, upload::Upload},
    deployment::DeploymentState,
    forward::{
        admitted::Call,
        buffered::Failure,
        context::Purpose,
        head::{Head, PATH},
        run::{Codec, run},
        runner::{LocalOutcome, Runner},
    },
    ingress::{grpc::status, model_name, namespace},
    metrics::Protocol,
    oip::grpc::methods::{INFER, METADATA, STREAM_INFER},
    stack::Stack,
    sticky::Caller,
};

/// A call that the model answers by itself.
pub(in crate::ingress) struct OpaqueCall {
    pub(in crate::ingress) head: Arc<Parts>,
}

impl Codec for OpaqueCall {
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

    fn came(&self) -> Option<&Parts> {
        Some(&self.head)
    }
}

impl OpaqueCall {
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

/// True of an inference whose metadata names the model, on an instance in ModelMesh's place. There the metadata counts, and a
/// name in the message only where the configuration of the data plane has its field.
pub(in crate::ingress) fn takes(stack: &Stack, request: &Request<Incoming>) -> bool {
    let is_inference = [INFER, STREAM_INFER, METADATA].contains(&request.uri().path());
    is_inference && stack.data_plane.is_some() && model_name::is_in_metadata(request.headers())
}

/// Answers a call of any method by the model that the call names, in whatever messages the model takes.
pub(in crate::ingress) async fn answer(stack: &Stack, request: Request<Incoming>) -> Response<ReplyBody> {
    let (mut head, incoming) = request.into_parts();
    head.headers.remove(PATH);
    answered(stack, head, incoming).await.unwrap_or_else(Status::into_http)
}

async fn answered(stack: &Stack, head: Parts, incoming: Incoming) -> Result<Response<ReplyBody>, Status> {
    // Shared from the start: metadata and names of models are borrowed from it.
    let head = Arc::new(head);
    let timeout = timeout(&head.headers).map_err(status)?;
    let method = head.uri.path();
    let methods = stack.data_plane.as_ref().map(|methods| methods.get());
    let Some(path) = methods.as_ref().map_or(Some(&[][..]), |methods| methods.path(method)) else {
        return Err(Status::unimplemented(format!("{method} is none of the methods that may be called")));
    };
    let longest = stack.limits.deadline;
    let deadline = Instant::now() + timeout.map_or(longest, |timeout| timeout.min(longest));
    let call = model_call::of(&head.headers, path, incoming, stack.bounds(), deadline).await.map_err(status)?;
    let model_call::ModelCall { models, mut upload } = call;
    let [model] = &models[..] else {
        if !models.is_empty() {
            return several::answer(stack, &head, &models, upload).await;
        }
        return Err(unnamed(stack, method));
    };
    let version = model_name::version_of_metadata(&head.headers).map_err(status)?;
    let model = NameKey { namespace: namespace(&head.headers), name: model };
    let caller = Caller::of(&head);
    let call = Call { model, version, caller, protocol: Protocol::Grpc, timeout, purpose: Purpose::Exchange };
    let mut admitted = stack.admit(call).map_err(status)?;
    let mut codec = OpaqueCall { head: Arc::clone(&head) };
    Ok(run(&mut admitted, &mut codec, &mut upload).await?)
}

/// The error of a call that names no model.
fn unnamed(stack: &Stack, method: &str) -> Status {
    match stack.data_plane {
        Some(_) => Status::invalid_argument(format!("must include mm-model-id header: {method} names no model")),
        None => Status::unimplemented(format!(
            "no such method: {method}; to call a method of a model, name the model in the metadata berth-model"
        )),
    }
}
