//! Requests that another node's gateway sent here, because a replica is here.
//!
//! ```text
//!  head ─▶ which revision? ─▶ admit ─▶ is it here? ─▶ [body read and decoded] ─▶ lease ─▶ model ─▶ answer
//!                              └─ stopping ─┴─ absent, draining ───────────────────┘ 503, berth-not-run
//! ```
//!
//! No routes are asked, nothing is forwarded again, and nothing counts as demand: that is the business of the gateway
//! that the client spoke to. Whatever was not run says so, so that it can be sent elsewhere.
//!
//! Requests to functions have no revision: they come here because this node leads, and go to the hook of functions.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, OnceLock},
    time::Duration,
};

use berth_peer::PeerBody;
use berth_spec::{InferError, RevisionId, id::percent_decode, inference::Shed};
use berth_wire::{oip as wire, request_id::RequestId};
use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header, request::Parts};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};
use tonic::Status;
use tracing::Instrument as _;

use crate::{
    admission::{Admission, Permit},
    body::{
        memory::RequestMemory,
        read::{self, Pace},
        reply::{ReplyBody, passed_on},
        upload::{Bounds, Upload},
    },
    calls::Calls,
    config::{FunctionHook, FunctionSender, Limits, SpanHook},
    forward::{
        buffered::{Failure, boxed},
        head::{DEADLINE, EXCHANGE, LOST, MODEL_NAME, NOT_RUN, REVISION, STREAM, VERSION, VERSIONS},
        run::Codec as _,
        runner::{LeasedReplica, LocalOutcome, Runner},
    },
    ingress::{
        error_response::{ErrorResponse, named, panicked},
        grpc::{
            self,
            infer::{Form, well},
            message::{self, coding, unframed},
            opaque::OpaqueCall,
        },
        is_grpc,
        path::{Operation, Resource, function_in, split_namespace},
        rest::{
            self,
            document::Document,
            plain::{self, PlainInference},
        },
    },
    local::{LocalReplicas, Model, Replica},
    metrics::forward::ServedHops,
    not_run::NotRun,
    oip::{
        describe::{ModelConfig, ModelMetadata, ModelStatistics, ModelStats},
        grpc::{
            frame::framed,
            methods::{CONFIG, INFER, METADATA, STATISTICS},
        },
    },
};

/// When a sender may come again that was sent away: it goes elsewhere at once, and knows nothing of this.
const RETRY_ELSEWHERE: Duration = Duration::from_secs(1);

/// Answers the inference requests of other nodes; cheap to clone.
#[derive(Clone)]
pub struct PeerService(Arc<PeerStack>);

/// Everything that a request of another node passes through.
pub(crate) struct PeerStack {
    pub(crate) replicas: Arc<LocalReplicas>,
    pub(crate) limits: Limits,
    /// Budget of the bodies and tensors of all requests, those of clients included.
    pub(crate) memory: Arc<RequestMemory>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) served: Arc<ServedHops>,
    pub(crate) spans: Option<SpanHook>,
    /// Counts of calls by method; `None`: they are not wanted.
    pub(crate) calls: Option<Arc<Calls>>,
    pub(crate) functions: Arc<OnceLock<FunctionHook>>,
}

/// The part of a request's head that nodes say to each other.
struct PeerHeaders {
    revision: RevisionId,
    /// The name that the client asked for, where that is not the deployment's.
    name: Option<Arc<str>>,
    version: Arc<str>,
    deadline: Instant,
    arrived: Instant,
}

/// The reason why a request has no answer of a model.
enum Refusal {
    /// Nothing was run.
    NotRun(NotRun),
    /// The request was at fault itself, or the model was.
    Failed(ErrorResponse),
    /// The model's process ended under it.
    Lost(ErrorResponse),
    /// The same, where gRPC has a status of its own for it.
    Status(Status),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Infer(error) => error.into(),
            Failure::Status(status) => Self::Status(*status),
            lost @ Failure::Lost { .. } => Self::Failed(lost.into()),
        }
    }
}

impl From<InferError> for Refusal {
    fn from(error: InferError) -> Self {
        match error {
            error @ InferError::Lost(_) => Self::Lost(error.into()),
            error => Self::Failed(error.into()),
        }
    }
}

impl PeerService {
    pub(crate) fn new(stack: PeerStack) -> Self {
        Self(Arc::new(stack))
    }

