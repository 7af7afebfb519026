//! Requests that another node's gateway sent here, because a replica is here.
//!
//! ```text
//!  head ─▶ which revision? ─▶ door ─▶ is it here? ─▶ [body read and decoded] ─▶ lease ─▶ model ─▶ answer
//!                              └─ stopping ─┴─ absent, draining ───────────────────┘ 503, berth-not-run
//! ```
//!
//! No routes are asked, nothing is forwarded again, and nothing counts as demand: that is the business of the gateway
//! that the client spoke to. Whatever was not run says so, so that it can be sent elsewhere.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use berth_peer::PeerBody;
use berth_spec::{InferError, InferRequest, InferResponse, RevisionId, inference::Shed};
use berth_wire::oip as wire;
use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header, request::Parts};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};
use tonic::Status;
use tracing::Instrument as _;

use crate::{
    admission::Admission,
    body::{read, reply::ReplyBody},
    config::{Limits, SpanHook},
    forward::{
        buffered::boxed,
        head::{DEADLINE, LOST, NOT_RUN, REVISION, VERSION, VERSIONS},
    },
    ingress::{
        fault::{Fault, panicked},
        grpc::{
            CONFIG, METADATA, STATISTICS,
            message::{self, coding as grpc_coding, unframed},
            unary::{METHOD, well},
        },
        is_grpc,
        path::{Operation, Resource},
        rest,
    },
    local::{LocalReplicas, Model, Replica},
    metrics::forward::Served,
    not_run::NotRun,
    oip::{
        describe::{ModelConfig, ModelMetadata, ModelStatistics, ModelStats},
        grpc::frame::{PREFIX, framed},
    },
};

/// When a sender may come again that was sent away: it goes elsewhere at once, and knows nothing of this.
const ELSEWHERE: Duration = Duration::from_secs(1);

/// Answers the inference requests of other nodes; cheap to clone.
#[derive(Clone)]
pub struct PeerService(Arc<Inner>);

struct Inner {
    replicas: Arc<LocalReplicas>,
    limits: Limits,
    admission: Arc<Admission>,
    served: Arc<Served>,
    spans: Option<SpanHook>,
}

/// What a request says of itself.
struct Asked {
    revision: RevisionId,
    version: Arc<str>,
    deadline: Instant,
    arrived: Instant,
}

/// Why a request has no answer of a model.
enum Refusal {
    /// Nothing was run.
    NotRun(NotRun),
    /// It was at fault itself, or the model was.
    Failed(Fault),
    /// The model's process ended under it.
    Lost(Fault),
    /// The same, where gRPC has a status of its own for it.
    Status(Status),
}

impl From<InferError> for Refusal {
    fn from(error: InferError) -> Self {
        Self::Failed(error.into())
    }
}

impl PeerService {
    pub(crate) fn new(
        replicas: Arc<LocalReplicas>,
        limits: Limits,
        (admission, served): (Arc<Admission>, Arc<Served>),
        spans: Option<SpanHook>,
    ) -> Self {
        Self(Arc::new(Inner { replicas, limits, admission, served, spans }))
    }

    /// Answers one request of the peer port: those under `/v2/` and `/inference.GRPCInferenceService/`.
    #[must_use]
    pub fn serve(&self, request: Request<Incoming>) -> BoxFuture<'static, Response<PeerBody>> {
        let inner = Arc::clone(&self.0);
        let span = inner.spans.as_ref().and_then(|hook| hook(request.headers()));
        let answered = async move { inner.caught(request).await.map(|body| body.map_err(boxed).boxed_unsync()) };
        match span {
            None => Box::pin(answered),
            Some(span) => Box::pin(answered.instrument(span)),
        }
    }
}

