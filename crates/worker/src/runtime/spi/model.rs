//! A model in a runtime of another process, as gateways and the worker see it.
//!
//! ```text
//! call ─▶ method allowed? ─▶ limit ─▶ runtime ─┬─ answer, as it comes
//!                              ▲               └─ "no such model" ─▶ load it again, once ─┐
//!                              └────────────────── the request again, if it is all here ◀─┘
//! ```

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use berth_mesh::{
    exchange,
    local::{Batching, Model, Statistics},
    oip,
};
use berth_spec::{
    ByteSize, FailureCategory, InferError, InferRequest, Serving, Signature, Tensor, deployment::Warmup,
    inference::Shed,
};
use berth_wire::{bounded_status, mmesh::LoadModelRequest};
use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use http::{Response, request::Parts};
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::sync::watch;
use tonic::Status;

use super::{
    Process, UNLOAD_WAIT,
    body::{BodyCopy, CallGuards, Guarded},
    concurrency_limit::ConcurrencyLimit,
    head::{self, IdHeaders},
    inject::{self, Injecting, Refusal},
    lost,
    outage::CallUnderWay,
    tensors,
    thread_connections::Failure,
    unavailable,
};
use crate::runtime::{
    Health, LoadError, LoadedModel, Validation,
    batch::tally::{Run, Tally},
    metrics::ModelMetrics,
};

/// When to try again while the model is being loaded again: small models are back by then.
const RETRY: Duration = Duration::from_secs(1);

/// Loads that changed nothing, within [`FRUITLESS_FOR`], after which a model is loaded again only if the runtime itself says
/// that it does not hold it: by then it means something else by that word, and its callers get it as it is.
const MAX_FRUITLESS: u32 = 3;
/// The time for which they count: a model that is lost now and then is loaded again each time.
const FRUITLESS_FOR: Duration = Duration::from_secs(60);

/// Loads for one request. A runtime that loses a model more often while it waits is not well.
const MAX_RELOADS: u32 = 3;

/// A model that a model server holds, as the gateway calls it. Loads it again when the server has lost it.
pub(super) struct SpiModel {
    pub(super) process: Arc<Process>,
    pub(super) request: LoadModelRequest,
    pub(super) size: ByteSize,
    pub(super) signature: Arc<Signature>,
    pub(super) declared: bool,
    pub(super) concurrency_limit: Option<ConcurrencyLimit>,
    pub(super) metrics: Arc<ModelMetrics>,
    reloads: Arc<ReloadState>,
    id: IdHeaders,
    tally: Arc<Tally>,
    /// Requests at once by the deployment's word; 0: it has none.
    bound: AtomicU32,
    /// True once it was told to leave.
    ended: AtomicBool,
}

/// The loads of a model that its runtime has lost.
struct ReloadState {
    /// Held while it is loaded again.
    turn: tokio::sync::Mutex<()>,
    /// The number of loads.
    loads: AtomicU64,
    /// Loads after which the model was missing still: since when, and how many.
    fruitless: Mutex<Option<(Instant, u32)>>,
    health: Arc<watch::Sender<Health>>,
}

impl ReloadState {
    fn was_fruitless(&self) {
        let mut fruitless = self.fruitless.lock().unwrap_or_else(PoisonError::into_inner);
        let before = fruitless.filter(|(since, _)| since.elapsed() <= FRUITLESS_FOR);
        *fruitless = Some(before.map_or((Instant::now(), 1), |(since, count)| (since, count + 1)));
    }
}

impl SpiModel {
    pub(super) fn new(
        process: Arc<Process>,
        request: LoadModelRequest,
        size: ByteSize,
        declared: Option<Arc<Signature>>,
        concurrency_limit: Option<ConcurrencyLimit>,
        metrics: Arc<ModelMetrics>,
    ) -> Self {
        let id = IdHeaders::of(&request.model_id);
        let reloads = ReloadState {
            turn: tokio::sync::Mutex::new(()),
            loads: AtomicU64::new(0),
            fruitless: Mutex::new(None),
            health: Arc::new(watch::Sender::new(Health::default())),
        };
        process.outage.concerns(&reloads.health);
        Self {
            process,
            request,
            size,
            declared: declared.is_some(),
            signature: declared.unwrap_or_default(),
            concurrency_limit,
            metrics,
            reloads: Arc::new(reloads),
            id,
            tally: Arc::default(),
            bound: AtomicU32::new(0),
            ended: AtomicBool::new(false),
        }
    }

