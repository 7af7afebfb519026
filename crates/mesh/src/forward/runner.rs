//! A replica of this process as a codec sees it: the gateway of the client and the port for other nodes implement it.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use berth_spec::{InferError, InferRequest, InferResponse, Signature};
use berth_wire::{header_list, status::grpc_code};
use bytes::Bytes;
use http::{HeaderMap, Response, request::Parts};
use tokio::time::Instant;
use tonic::Code;

use crate::{
    admission::Permit,
    body::{
        relayed::{RelayedBody, Source},
        reply::ReplyBody,
        upload::{Upload, unrepeatable},
    },
    calls::{Calls, Run},
    deployment::DeploymentState,
    exchange,
    local::{Lease, Model},
    metrics::Protocol,
    not_run::NotRun,
    oip::grpc::methods::INFER,
    watch::status,
};

/// The end of a run on a replica of this process.
pub(crate) enum LocalOutcome<T> {
    Answered(T),
    /// Nothing was run: the request goes elsewhere.
    Moved(NotRun),
}

impl<T> LocalOutcome<T> {
    /// The same with another form of the answer.
    pub(crate) fn map<U>(self, form: impl FnOnce(T) -> U) -> LocalOutcome<U> {
        match self {
            Self::Answered(answer) => LocalOutcome::Answered(form(answer)),
            Self::Moved(why) => LocalOutcome::Moved(why),
        }
    }
}

/// A lease of the own replica for one request, counted as in flight until it is dropped.
pub(crate) struct LeasedReplica {
    pub(crate) lease: Lease,
    pub(crate) version: Arc<str>,
    /// Counts the request as in flight for its deployment.
    pub(crate) _running: Option<RunningRequest>,
}

/// Leases a replica and runs requests on it, under the bounds of whoever asked.
pub(crate) trait Runner: Send + Sync {
    /// The point in time after which nobody waits for the answer.
    fn deadline(&self) -> Instant;

    /// Applies a timeout that the request's body holds.
    fn shorten(&mut self, timeout: Option<Duration>);

    /// The model, for what needs no lease; `None` if it was taken away meanwhile.
    fn model(&self) -> Option<Arc<dyn Model>>;

    /// The deployment's name, for the answer.
    fn model_name(&self) -> Arc<str>;

    /// Counts bytes of the request's body.
    fn received(&self, bytes: usize);

    /// Counts bytes of the answer's body.
    fn sent(&self, bytes: usize);

    /// Notes that the request ends with this error.
    fn failed(&mut self, error: InferError) -> InferError;

    /// Notes that the request ends with this head of an answer of the model's own.
    fn began(&mut self, head: &HeaderMap);

    /// The counts of calls; `None`: they are not wanted.
    fn calls(&self) -> Option<&Arc<Calls>>;

    /// The permit of the request, for what outlives it.
    fn permit(&mut self) -> Option<Permit>;

    /// Leases a replica. The lease comes after the body: a slow sender never keeps a replica from draining.
    fn lease(&mut self) -> impl Future<Output = Result<LocalOutcome<LeasedReplica>, InferError>> + Send;

    /// Waits for what the model does for the request.
    fn answered<T: Send>(
        &mut self,
        answer: impl Future<Output = Result<T, InferError>> + Send,
    ) -> impl Future<Output = Result<LocalOutcome<T>, InferError>> + Send;

    /// The model's signature, to read bodies that do not say what they are.
    fn signature(&self) -> Arc<Signature> {
        self.model().map(|model| Arc::clone(model.signature())).unwrap_or_default()
    }

    /// Runs an inference.
    fn infer(
        &mut self,
        mut request: InferRequest,
    ) -> impl Future<Output = Result<LocalOutcome<InferResponse>, InferError>> + Send {
        async move {
            let held = match self.lease().await? {
                LocalOutcome::Answered(held) => held,
                LocalOutcome::Moved(why) => return Ok(LocalOutcome::Moved(why)),
            };
            let (id, deadline) = (request.id.take(), self.deadline().into_std());
            let run = self.begin_run(&held);
            let answered = self.answered(held.lease.model().infer(request, deadline)).await;
            self.ran(INFER, Protocol::Grpc, &held, run.as_ref(), outcome(&answered));
            Ok(answered?.map(|outputs| InferResponse {
                model_name: self.model_name(),
                model_version: held.version,
                id,
                parameters: Default::default(),
                outputs,
            }))
        }
    }