impl Inner {
    async fn caught(&self, request: Request<Incoming>) -> Response<ReplyBody> {
        let grpc = is_grpc(request.headers());
        let answered = AssertUnwindSafe(self.answer(request, grpc)).catch_unwind().await;
        match answered.unwrap_or_else(|_| Err(panicked().into())) {
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
                match refusal {
                    Refusal::Status(status) => status.into_http(),
                    Refusal::Failed(fault) if grpc => Status::from(fault).into_http(),
                    Refusal::Failed(fault) => fault.into_response(),
                    Refusal::NotRun(why) => not_run(why),
                    Refusal::Lost(fault) => {
                        let mut response = if grpc { Status::from(fault).into_http() } else { fault.into_response() };
                        response.headers_mut().insert(LOST, HeaderValue::from_static("1"));
                        response
                    }
                }
            }
        }
    }

    async fn answer(&self, request: Request<Incoming>, grpc: bool) -> Result<Response<ReplyBody>, Refusal> {
        let (head, body) = request.into_parts();
        let asked = Asked::of(&head.headers, &self.limits)?;
        let _permit = self.admission.enter().map_err(|_| self.turned_away())?;
        let replica = self.replicas.get(&asked.revision).ok_or(Refusal::NotRun(NotRun::Absent))?;
        if replica.is_draining() {
            return Err(Refusal::NotRun(NotRun::Draining));
        }
        if grpc {
            self.grpc(&head, body, &asked, &replica).await
        } else {
            self.rest(&head, body, &asked, &replica).await
        }
    }

    fn turned_away(&self) -> Refusal {
        Refusal::NotRun(if self.admission.is_closed() { NotRun::Stopping } else { NotRun::Full })
    }

    async fn rest(
        &self,
        head: &Parts,
        mut body: Incoming,
        asked: &Asked,
        replica: &Arc<Replica>,
    ) -> Result<Response<ReplyBody>, Refusal> {
        let resource = Resource::of(head.uri.path());
        let Some(Resource::Model { model, operation, .. }) = resource else {
            return Err(Refusal::Failed(Fault::no_such_path()));
        };
        if operation == Operation::Call {
            return self.call(head, body, asked, replica).await;
        }
        if operation != Operation::Infer {
            return Ok(rest::describe(operation, &model, versions(&head.headers), replica));
        }
        let coding =
            rest::infer::coding(&head.headers).map_err(|error| Refusal::Failed(Fault::wrong_encoding(error)))?;
        let limit = self.limits.body;
        let body = read::read(&mut body, limit, self.limits.body_idle, asked.deadline).await?;
        let signature = || Arc::clone(replica.model().signature());
        let decoded = rest::infer::decode(&head.headers, coding, body, limit, signature).await?;
        let response = self.run(decoded.request, decoded.options.timeout, asked, replica).await?;
        Ok(rest::infer::encode(&head.headers, response, decoded.form).await?.0)
    }

    async fn grpc(
        &self,
        head: &Parts,
        mut body: Incoming,
        asked: &Asked,
        replica: &Arc<Replica>,
    ) -> Result<Response<ReplyBody>, Refusal> {
        let limit = self.limits.body.saturating_add(PREFIX);
        let body = read::read(&mut body, limit, self.limits.body_idle, asked.deadline).await?;
        let coding = grpc_coding(&head.headers).ok_or_else(|| {
            Refusal::Status(Status::unimplemented("this grpc-encoding is not supported: use gzip, deflate or identity"))
        })?;
        let message = unframed(body, coding, self.limits.body).await.map_err(Refusal::Status)?;
        if head.uri.path() != METHOD {
            return describe(head.uri.path(), &head.headers, (message, &asked.version), replica);
        }
        let decoded = message::decode(message).await?;
        let response = self.run(decoded.request, decoded.options.timeout, asked, replica).await?;
        Ok(well(message::encode(response, decoded.form).await?.0))
    }

    /// Answers a JSON document of the model's own.
    async fn call(
        &self,
        head: &Parts,
        mut body: Incoming,
        asked: &Asked,
        replica: &Arc<Replica>,
    ) -> Result<Response<ReplyBody>, Refusal> {
        let coding =
            rest::infer::coding(&head.headers).map_err(|error| Refusal::Failed(Fault::wrong_encoding(error)))?;
        let limit = self.limits.body;
        let body = read::read(&mut body, limit, self.limits.body_idle, asked.deadline).await?;
        let body = rest::document::plain(body, coding, limit).await?;
        let answer = self.run_on(asked.deadline, asked, replica, |model, by| model.call(body, by)).await?;
        Ok(rest::document::answered(&head.headers, answer).await)
    }

    /// Leases the replica and runs the request on it.
    async fn run(
        &self,
        mut request: InferRequest,
        timeout: Option<Duration>,
        asked: &Asked,
        replica: &Arc<Replica>,
    ) -> Result<InferResponse, Refusal> {
        let deadline = timeout.map_or(asked.deadline, |timeout| asked.deadline.min(asked.arrived + timeout));
        let id = request.id.take();
        let outputs = self.run_on(deadline, asked, replica, |model, by| model.infer(request, by)).await?;
        Ok(InferResponse {
            model_name: asked.revision.deployment().as_str().into(),
            model_version: Arc::clone(&asked.version),
            id,
            parameters: Default::default(),
            outputs,
        })
    }

    /// Leases the replica and runs something on it. The lease comes after the body, as everywhere.
    async fn run_on<T>(
        &self,
        deadline: Instant,
        asked: &Asked,
        replica: &Arc<Replica>,
        run: impl for<'m> FnOnce(&'m Arc<dyn Model>, std::time::Instant) -> BoxFuture<'m, Result<T, InferError>>,
    ) -> Result<T, Refusal> {
        // It may have been replaced by one of the same revision meanwhile.
        let again = || self.replicas.get(&asked.revision)?.acquire();
        let lease = replica.acquire().or_else(again).ok_or(Refusal::NotRun(NotRun::Draining))?;
        let model = asked.revision.deployment().as_str();
        match timeout_at(deadline, run(lease.model(), deadline.into_std())).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(InferError::Shed { reason: Shed::QueueFull, .. })) => Err(Refusal::NotRun(NotRun::Full)),
            Ok(Err(InferError::Shed { reason: Shed::Unavailable | Shed::ShuttingDown, .. })) => {
                Err(Refusal::NotRun(NotRun::Draining))
            }
            Ok(Err(error @ InferError::Lost(_))) => Err(Refusal::Lost(error.into())),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => {
                let waited = asked.arrived.elapsed().as_millis();
                let message = format!("model {model:?} had not answered after {waited} ms");
                Err(InferError::TimedOut(message).into())
            }
        }
    }
}

impl Asked {
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
        Ok(Self { revision, version: version.into(), deadline: arrived + timeout, arrived })
    }
}

/// What describes a replica, over gRPC.
fn describe(
    method: &str,
    headers: &HeaderMap,
    (message, version): (Bytes, &str),
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
    let fault = Fault::from(InferError::shed(reason, message, ELSEWHERE));
    let mut response = fault.into_response();
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response.headers_mut().insert(NOT_RUN, HeaderValue::from_static(why.as_str()));
    response.headers_mut().remove(header::CONNECTION);
    response
}