    /// Answers one call; `Ok` may be an answer that is a status only.
    pub(super) async fn call(
        &self,
        parts: &Parts,
        body: exchange::Body,
    ) -> Result<Response<exchange::Body>, InferError> {
        let path = match self.process.limits.methods.path(parts.uri.path()) {
            Ok(path) => path,
            Err(message) => return Ok(status_only(&Status::unimplemented(message))),
        };
        let deadline = parts.extensions.get::<exchange::Deadline>().map(|deadline| deadline.0);
        let permit = match &self.concurrency_limit {
            Some(concurrency_limit) => {
                let came = Instant::now();
                let permit = concurrency_limit.enter(deadline).await?;
                self.metrics.queued(came.elapsed());
                Some(permit)
            }
            None => None,
        };
        let (body, refusal) = match path {
            [] => (body, None),
            path => {
                let (field, refusal) = (inject::field(path, &self.request.model_id), Refusal::default());
                (Injecting::new(body, field, Arc::clone(&refusal)).boxed_unsync(), Some(refusal))
            }
        };
        let (copy, mut body) = BodyCopy::of(body, &self.process.copies);
        let mut reload_count = 0;
        loop {
            let loads = self.reloads.loads.load(Ordering::Acquire);
            let (answer, under_way) = match self.send(parts, body).await {
                Ok(answer) => answer,
                Err(error) => {
                    let refused = refusal.as_ref().and_then(|refusal| refusal.get());
                    return refused.map(status_only).ok_or(error);
                }
            };
            let lost = lost::at_once(&answer).as_ref().and_then(lost::reason);
            let Some(why) = self.reason_to_reload(lost, reload_count).await else {
                copy.forget();
                return Ok(self.answered(parts, answer, (under_way, permit)));
            };
            if reload_count == MAX_RELOADS {
                return Err(InferError::shed(Shed::Unavailable, format!("{why}, again and again"), RETRY));
            }
            self.reload(loads, &why).await?;
            reload_count += 1;
            let Some(again) = copy.again() else {
                let message = "the runtime had lost the model, which is loaded again now: send the request again";
                return Err(InferError::shed(Shed::Unavailable, message, Duration::ZERO));
            };
            body = again;
        }
    }

    /// The reason, if any, to load the model again and to repeat the request, of an answer that says
    /// `lost`. `None`: the answer is the runtime's own. `reload_count`: how often that was done for this request.
    ///
    /// NOT_FOUND may mean that the model is missing, or something that the request names. Once a load has not changed it, the
    /// runtime is asked.
    async fn reason_to_reload(&self, lost: Option<String>, reload_count: u32) -> Option<String> {
        let why = lost?;
        if reload_count == 0 && self.may_reload() || self.process.control.lacks(&self.request.model_id).await {
            return Some(why);
        }
        if reload_count > 0 {
            self.reloads.was_fruitless();
        }
        None
    }

    /// The answer as the caller gets it.
    fn answered(&self, parts: &Parts, mut answer: Response<Incoming>, held: CallGuards) -> Response<exchange::Body> {
        if !self.process.wraps_unavailable {
            return guarded(answer, held);
        }
        let method = parts.uri.path().trim_start_matches('/').to_owned();
        unavailable::wrap(answer.headers_mut(), &method);
        answer.map(|body| {
            let body = Guarded::boxed(body, held);
            let wrapped = body.map_frame(move |frame| match frame.into_trailers() {
                Ok(mut trailers) => {
                    unavailable::wrap(&mut trailers, &method);
                    Frame::trailers(trailers)
                }
                Err(frame) => frame,
            });
            wrapped.boxed_unsync()
        })
    }

    async fn send(
        &self,
        parts: &Parts,
        body: exchange::Body,
    ) -> Result<(Response<Incoming>, CallUnderWay), InferError> {
        let mut call = self.process.outage.call();
        let answered = self.process.connections.send(head::request(parts, &self.id, body)).await;
        match answered {
            Ok(mut answer) => {
                bounded_status::bound(answer.headers_mut());
                call.heard();
                call.rests();
                Ok((answer, call))
            }
            Err(failure) => Err(self.unanswered(&failure, parts.uri.path())),
        }
    }

    /// The error of a call that the connection to the runtime did not carry.
    fn unanswered(&self, failure: &Failure, method: &str) -> InferError {
        self.process.missed();
        let (name, method) = (&self.process.name, method.trim_start_matches('/'));
        match failure {
            Failure::Unreached(_) => {
                InferError::shed(Shed::Unavailable, format!("runtime {name} cannot be reached: {method}"), RETRY)
            }
            Failure::Broken(_) => {
                InferError::Lost(format!("the connection to runtime {name} broke under the call: {method}"))
            }
        }
    }

    fn may_reload(&self) -> bool {
        let fruitless = *self.reloads.fruitless.lock().unwrap_or_else(PoisonError::into_inner);
        fruitless.is_none_or(|(since, count)| count < MAX_FRUITLESS || since.elapsed() > FRUITLESS_FOR)
    }

