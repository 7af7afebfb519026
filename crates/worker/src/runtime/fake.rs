//! A runtime without an engine, for tests: every artifact loads as a model that echoes its first input, unless a
//! [`Script`] for the revision's URI says otherwise.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use berth_mesh::local::{Batching, Model, Statistics};
use berth_spec::{
    ByteSize, Datatype, FailureCategory, InferError, InferRequest, ModelFormat, RuntimeInfo, Serving, Signature,
    Tensor, TensorSpec, deployment::Warmup,
};
use futures::{FutureExt, future::BoxFuture};
use tokio::sync::watch;

use super::{Health, LoadError, LoadRequest, Loaded, LoadedModel, Runtime, Validation};

/// The behaviour of loads of one URI.
#[derive(Debug, Clone)]
pub struct Script {
    /// The time that a load blocks.
    pub load_time: Duration,
    /// A load blocks until this is open.
    pub gate: Option<Arc<Gate>>,
    /// The memory that is reported, as measured.
    pub memory: ByteSize,
    /// Loads fail with this.
    pub load: Option<LoadError>,
    /// The validation inference fails with this.
    pub validate: Option<LoadError>,
    /// The time of an inference, on the clock of tokio.
    pub infer_time: Duration,
    /// The health of its models, and its changes.
    pub health: Option<watch::Sender<Health>>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            load_time: Duration::ZERO,
            gate: None,
            memory: ByteSize::mib(1),
            load: None,
            validate: None,
            infer_time: Duration::ZERO,
            health: None,
        }
    }
}

/// Holds loads back until a test lets them go.
#[derive(Debug, Default)]
pub struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    /// Lets every load through, now and later.
    pub fn open(&self) {
        *locked(&self.open) = true;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let closed = self.changed.wait_while(locked(&self.open), |open| !*open);
        drop(closed.unwrap_or_else(PoisonError::into_inner));
    }
}

/// The runtime. Clones of its `Arc` are handed to the worker and kept by the test.
#[derive(Default)]
pub struct FakeRuntime {
    scripts: Mutex<BTreeMap<String, Script>>,
    loads: AtomicU32,
    loaded: Arc<AtomicU32>,
}

impl FakeRuntime {
    /// Sets what happens to loads of `uri` from now on.
    pub fn script(&self, uri: impl Into<String>, script: Script) {
        locked(&self.scripts).insert(uri.into(), script);
    }

    /// Loads that were begun.
    pub fn loads(&self) -> u32 {
        self.loads.load(Ordering::SeqCst)
    }

    /// Models that are in memory now.
    pub fn loaded(&self) -> u32 {
        self.loaded.load(Ordering::SeqCst)
    }
}

impl Runtime for FakeRuntime {
    fn info(&self) -> RuntimeInfo {
        RuntimeInfo::unlimited("fake", &[ModelFormat::ONNX])
    }

    fn load(&self, request: &LoadRequest) -> Result<Loaded, LoadError> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        let script = locked(&self.scripts).get(&request.revision.uri).cloned().unwrap_or_default();
        if let Some(gate) = &script.gate {
            gate.pass();
        }
        if request.cancel.is_cancelled() {
            return Err(LoadError::new(FailureCategory::Internal, "the load was given up"));
        }
        if !script.load_time.is_zero() {
            std::thread::sleep(script.load_time);
        }
        if let Some(error) = script.load {
            return Err(error);
        }
        let signature = match &request.revision.signature {
            Some(declared) => Arc::new(Signature::clone(declared)),
            None => {
                Arc::new(Signature { inputs: vec![row("input")], outputs: vec![row("output")], ..Signature::default() })
            }
        };
        self.loaded.fetch_add(1, Ordering::SeqCst);
        let model = FakeModel {
            signature,
            infer_time: script.infer_time,
            health: script.health,
            validate: script.validate,
            served: AtomicU64::new(0),
            loaded: Arc::clone(&self.loaded),
        };
        Ok(Loaded { model: Arc::new(model), memory: script.memory, measured: true, note: None })
    }
}

fn row(name: &str) -> TensorSpec {
    TensorSpec { name: name.to_owned(), datatype: Datatype::Fp32, shape: vec![-1, 4] }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct FakeModel {
    signature: Arc<Signature>,
    infer_time: Duration,
    health: Option<watch::Sender<Health>>,
    validate: Option<LoadError>,
    served: AtomicU64,
    loaded: Arc<AtomicU32>,
}

impl Model for FakeModel {
    fn signature(&self) -> &Arc<Signature> {
        &self.signature
    }

    fn platform(&self) -> &'static str {
        "fake"
    }

    fn infer(&self, request: InferRequest, deadline: Instant) -> BoxFuture<'_, Result<Vec<Tensor>, InferError>> {
        async move {
            if deadline <= Instant::now() {
                return Err(InferError::TimedOut("the deadline passed before the request was started".to_owned()));
            }
            if !self.infer_time.is_zero() {
                tokio::time::sleep(self.infer_time).await;
            }
            let input = request.inputs.into_iter().next();
            let Some(input) = input else { return Err(InferError::Invalid("no inputs".to_owned())) };
            self.served.fetch_add(1, Ordering::Relaxed);
            let outputs = self.signature.outputs.iter();
            Ok(outputs.map(|output| Tensor { name: output.name.clone(), ..input.clone() }).collect())
        }
        .boxed()
    }

    fn statistics(&self) -> Statistics {
        Statistics { inference_count: self.served.load(Ordering::Relaxed), ..Statistics::default() }
    }

    fn batching(&self) -> Batching {
        Batching::OFF
    }
}

impl LoadedModel for FakeModel {
    fn validate(&self, _: &Warmup) -> Result<Validation, LoadError> {
        self.validate.clone().map_or(Ok(Validation::Passed), Err)
    }

    fn health(&self) -> Health {
        self.health.as_ref().map(|health| health.borrow().clone()).unwrap_or_default()
    }

    fn changes(&self) -> Option<watch::Receiver<Health>> {
        self.health.as_ref().map(watch::Sender::subscribe)
    }

    fn set_serving(&self, _: &Serving) {}
}

impl Drop for FakeModel {
    fn drop(&mut self) {
        self.loaded.fetch_sub(1, Ordering::SeqCst);
    }
}