    /// Begins to count what the model does for a call; `None`: that is not wanted.
    fn begin_run(&self, held: &LeasedReplica) -> Option<Run> {
        self.calls().map(|calls| calls.begin_run(held.lease.replica().revision().deployment()))
    }

    /// Counts what the model did for a call. `code` is `None` where that is nothing.
    fn ran(&self, path: &str, protocol: Protocol, held: &LeasedReplica, run: Option<&Run>, code: Option<Code>) {
        if let (Some(calls), Some(run), Some(code)) = (self.calls(), run, code) {
            calls.ran(run, held.lease.replica().revision().deployment(), path, protocol, code);
        }
    }

    /// Answers a JSON document of the model's own.
    fn call(&mut self, body: Bytes) -> impl Future<Output = Result<LocalOutcome<Bytes>, InferError>> + Send {
        async move {
            let held = match self.lease().await? {
                LocalOutcome::Answered(held) => held,
                LocalOutcome::Moved(why) => return Ok(LocalOutcome::Moved(why)),
            };
            let deadline = self.deadline().into_std();
            let run = self.begin_run(&held);
            let answered = self.answered(held.lease.model().call(body, deadline)).await;
            self.ran(CALL, Protocol::Rest, &held, run.as_ref(), outcome(&answered));
            answered
        }
    }

    /// Has the model answer a request of its own kind. The replica is leased until the last byte of the answer.
    fn exchange(
        &mut self,
        parts: Parts,
        upload: &mut Upload,
    ) -> impl Future<Output = Result<LocalOutcome<Response<ReplyBody>>, InferError>> + Send {
        async move {
            let held = match self.lease().await? {
                LocalOutcome::Answered(held) => held,
                LocalOutcome::Moved(why) => return Ok(LocalOutcome::Moved(why)),
            };
            let deadline = self.deadline();
            let Some(body) = upload.again() else { return Err(self.failed(unrepeatable())) };
            let parts = exchange::with_deadline(parts, deadline.into_std());
            let run = self.begin_run(&held).map(|run| (run, parts.uri.path().to_owned()));
            let answered = self.answered(held.lease.model().exchange(parts, body)).await;
            if let Some((run, path)) = run {
                let code = match &answered {
                    Ok(LocalOutcome::Answered(response)) => Some(status(response.headers()).unwrap_or(Code::Ok)),
                    other => outcome(other),
                };
                self.ran(&path, Protocol::Grpc, &held, Some(&run), code);
            }
            Ok(match answered? {
                LocalOutcome::Moved(why) => LocalOutcome::Moved(why),
                LocalOutcome::Answered(response) => {
                    if let Err(error) = header_list::check(response.headers()) {
                        let whose = format!("the headers of the answer of model {:?} have {error}", self.model_name());
                        return Err(self.failed(InferError::Model(whose)));
                    }
                    self.began(response.headers());
                    LocalOutcome::Answered(passed_on(response, (held, self.permit()), deadline))
                }
            })
        }
    }
}

/// The method of a model's own JSON in the counts of calls.
const CALL: &str = "call";

/// The status of a run; `None`: nothing was run.
fn outcome<T>(answered: &Result<LocalOutcome<T>, InferError>) -> Option<Code> {
    match answered {
        Ok(LocalOutcome::Answered(_)) => Some(Code::Ok),
        Ok(LocalOutcome::Moved(_)) => None,
        Err(error) => Some(grpc_code(error.class())),
    }
}

/// A model's own answer as it goes to the client. What `guard` holds is held until its last byte.
fn passed_on(response: Response<exchange::Body>, guard: impl Send + 'static, deadline: Instant) -> Response<ReplyBody> {
    let (head, body) = response.into_parts();
    let relayed = RelayedBody::new(Vec::new(), None, Some(Source::Model(body)), guard).until(deadline, &head.headers);
    Response::from_parts(head, ReplyBody::Relayed(Box::new(relayed)))
}

/// A request that runs, and how many ran before it.
pub(crate) struct RunningRequest {
    entry: Arc<DeploymentState>,
    pub(crate) before: u32,
}

impl RunningRequest {
    pub(crate) fn enter(entry: &Arc<DeploymentState>) -> Self {
        let before = entry.hot().usage.in_flight.fetch_add(1, Relaxed);
        Self { entry: Arc::clone(entry), before }
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.entry.hot().usage.in_flight.fetch_sub(1, Relaxed);
    }
}
