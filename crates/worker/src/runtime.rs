//! Runtimes: what turns an artifact on disk into a model that answers.
//!
//! ```text
//! LoadRequest ──Runtime::load──▶ Loaded { model, memory, note } ──model.validate──▶ mesh::LocalReplicas
//!                                   └ dropping the last Arc of the model unloads it
//! ```
//! [`onnx`] is the built-in engine; [`python`] runs the code of model cards in processes of their own, which [`process`] keeps;
//! [`spi`] has model servers that others wrote hold the models. [`batch`] joins
//! requests for any engine. `fake` is scripted, for tests.
//! Not here: fetching the artifact, deciding when to load, and draining: those are the agent's.

pub mod batch;
pub mod metrics;
pub mod onnx;
pub mod process;
pub mod python;
pub mod spi;

mod input;
mod named;
mod sample;

#[cfg(any(test, feature = "testing"))]
pub mod fake;

use std::{any::Any, sync::Arc};

use berth_mesh::local::Model;
use berth_spec::{
    ByteSize, Class, Digest, Failure, FailureCategory, Revision, RuntimeInfo, Serving, Signature, deployment::Warmup,
    residency::Deaths, shortened,
};

use tokio::sync::watch;

use tokio_util::sync::CancellationToken;

use crate::{
    artifacts::{Artifact, Source},
    fault::bounded_trace,
    prepare::Prepared,
};

/// Input of [`Runtime::load`]: the revision, its artifact on this machine, and the means that it may use.
#[derive(Debug, Clone)]
pub struct LoadRequest {
    /// The revision; its `runtime` options and declared signature are obeyed.
    pub revision: Arc<Revision>,
    /// The artifact. Files must stay there until [`Runtime::load`] returns, and where there is `prepared`, for as long as
    /// that lives.
    pub artifact: Source,
    /// Size of the artifact in bytes; of a folder, of all its files.
    pub size: ByteSize,
    /// The digest of the artifact's bytes.
    pub digest: Digest,
    /// The settings by which it is served. Later changes go to [`LoadedModel::set_serving`].
    pub serving: Arc<Serving>,
    /// For a model card: its code and environment.
    pub prepared: Option<Arc<Prepared>>,
    /// The GPUs that it may use, by their ids; empty: none.
    pub devices: Vec<Arc<str>>,
    /// Keeps the artifact's files in the cache for a runtime that reads them again later.
    pub pin: Option<Arc<dyn Any + Send + Sync>>,
    /// Cancelled when the model is no longer wanted, or its time is up.
    pub cancel: CancellationToken,
}

impl LoadRequest {
    /// A request for a fetched artifact, without GPUs.
    #[must_use]
    pub fn new(revision: Arc<Revision>, artifact: Artifact, serving: Arc<Serving>) -> Self {
        let Artifact { source, digest, size } = artifact;
        let cancel = CancellationToken::new();
        Self {
            revision,
            artifact: source,
            size,
            digest,
            serving,
            prepared: None,
            devices: Vec::new(),
            pin: None,
            cancel,
        }
    }

    /// The same, with GPUs.
    #[must_use]
    pub fn on(self, devices: Vec<Arc<str>>) -> Self {
        Self { devices, ..self }
    }
}

/// A model that was loaded and has not proved itself yet.
pub struct Loaded {
    /// The model. It is unloaded when the last `Arc` of it is dropped: do that where blocking for some milliseconds
    /// is allowed.
    pub model: Arc<dyn LoadedModel>,
    /// Bytes of memory that the model takes.
    pub memory: ByteSize,
    /// True if `memory` was measured; otherwise it is an estimate from the artifact's size.
    pub measured: bool,
    /// Something worth knowing that did not stop it, e.g. why batching is off.
    pub note: Option<String>,
}

/// The reason why a model could not be loaded or did not pass its validation inference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LoadError {
    /// The kind of failure, which decides what happens next.
    pub category: FailureCategory,
    /// For people: what went wrong and what to do, without paths of the cache.
    pub message: String,
    /// The output of the model's own code, for example a traceback; see
    /// [`fault::bounded_trace`](crate::fault::bounded_trace).
    pub trace: Option<Box<str>>,
    /// The memory that the load counted for the model, where that is more than its runtime has: workers like this one are not tried. The
    /// model's declared or predicted size, or the runtime's default for models of unknown size.
    pub needs: Option<ByteSize>,
}

impl LoadError {
    /// An error of `category`. A model's process, or a model server, may say anything: of more than
    /// [`Failure::MAX_MESSAGE`](berth_spec::Failure::MAX_MESSAGE) bytes the beginning is kept.
    pub fn new(category: FailureCategory, message: impl Into<String>) -> Self {
        Self { category, message: shortened(message.into(), Failure::MAX_MESSAGE), trace: None, needs: None }
    }