    /// Answers one request of the peer port: those under `/v2/`, `/inference.GRPCInferenceService/`, and those to functions.
    #[must_use]
    pub fn serve(&self, request: Request<Incoming>) -> BoxFuture<'static, Response<PeerBody>> {
        let stack = Arc::clone(&self.0);
        let span = stack.spans.as_ref().and_then(|hook| hook(request.headers()));
        let answered = async move { stack.caught(request).await.map(|body| body.map_err(boxed).boxed_unsync()) };
        match span {
            None => Box::pin(answered),
            Some(span) => Box::pin(answered.instrument(span)),
        }
    }
}

impl PeerStack {
    async fn caught(&self, request: Request<Incoming>) -> Response<ReplyBody> {
        let (grpc, id) = (is_grpc(request.headers()), RequestId::of(request.headers()));
        let answered = AssertUnwindSafe(self.answer(request, grpc)).catch_unwind().await;
        match answered.unwrap_or_else(|_| Err(panicked(id.as_ref()).into())) {
            Ok(response) => {
                self.served.run();
                response
            }
            Err(Refusal::NotRun(why)) => {
                self.served.not_run(why);
                not_run(why)
            }
            Err(refusal) => {
                self.served.run();
                let response = match refusal {
                    Refusal::Status(status) => status.into_http(),
                    Refusal::Failed(error) if grpc => Status::from(error).into_http(),
                    Refusal::Failed(error) => error.into_response(),
                    Refusal::NotRun(why) => not_run(why),
                    Refusal::Lost(error) => {
                        let mut response = if grpc { Status::from(error).into_http() } else { error.into_response() };
                        response.headers_mut().insert(LOST, HeaderValue::from_static("1"));
                        response
                    }
                };
                match id {
                    Some(id) => named(response, id),
                    None => response,
                }
            }
        }
    }

    async fn answer(&self, request: Request<Incoming>, grpc: bool) -> Result<Response<ReplyBody>, Refusal> {
        if function_in(request.uri().path()).is_some() {
            return Box::pin(self.function(request)).await;
        }
        let (head, body) = request.into_parts();
        let head = Arc::new(head);
        let asked = PeerHeaders::of(&head.headers, &self.limits)?;
        let permit = self.admission.enter().map_err(|_| self.turned_away())?;
        let replica = self.replicas.get(&asked.revision).ok_or(Refusal::NotRun(NotRun::Absent))?;
        if replica.is_draining() {
            return Err(Refusal::NotRun(NotRun::Draining));
        }
        let mut runner = PeerRun { stack: self, deadline: asked.deadline, asked, replica, permit: Some(permit) };
        let bounds = Bounds::new(&self.limits, None, &self.memory);
        if head.uri.path() == EXCHANGE {
            let mut upload = Upload::new(body, bounds.of_stream());
            let answer = Box::pin(OpaqueCall { head }.local(&mut runner, &mut upload)).await?;
            return Ok(streamed(ran(answer)?));
        }
        let mut upload = Upload::new(body, bounds);
        if grpc {
            grpc_answer(&head, &mut runner, &mut upload).await
        } else {
            rest_answer(&head, &mut runner, &mut upload).await
        }
    }

    /// Answers a request to a function, which the gateway of the other node has admitted.
    async fn function(&self, request: Request<Incoming>) -> Result<Response<ReplyBody>, Refusal> {
        let (mut head, mut body) = request.into_parts();
        let permit = self.admission.enter().map_err(|_| self.turned_away())?;
        let hook = self.functions.get().ok_or_else(|| Refusal::Failed(ErrorResponse::no_such_path()))?;
        let pace = Pace { pause: self.limits.body_idle, deadline: Instant::now() + self.limits.deadline };
        let whole = read::read(&mut body, self.limits.body, pace, &self.memory).await?;
        // The authority is this node's name, which the client did not write.
        let path = head.uri.path_and_query().cloned().ok_or_else(|| Refusal::Failed(ErrorResponse::no_such_path()))?;
        head.uri = path.into();
        let answer = hook(FunctionSender::Node, Request::from_parts(head, whole)).await;
        Ok(passed_on(answer, permit, Instant::now() + self.limits.deadline, &self.memory))
    }

    fn turned_away(&self) -> Refusal {
        Refusal::NotRun(if self.admission.is_closed() { NotRun::Stopping } else { NotRun::Full })
    }
}

