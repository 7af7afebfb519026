//! A loaded ONNX model: checks requests, batches them, answers them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use berth_mesh::{
    local::{Batching, Model, Statistics},
    oip,
};
use berth_spec::{ByteSize, FailureCategory, InferError, InferRequest, Serving, Signature, Tensor, deployment::Warmup};
use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use tokio::sync::watch;

use crate::runtime::{
    Health, LoadError, LoadedModel, Validation,
    batch::{Batcher, Engine, Limits, Pool, StopCondition, View, pool::RunQueue, queue::Work},
    input::Checker,
    metrics::ModelMetrics,
    named::NamedDimensions,
    process::supervise::Supervisor,
    refused, sample,
};

/// The requests in one replica at once where the deployment does not say: with 64 clients, four times what batching
/// needs; a slow model's last request still gets its answer in time.
const DEFAULT_MAX_REQUESTS: u32 = 256;

/// The longest that the validation inference may take: far longer than the first run of any model that callers wait
/// for, and the end of one that never returns.
const VALIDATED_WITHIN: Duration = Duration::from_secs(300);

/// The findings of a load about a model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Footprint {
    /// Bytes of memory that the session takes.
    pub(super) memory: ByteSize,
    /// Runs of the session at once.
    pub(super) lanes: usize,
    /// True if rows of different requests may run together.
    pub(super) batchable: bool,
}

/// Inputs and outputs of a model, as requests are checked against them.
pub(super) struct ModelIo {
    pub(super) signature: Arc<Signature>,
    pub(super) named: NamedDimensions,
}

pub(super) struct OnnxModel {
    checker: Checker,
    named: NamedDimensions,
    batcher: Batcher,
    footprint: Footprint,
    metrics: Arc<ModelMetrics>,
    /// The other end, if it runs in a process of its own.
    remote: Option<Remote>,
}

/// A process that holds a model, and the threads that wait for it.
pub(super) struct Remote {
    pub(super) supervisor: Arc<Supervisor>,
    /// Ends after the process: its threads get their answers then.
    pub(super) _pool: Pool,
}

impl OnnxModel {
    pub(super) fn new(
        engine: Box<dyn Engine>,
        io: ModelIo,
        footprint: Footprint,
        serving: &Serving,
        run_queue: Arc<RunQueue>,
        metrics: Arc<ModelMetrics>,
    ) -> Self {
        let limits = limits(serving, footprint);
        let batcher = Batcher::new(engine, limits, run_queue, Arc::clone(&metrics));
        Self { checker: Checker::new(io.signature), named: io.named, batcher, footprint, metrics, remote: None }
    }

    /// The model whose engine is that process.
    pub(super) fn in_process(self, remote: Remote) -> Self {
        Self { remote: Some(remote), ..self }
    }

    async fn answer(&self, request: InferRequest, deadline: Instant) -> Result<Vec<Tensor>, InferError> {
        let arrived = Instant::now();
        self.metrics.request();
        let result = match self.checker.check(request) {
            Ok(work) => {
                let disagreement = self.named.disagreement(&work.inputs);
                match (self.batcher.infer(work, deadline).await, disagreement) {
                    (Err(InferError::Model(_)), Some(disagreement)) => Err(InferError::Invalid(disagreement)),
                    (result, _) => result,
                }
            }
            Err(error) => Err(error),
        };
        if let Err(error) = &result {
            self.metrics.failed(error);
            self.batcher.tally().failed(arrived.elapsed());
        }
        result
    }

    fn warmup(&self, warmup: &Warmup) -> Result<Option<Work>, String> {
        let work = |inputs: Vec<Tensor>| {
            let request = InferRequest { inputs, ..InferRequest::default() };
            self.checker.check(request).map_err(|error| error.to_string())
        };
        match warmup {
            Warmup::Off => Ok(None),
            Warmup::Generated | Warmup::Required => {
                let inputs = sample::zeros(self.checker.signature());
                work(inputs.ok_or("its inputs are too large to be generated: give a request in warmup")?).map(Some)
            }
            Warmup::Given(json) => {
                let body = Bytes::copy_from_slice(json.as_bytes());
                let decoded = oip::decode(&body, oip::Layout::Json, self.checker.signature());
                let decoded = decoded.and_then(oip::Decoded::with_data).map_err(|error| error.to_string())?;
                work(decoded.request.inputs).map(Some)
            }
        }
    }
}

fn limits(serving: &Serving, footprint: Footprint) -> Limits {
    Limits {
        max_requests: serving.concurrency.max.unwrap_or(DEFAULT_MAX_REQUESTS).max(1) as usize,
        max_rows: if footprint.batchable { serving.batching.max_rows.max(1) } else { 1 },
        max_delay: if footprint.batchable { serving.batching.max_delay } else { Duration::ZERO },
        lanes: footprint.lanes,
    }
}

/// Tells an engine without memory or device, which fails on any request, from a model that refuses this one. The engine
/// reports both in one way; these are the words of its allocators and providers.
fn is_of_the_machine(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    ["alloc", "memory", "cuda", "cublas", "cudnn"].iter().any(|word| message.contains(word))
}

impl Model for OnnxModel {
    fn signature(&self) -> &Arc<Signature> {
        self.checker.signature()
    }

    fn platform(&self) -> &'static str {
        "onnx_onnxv1"
    }

    fn infer(&self, request: InferRequest, deadline: Instant) -> BoxFuture<'_, Result<Vec<Tensor>, InferError>> {
        self.answer(request, deadline).boxed()
    }

    fn statistics(&self) -> Statistics {
        let memory = self.remote.as_ref().map_or(self.footprint.memory, |remote| remote.supervisor.shared.memory());
        self.batcher.tally().statistics(memory.0)
    }

    fn batching(&self) -> Batching {
        let limits = self.batcher.limits();
        Batching { max_rows: limits.max_rows, max_delay: limits.max_delay }
    }
}

impl LoadedModel for OnnxModel {
    fn validate(&self, warmup: &Warmup) -> Result<Validation, LoadError> {
        let work = match self.warmup(warmup) {
            Ok(Some(work)) => work,
            Ok(None) => return Ok(Validation::NotRun),
            Err(message) => return refused(warmup, message),
        };
        let views: Vec<View<'_>> = work.inputs.iter().map(View::of).collect();
        let start = Instant::now();
        let stop = StopCondition::at(start + VALIDATED_WITHIN);
        match self.batcher.engine().run(&views, &work.outputs, &stop) {
            Ok(_) => {}
            Err(InferError::Model(message)) if !is_of_the_machine(&message) => return refused(warmup, message),
            Err(error) => {
                let message = format!("the validation inference failed: {error}");
                return Err(LoadError::new(FailureCategory::Validation, message));
            }
        }
        self.batcher.tally().seed(work.counted_rows().into(), start.elapsed());
        if let Some(remote) = &self.remote {
            // The first run allocates.
            remote.supervisor.shared.measure();
        }
        Ok(Validation::Passed)
    }

    fn end(&self) {
        self.batcher.engine().end();
    }

    fn health(&self) -> Health {
        self.remote.as_ref().map(|remote| remote.supervisor.shared.health()).unwrap_or_default()
    }

    fn changes(&self) -> Option<watch::Receiver<Health>> {
        self.remote.as_ref().map(|remote| remote.supervisor.shared.changes())
    }

    fn set_serving(&self, serving: &Serving) {
        self.batcher.set_limits(limits(serving, self.footprint));
    }
}