    /// With what the model's own code said. Of more than [`Failure::MAX_TRACE`](berth_spec::Failure::MAX_TRACE) bytes
    /// the end is kept.
    #[must_use]
    pub fn with_trace(self, trace: &str) -> Self {
        Self { trace: bounded_trace(trace), ..self }
    }

    /// With the memory that the load counted for the model, which is more than its runtime has.
    #[must_use]
    pub fn with_needs(self, needs: ByteSize) -> Self {
        Self { needs: Some(needs), ..self }
    }

    /// The class of the error, which says what to do about it.
    #[must_use]
    pub fn class(&self) -> Class {
        match self.category {
            FailureCategory::InvalidModel | FailureCategory::Validation => Class::Invalid,
            FailureCategory::Internal => Class::Internal,
            _ => Class::Stalled,
        }
    }
}

/// The outcome of a validation inference after which a model may serve.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Validation {
    /// The model answered the request.
    #[default]
    Passed,
    /// No request was run: it is turned off, or this runtime runs only requests that somebody gives.
    NotRun,
    /// The model refused a request that was made of its signature alone, for this reason. A good model may do that.
    Inconclusive(String),
}

/// A validation inference whose request was refused for `message`: proves nothing where the request was made up and
/// nobody asks for proof.
pub(crate) fn refused(warmup: &Warmup, message: String) -> Result<Validation, LoadError> {
    const REMEDY: &str = "give a request that it takes (spec.warmup), or let it serve without one (generated, off)";
    let failed = |message| Err(LoadError::new(FailureCategory::Validation, message));
    match warmup {
        Warmup::Generated => Ok(Validation::Inconclusive(format!(
            "the generated request was refused: {message}; give a request that it takes (spec.warmup)"
        ))),
        Warmup::Required => failed(format!("the validation inference failed: {message}; {REMEDY}")),
        Warmup::Given(_) | Warmup::Off => failed(format!("the validation inference failed: {message}")),
    }
}

/// The health of a loaded model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// The most memory that it was seen to take, where that is measured.
    pub memory: Option<ByteSize>,
    /// The deaths of its process; `None`: it has not died, or there is none.
    pub deaths: Option<Arc<Deaths>>,
    /// The reason why the runtime has it no more; it is then loaded again. `Network`: nor can the runtime be reached.
    pub lost: Option<LoadError>,
}

/// Executes revisions of some formats. One per kind of engine and process.
pub trait Runtime: Send + Sync + 'static {
    /// Its name, the formats that it takes, and the limits that it has of its own.
    fn info(&self) -> RuntimeInfo;

    /// Loads a model. Blocks for as long as the engine takes: call it on a thread that may block. Loads may run in
    /// parallel; an engine that cannot orders them itself. Dropping the model unloads it.
    fn load(&self, request: &LoadRequest) -> Result<Loaded, LoadError>;

    /// A load ends within seconds of [`LoadRequest::cancel`], as one in a process of its own does. One that does not costs a
    /// thread where it hangs; the worker bounds how many.
    fn is_interruptible(&self) -> bool {
        false
    }

    /// Loads wait in it for room and for each other, so that it bounds their time by itself.
    fn bounds_loads(&self) -> bool {
        false
    }

    /// Memory of this process beside what the runtime's models were measured to take, as the kernel sees it; `None`: the
    /// models are in processes of their own. Asked often, on a thread that must not wait.
    fn overhead(&self) -> Option<ByteSize> {
        None
    }

    /// True if the runtime finds artifacts by itself: nothing is fetched for it, and a load gets [`Source::Opaque`].
    fn is_opaque(&self) -> bool {
        false
    }
}

/// A model in memory, as the worker sees it. The gateway sees it as [`Model`]: `Arc<dyn LoadedModel>` coerces to
/// `Arc<dyn Model>`.
pub trait LoadedModel: Model {
    /// The inputs and outputs; `None`: the runtime does not say. [`Model::signature`] is empty then.
    fn known_signature(&self) -> Option<Arc<Signature>> {
        Some(Arc::clone(self.signature()))
    }

    /// Runs the validation inference and throws its outputs away. Blocks like [`Runtime::load`]. A model is not to be
    /// made callable before this has passed.
    fn validate(&self, warmup: &Warmup) -> Result<Validation, LoadError>;

    /// Ends it now, also under requests whose time to end by themselves is up: they fail. Blocks like [`Runtime::load`].
    /// An engine that cannot does nothing: its model goes with the last request.
    fn end(&self) {}

    /// The health now. Called now and then, on a thread that must not wait.
    fn health(&self) -> Health {
        Health::default()
    }

    /// Its health whenever that changes: its process has ended or is up again, or the runtime has lost the model. `None`: it
    /// does not change. Ends with the model.
    fn changes(&self) -> Option<watch::Receiver<Health>> {
        None
    }

    /// Applies changed limits and batching from now on; requests that are waiting stay.
    fn set_serving(&self, serving: &Serving);
}
