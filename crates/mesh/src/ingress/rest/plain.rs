//! Inferences in plain JSON: KServe's first protocol and Triton's generate extension. Both become the same request as any
//! other; only the body and the answer have another form.
//!
//! ```text
//! /v1/models/M:predict            ─▶ rows      ─▶ infer ─▶ {"predictions": […]}
//! /v2/models/M/generate           ─▶ by names  ─▶ infer ─▶ {"text_output": "…"}
//! /v2/models/M/generate_stream    ─▶ by names  ─▶ infer, or the stream of a model that has one ─▶ data: {…}
//! ```

mod events;

use std::sync::Arc;

use berth_spec::{InferError, InferResponse};
use http::{HeaderValue, Method, Response, Uri, Version, header, request::Parts};

use self::events::EventLabels;
use super::document::{answered, plain};
use crate::{
    body::{reply::ReplyBody, upload::Upload},
    deployment::DeploymentState,
    forward::{
        buffered::Failure,
        head::Head,
        run::Codec,
        runner::{LocalOutcome, Runner},
    },
    ingress::path::Operation,
    offload,
    oip::{
        self,
        content::Coding,
        grpc::{frame::framed, methods::STREAM_INFER},
        plain::{
            generate::{self, Answer},
            predict,
        },
    },
    stack::Stack,
};

/// The protocol of a request in plain JSON: KServe's first, or Triton's generate extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ingress) enum Form {
    Predict,
    Generate,
    /// The generate extension, answered with server-sent events.
    GenerateStream,
}

impl Form {
    /// Form of an operation; `None`: it is another kind of request.
    pub(in crate::ingress) fn of(operation: Operation) -> Option<Self> {
        match operation {
            Operation::Predict => Some(Self::Predict),
            Operation::Generate => Some(Self::Generate),
            Operation::GenerateStream => Some(Self::GenerateStream),
            _ => None,
        }
    }

    /// Its path between nodes.
    fn path(self) -> Uri {
        Uri::from_static(match self {
            Self::Predict => "/v2/models/-/predict",
            Self::Generate => "/v2/models/-/generate",
            Self::GenerateStream => "/v2/models/-/generate_stream",
        })
    }
}

/// An inference in plain JSON: the head of its request, and how the body is coded.
pub(in crate::ingress) struct PlainInference {
    pub(in crate::ingress) head: Arc<Parts>,
    pub(in crate::ingress) coding: Coding,
    pub(in crate::ingress) form: Form,
}

impl Codec for PlainInference {
    type Answer = Response<ReplyBody>;

    fn head(&self, stack: &Stack, _: &DeploymentState) -> Result<Head, InferError> {
        let head = stack.head(&self.head).at(self.form.path());
        Ok(if self.form == Form::GenerateStream { head.streamed() } else { head })
    }

    async fn local<R: Runner>(
        &mut self,
        runner: &mut R,
        upload: &mut Upload,
    ) -> Result<LocalOutcome<Response<ReplyBody>>, Failure> {
        let body = upload.bytes(runner.deadline()).await.map_err(|error| runner.failed(error))?;
        runner.received(body.len());
        let body =
            plain(body, self.coding, upload.limit(), upload.memory()).await.map_err(|error| runner.failed(error))?;
        let length = body.len();
        // Numbers of one digit become eight bytes.
        let tensors = upload.memory().take_beside(&body, length.saturating_mul(4));
        let _tensors = tensors.map_err(|error| runner.failed(error))?;
        let (signature, form) = (runner.signature(), self.form);
        let read = move || match form {
            Form::Predict => predict::decode(&body, &signature),
            Form::Generate | Form::GenerateStream => generate::decode(&body, &signature),
        };
        let request = offload::run(length, read).await.map_err(|error| runner.failed(error))?;
        if form == Form::GenerateStream && runner.model().is_some_and(|model| model.streams()) {
            let labels = EventLabels { model_name: runner.model_name(), id: request.id.clone() };
            let call = upload.instead(framed(&oip::grpc::message(&labels.model_name, "", request)));
            return self.stream(runner, call, upload.limit(), labels).await;
        }
        match runner.infer(request).await? {
            LocalOutcome::Moved(why) => Ok(LocalOutcome::Moved(why)),
            LocalOutcome::Answered(response) => {
                let weight = response.outputs.iter().map(|output| output.data.len()).sum::<usize>().saturating_mul(3);
                let encoded = offload::run(weight, move || encode(&response, form)).await;
                let encoded = encoded.map_err(|error| runner.failed(error))?;
                runner.sent(encoded.len());
                let encoded = upload.memory().answer(encoded.into());
                if form == Form::GenerateStream {
                    return Ok(LocalOutcome::Answered(events::whole(encoded)));
                }
                Ok(LocalOutcome::Answered(answered(&self.head.headers, encoded).await))
            }
        }
    }

    fn came(&self) -> Option<&Parts> {
        Some(&self.head)
    }
}

impl PlainInference {
    /// Has the model answer with a stream of its own. `call` is the request as a message; an answer has at most `limit` bytes.
    async fn stream<R: Runner>(
        &self,
        runner: &mut R,
        mut call: Upload,
        limit: usize,
        labels: EventLabels,
    ) -> Result<LocalOutcome<Response<ReplyBody>>, Failure> {
        match runner.exchange(self.call(), &mut call).await? {
            LocalOutcome::Moved(why) => Ok(LocalOutcome::Moved(why)),
            LocalOutcome::Answered(response) => {
                let memory = Arc::clone(call.memory());
                let events = events::of(response, labels, limit, memory).map_err(|error| runner.failed(error))?;
                Ok(LocalOutcome::Answered(events))
            }
        }
    }

    /// The head of the gRPC call that the request becomes.
    fn call(&self) -> Parts {
        let mut parts = self.head.as_ref().clone();
        (parts.method, parts.version, parts.uri) = (Method::POST, Version::HTTP_2, Uri::from_static(STREAM_INFER));
        for name in [
            header::ACCEPT_ENCODING,
            header::CONNECTION,
            header::CONTENT_ENCODING,
            header::CONTENT_LENGTH,
            header::HOST,
            header::TRANSFER_ENCODING,
        ] {
            parts.headers.remove(name);
        }
        parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        parts.headers.insert(header::TE, HeaderValue::from_static("trailers"));
        parts
    }
}

fn encode(response: &InferResponse, form: Form) -> Result<Vec<u8>, InferError> {
    if form == Form::Predict {
        return predict::encode(response);
    }
    let document = generate::encode(Answer {
        model_name: &response.model_name,
        model_version: &response.model_version,
        id: response.id.as_deref(),
        parameters: &response.parameters,
        outputs: &response.outputs,
    })?;
    Ok(if form == Form::GenerateStream { generate::event(&document) } else { document })
}