/// Answers over REST.
async fn rest_answer(
    head: &Arc<Parts>,
    runner: &mut PeerRun<'_>,
    upload: &mut Upload,
) -> Result<Response<ReplyBody>, Refusal> {
    let resource = Resource::of(split_namespace(head.uri.path()).1);
    let Some(Resource::Model { model, operation, .. }) = resource else {
        return Err(Refusal::Failed(ErrorResponse::no_such_path()));
    };
    let coding =
        || rest::infer::coding(&head.headers).map_err(|error| Refusal::Failed(ErrorResponse::wrong_encoding(error)));
    if let Some(form) = plain::Form::of(operation) {
        let mut codec = PlainInference { head: Arc::clone(head), coding: coding()?, form };
        // Boxed: inferences do not carry its state.
        let answer = ran(Box::pin(codec.local(runner, upload)).await?)?;
        return Ok(if form == plain::Form::GenerateStream { streamed(answer) } else { answer });
    }
    match operation {
        Operation::Call => ran(Document { head: Arc::clone(head), coding: coding()? }.local(runner, upload).await?),
        Operation::Infer => {
            ran(rest::infer::Inference { head: Arc::clone(head), coding: coding()? }.local(runner, upload).await?)
        }
        _ => Ok(rest::describe(operation, &model, versions(&head.headers), runner.replica.model().as_ref())),
    }
}

/// Answers over gRPC.
async fn grpc_answer(
    head: &Arc<Parts>,
    runner: &mut PeerRun<'_>,
    upload: &mut Upload,
) -> Result<Response<ReplyBody>, Refusal> {
    if head.uri.path() != INFER {
        let body = upload.bytes(runner.deadline).await?;
        let coding = coding(&head.headers).ok_or_else(|| Refusal::Status(message::unknown_coding()))?;
        let message = unframed(body, coding, upload.limit(), upload.memory()).await.map_err(Refusal::Status)?;
        return describe(head.uri.path(), &head.headers, message, &runner.asked.version, &runner.replica);
    }
    let form = if head.headers.contains_key(STREAM) { Form::Stream } else { Form::Unary };
    let answer =
        ran(grpc::infer::Inference { head: Arc::clone(head), form, message: None }.local(runner, upload).await?)?;
    Ok(if answer.stream { streamed(answer.response) } else { answer.response })
}

/// The answer, if something was run.
fn ran<T>(outcome: LocalOutcome<T>) -> Result<T, Refusal> {
    match outcome {
        LocalOutcome::Answered(answer) => Ok(answer),
        LocalOutcome::Moved(why) => Err(Refusal::NotRun(why)),
    }
}

/// Marks an answer that is to be passed on as it comes.
fn streamed(mut response: Response<ReplyBody>) -> Response<ReplyBody> {
    response.headers_mut().insert(STREAM, HeaderValue::from_static("1"));
    response
}

/// The replica that a request of another node names.
struct PeerRun<'a> {
    stack: &'a PeerStack,
    asked: PeerHeaders,
    deadline: Instant,
    replica: Arc<Replica>,
    permit: Option<Permit>,
}

impl Runner for PeerRun<'_> {
    fn deadline(&self) -> Instant {
        self.deadline
    }

    fn shorten(&mut self, timeout: Option<Duration>) {
        if let Some(timeout) = timeout {
            self.deadline = self.deadline.min(self.asked.arrived + timeout);
        }
    }

    fn model(&self) -> Option<Arc<dyn Model>> {
        Some(Arc::clone(self.replica.model()))
    }

    fn model_name(&self) -> Arc<str> {
        match &self.asked.name {
            Some(name) => Arc::clone(name),
            None => self.asked.revision.deployment().name().into(),
        }
    }

    fn received(&self, _: usize) {}

    fn sent(&self, _: usize) {}

    fn failed(&mut self, error: InferError) -> InferError {
        error
    }

    fn began(&mut self, _: &HeaderMap) {}

    fn calls(&self) -> Option<&Arc<Calls>> {
        self.stack.calls.as_ref()
    }

    fn permit(&mut self) -> Option<Permit> {
        self.permit.take()
    }

    async fn lease(&mut self) -> Result<LocalOutcome<LeasedReplica>, InferError> {
        // It may have been replaced by one of the same revision meanwhile.
        let again = || self.stack.replicas.get(&self.asked.revision)?.acquire();
        let Some(lease) = self.replica.acquire().or_else(again) else {
            return Ok(LocalOutcome::Moved(NotRun::Draining));
        };
        if lease.replica().overfull().is_some() {
            return Ok(LocalOutcome::Moved(NotRun::Full));
        }
        Ok(LocalOutcome::Answered(LeasedReplica { lease, version: Arc::clone(&self.asked.version), _running: None }))
    }

    async fn answered<T: Send>(
        &mut self,
        answer: impl Future<Output = Result<T, InferError>> + Send,
    ) -> Result<LocalOutcome<T>, InferError> {
        match timeout_at(self.deadline, answer).await {
            Ok(Ok(answer)) => Ok(LocalOutcome::Answered(answer)),
            Ok(Err(InferError::Shed { reason: Shed::QueueFull, .. })) => Ok(LocalOutcome::Moved(NotRun::Full)),
            Ok(Err(InferError::Shed { reason: Shed::Unavailable | Shed::ShuttingDown, .. })) => {
                Ok(LocalOutcome::Moved(NotRun::Draining))
            }
            Ok(Err(error)) => Err(error),
            Err(_) => {
                let (model, waited) = (self.model_name(), self.asked.arrived.elapsed().as_millis());
                Err(InferError::TimedOut(format!("model {model:?} had not answered after {waited} ms")))
            }
        }
    }
}