    /// Loads it again, once for all who found it missing after `loads` loads. Goes on when nobody waits any more.
    async fn reload(&self, loads: u64, why: &str) -> Result<(), InferError> {
        let (process, reloads, request) = (Arc::clone(&self.process), Arc::clone(&self.reloads), self.request.clone());
        let size = self.size;
        let why = why.to_owned();
        let work = self.process.handle().spawn(async move {
            let _turn = reloads.turn.lock().await;
            if reloads.loads.load(Ordering::Acquire) != loads {
                return Ok(());
            }
            tracing::warn!(event = "model_lost", runtime = process.name, model_id = request.model_id, reason = why);
            match process.load_bare(&request, size).await {
                Ok(_) => {
                    reloads.loads.fetch_add(1, Ordering::AcqRel);
                    Ok(())
                }
                Err(error) => {
                    let reason = format!("{why}; loading it again failed: {error}");
                    // Other kinds are those of the next load.
                    let category = match error.category {
                        FailureCategory::Network => FailureCategory::Network,
                        _ => FailureCategory::Runtime,
                    };
                    let lost = Some(LoadError::new(category, reason.clone()));
                    reloads.health.send_replace(Health { lost, ..Health::default() });
                    Err(reason)
                }
            }
        });
        match work.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(reason)) => Err(InferError::shed(Shed::Unavailable, reason, RETRY)),
            Err(_) => Err(InferError::Cancelled),
        }
    }

    async fn counted<T>(&self, work: impl Future<Output = Result<T, InferError>>) -> Result<T, InferError> {
        let began = Instant::now();
        self.metrics.request();
        let result = work.await;
        let took = began.elapsed();
        match &result {
            Ok(_) => {
                self.metrics.took(took);
                self.tally.ran(&Run {
                    requests: 1,
                    succeeded: 1,
                    rows: 1,
                    executions: 1,
                    timings: tensors::timings(took),
                    queued: Duration::ZERO,
                    total: took,
                });
            }
            Err(error) => {
                self.metrics.failed(error);
                self.tally.failed(took);
            }
        }
        result
    }
}

fn status_only(status: &Status) -> Response<exchange::Body> {
    status.clone().into_http().map(|body: tonic::body::Body| body.map_err(Into::into).boxed_unsync())
}

fn guarded(answer: Response<Incoming>, held: CallGuards) -> Response<exchange::Body> {
    answer.map(|body| Guarded::boxed(body, held))
}

impl Model for SpiModel {
    fn signature(&self) -> &Arc<Signature> {
        &self.signature
    }

    fn platform(&self) -> &'static str {
        "berth_runtime"
    }

    fn bound(&self) -> Option<u32> {
        Some(self.bound.load(Ordering::Relaxed)).filter(|bound| *bound > 0)
    }

    fn infer(&self, request: InferRequest, deadline: Instant) -> BoxFuture<'_, Result<Vec<Tensor>, InferError>> {
        self.counted(tensors::infer(self, request, deadline)).boxed()
    }

    fn exchange(
        &self,
        parts: Parts,
        body: exchange::Body,
    ) -> BoxFuture<'_, Result<Response<exchange::Body>, InferError>> {
        self.counted(async move { self.call(&parts, body).await }).boxed()
    }

    fn streams(&self) -> bool {
        self.process.limits.methods.has(tensors::STREAM_INFER)
    }

    fn infers_undecoded(&self) -> bool {
        true
    }

    fn statistics(&self) -> Statistics {
        self.tally.statistics(self.size.0)
    }

    fn batching(&self) -> Batching {
        Batching::OFF
    }
}

impl LoadedModel for SpiModel {
    fn known_signature(&self) -> Option<Arc<Signature>> {
        self.declared.then(|| Arc::clone(&self.signature))
    }

    fn validate(&self, warmup: &Warmup) -> Result<Validation, LoadError> {
        // Runtimes say by themselves that a model is loaded, and most serve other interfaces: only what somebody gave runs.
        let Warmup::Given(text) = warmup else { return Ok(Validation::NotRun) };
        let body = Bytes::copy_from_slice(text.as_bytes());
        let decoded = oip::decode(&body, oip::Layout::Json, &self.signature).and_then(oip::Decoded::with_data);
        let request = decoded.map_err(|error| LoadError::new(FailureCategory::Validation, error.to_string()))?.request;
        let deadline = Instant::now() + Duration::from_secs(60);
        let ran = self.process.handle().block_on(tensors::infer(self, request, deadline));
        ran.map(|_| Validation::Passed).map_err(|error| LoadError::new(FailureCategory::Validation, error.to_string()))
    }

    /// Unloads it, and waits until that is done or failed once, unless memory is kept for it meanwhile. Its requests end as the runtime has it.
    fn end(&self) {
        if !self.ended.swap(true, Ordering::AcqRel) {
            let word = self.process.leave(&self.request.model_id);
            if self.process.room.leaves_beside() {
                return;
            }
            // Disconnected: done, or tried again later.
            let _ = word.recv_timeout(UNLOAD_WAIT);
        }
    }

    fn health(&self) -> Health {
        self.reloads.health.borrow().clone()
    }

    fn changes(&self) -> Option<watch::Receiver<Health>> {
        Some(self.reloads.health.subscribe())
    }

    /// The runtime has a bound of its own beside it.
    fn set_serving(&self, serving: &Serving) {
        self.bound.store(serving.concurrency.max.unwrap_or(0), Ordering::Relaxed);
    }
}

impl Drop for SpiModel {
    fn drop(&mut self) {
        if !self.ended.swap(true, Ordering::AcqRel) {
            drop(self.process.leave(&self.request.model_id));
        }
    }
}