impl PeerHeaders {
    fn of(headers: &HeaderMap, limits: &Limits) -> Result<Self, Refusal> {
        let arrived = Instant::now();
        let revision = headers.get(REVISION).and_then(|value| RevisionId::from_coded(value.to_str().ok()?));
        let revision = revision.ok_or_else(|| {
            InferError::Invalid(format!(
                "{REVISION} must name a revision: this port answers other nodes' gateways only"
            ))
        })?;
        let version = headers.get(VERSION).map_or_else(String::new, |version| text(version).into_owned());
        let millis = headers.get(DEADLINE).and_then(|value| value.to_str().ok()?.parse().ok());
        let timeout = millis.map_or(limits.deadline, Duration::from_millis).min(limits.deadline);
        let name = headers.get(MODEL_NAME).and_then(|name| percent_decode(name.to_str().ok()?));
        let name = name.map(|name| name.as_ref().into());
        Ok(Self { revision, name, version: version.into(), deadline: arrived + timeout, arrived })
    }
}

/// The description of a replica, over gRPC.
fn describe(
    method: &str,
    headers: &HeaderMap,
    message: Bytes,
    version: &str,
    replica: &Replica,
) -> Result<Response<ReplyBody>, Refusal> {
    fn read<M: prost::Message + Default>(message: Bytes) -> Result<M, Refusal> {
        let invalid = |error| InferError::Invalid(format!("the request cannot be read: {error}"));
        Ok(M::decode(message).map_err(invalid)?)
    }
    let model = replica.model();
    let answer = match method {
        METADATA => {
            let asked: wire::ModelMetadataRequest = read(message)?;
            let versions = versions(headers);
            let versions = versions.iter().map(|version| &**version).collect();
            framed(&ModelMetadata::new(&asked.name, versions, model.platform(), model.signature()).to_proto())
        }
        CONFIG => {
            let asked: wire::ModelConfigRequest = read(message)?;
            framed(&ModelConfig::new(&asked.name, model.platform(), model.signature(), model.batching()).to_proto())
        }
        STATISTICS => {
            let asked: wire::ModelStatisticsRequest = read(message)?;
            let stats = ModelStats::new(&asked.name, version, &model.statistics());
            framed(&ModelStatistics { model_stats: vec![stats] }.to_proto())
        }
        _ => return Err(Refusal::Status(Status::unimplemented("no such method between nodes"))),
    };
    Ok(well(answer))
}

/// The versions that clients can reach, as their gateway knows them.
fn versions(headers: &HeaderMap) -> Vec<std::borrow::Cow<'_, str>> {
    headers.get_all(VERSIONS).iter().map(text).collect()
}

fn text(value: &HeaderValue) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(value.as_bytes())
}

/// The answer to a request of which nothing was run. Its body is what a client gets if nobody else can run it either.
fn not_run(why: NotRun) -> Response<ReplyBody> {
    let reason = if why == NotRun::Full { Shed::QueueFull } else { Shed::Unavailable };
    let message = format!("nothing was run: {}; send it again", why.as_str());
    let error = ErrorResponse::from(InferError::shed(reason, message, RETRY_ELSEWHERE));
    let mut response = error.into_response();
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response.headers_mut().insert(NOT_RUN, HeaderValue::from_static(why.as_str()));
    response.headers_mut().remove(header::CONNECTION);
    response
}
