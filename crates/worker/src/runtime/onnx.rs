//! The built-in engine: ONNX graphs on the CPU, in this process unless they are isolated from it.
//!
//! ```text
//! open: library ──▶ environment          load: session ──▶ signature ──▶ rows independent? ──▶ OnnxModel
//!       (once per process)                └────────────── memory is measured around it ──────────┘
//! ```
//! Where a deployment or the operator wants it, a graph runs in a process of its own instead ([`isolated`]).
//! Sessions are made and freed one at a time ([`engine_lock`]), so that what the heap grows by is that model's. Runs are
//! concurrent. Both end early where nobody waits for them: `watchdog` stops runs, `load_watch` cancels loads.

mod account;
mod call;
mod engine_lock;
mod graph;
mod isolated;
mod labels;
mod library;
mod load_watch;
mod memory;
mod model;
mod protobuf;
mod session;
mod watchdog;

use std::{
    io,
    num::NonZero,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use berth_spec::{
    ByteSize, FailureCategory, Isolation, IsolationOffer, ModelFormat, RuntimeInfo, Signature,
    deployment::RuntimeOptions,
};
use ort::{environment::Environment, session::Session};

use self::{
    account::{Account, Accounted, Measurements},
    call::Call,
    graph::Findings,
    memory::{MemoryUse, Peak},
    model::{Footprint, ModelIo, OnnxModel},
};
use super::{
    LoadError, LoadRequest, Loaded, Runtime,
    batch::{Pool, independence::rows_are_independent},
    metrics::Families,
    named::NamedDimensions,
    process::Processes,
};

pub use library::OpenError;

/// Thread counts of the engine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Threads for long runs, shared by all models. 0: one per core.
    pub threads: usize,
    /// Threads inside one run where the revision does not say. 0: 1, which serves many models best: requests of
    /// different clients then run side by side, each on one core.
    pub intra_threads: usize,
}

/// A [`Runtime`] for ONNX graphs: runs them by ONNX Runtime in this process, or in one of their own where they are isolated.
pub struct OnnxEngine {
    environment: Environment,
    pool: Pool,
    intra_threads: usize,
    families: Families,
    account: Arc<Account>,
    /// The library's file.
    library: PathBuf,
    /// Processes for graphs that are isolated; `None`: there are none.
    processes: Option<Arc<Processes>>,
}

/// The library is missing, or threads could not be started.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The library of ONNX Runtime was not found, or cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The system has no threads for the pool of long runs.
    #[error("cannot start threads for runs: {0}")]
    Threads(#[from] io::Error),
}

impl OnnxEngine {
    /// Loads the library at `library` (a file or a folder), or searches for it where that is `None`.
    pub fn open(library: Option<&Path>, options: &Options, families: Families) -> Result<Self, EngineError> {
        let environment = library::open(library)?;
        let library = library::loaded();
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let pool = Pool::start(if options.threads == 0 { cores } else { options.threads })?;
        let intra_threads = options.intra_threads.max(1);
        let account = Arc::default();
        Ok(Self { environment, pool, intra_threads, families, account, library, processes: None })
    }

    /// The engine with processes for graphs that are isolated.
    #[must_use]
    pub fn with_processes(self, processes: Arc<Processes>) -> Self {
        Self { processes: Some(processes), ..self }
    }

    /// Threads inside one run.
    fn threads_for(&self, options: &RuntimeOptions) -> usize {
        match usize::from(options.threads) {
            0 => self.intra_threads,
            threads => threads,
        }
    }
}

/// Loads the library as [`OnnxEngine::open`] does, and names the file: for those who ask what is there.
///
/// # Errors
/// [`OpenError`]: it is nowhere, or is not usable.
pub fn probe(library: Option<&Path>) -> Result<std::path::PathBuf, OpenError> {
    library::probe(library)
}

impl Runtime for OnnxEngine {
    fn info(&self) -> RuntimeInfo {
        let here = || {
            let lacks = "this worker has no processes for graphs".to_owned();
            Some(IsolationOffer { most: Isolation::None, lacks })
        };
        let isolation = self.processes.as_ref().and_then(|processes| processes.isolator.offer()).or_else(here);
        RuntimeInfo { isolation, ..RuntimeInfo::unlimited("onnx", &[ModelFormat::ONNX]) }
    }

    /// True, though not within a step of the library: see `load_watch`.
    fn is_interruptible(&self) -> bool {
        true
    }

    fn overhead(&self) -> Option<ByteSize> {
        Some(self.account.overhead())
    }

    fn load(&self, request: &LoadRequest) -> Result<Loaded, LoadError> {
        let asked = request.revision.runtime.isolation;
        let confinement = match &self.processes {
            Some(processes) => processes.isolator.of_graph(asked)?.map(|confinement| (processes, confinement)),
            None if asked.is_none_or(|level| level == Isolation::None) => None,
            None => {
                let message = "runtime.isolation is set, and this worker has no processes for graphs";
                return Err(LoadError::new(FailureCategory::Runtime, message));
            }
        };
        match confinement {
            Some((processes, confinement)) => isolated::load(self, processes, confinement, request),
            None => self.load_here(request),
        }
    }
}

/// A graph's process, from inside.
pub(super) fn host() -> ExitCode {
    isolated::host::run()
}

/// A session that can be run, its signature, narrowed by the author's `declared` one, and the names of its dimensions.
fn prepared(
    session: Session,
    found: &Findings,
    declared: Option<&Signature>,
) -> Result<(Call, Signature, NamedDimensions), LoadError> {
    if let Some(reason) = &found.unreadable {
        let message = format!("the graph cannot be inspected ({reason}): save it again with the onnx package");
        return Err(LoadError::new(FailureCategory::InvalidModel, message));
    }
    let mut signature = session::signature(&session, declared)?;
    signature.labels.clone_from(&found.labels);
    let named = session::named(&session);
    let call = Call::new(session, &signature, found.unbounded.is_none())
        .map_err(|error| LoadError::new(FailureCategory::InvalidModel, error.message().to_owned()))?;
    Ok((call, signature, named))
}

impl OnnxEngine {
    /// Loads a graph into this process.
    fn load_here(&self, request: &LoadRequest) -> Result<Loaded, LoadError> {
        let revision = &request.revision;
        session::check_provider(&revision.runtime)?;
        let graph = session::graph(&request.artifact)?;
        let size = fs_err::metadata(&graph).map_err(|error| {
            LoadError::new(FailureCategory::Internal, format!("the artifact is gone from the cache: {error}"))
        })?;
        let size = ByteSize(size.len());
        let threads = self.threads_for(&revision.runtime);

        let found = graph::inspect(&graph, &request.artifact)?;
        let given_up = &request.cancel;
        let held = self.account.for_load(given_up).ok_or_else(session::unwanted)?;
        let before = if held.is_alone() { MemoryUse::now() } else { MemoryUse::unknown() };
        let (session, peak) = Peak::of(size, given_up, || session::build(&self.environment, &graph, threads, given_up));
        let session = session.and_then(|session| prepared(session, &found, revision.signature.as_deref()));
        // A load that failed has taken memory all the same, possibly nearly all of a model.
        let (call, signature, named) = session.inspect_err(|_| memory::give_back())?;
        let signature = Arc::new(signature);
        let known = self.account.known(&request.digest);
        let verdict = match &known {
            Some(known) => known.verdict.clone(),
            None => rows_are_independent(&call, &signature).err(),
        };
        if given_up.is_cancelled() {
            drop(call);
            memory::give_back();
            return Err(session::unwanted());
        }
        let before_that = known.and_then(|known| known.measured);
        let (memory, measured) = before.grown(size, before_that);
        let known = Measurements { verdict: verdict.clone(), measured: measured.then_some(memory).or(before_that) };
        self.account.remember(request.digest, known);
        let peak = peak.saturating_sub(before.resident_after(memory));
        let call = Accounted::enter(call, memory, peak, &self.account, &held);
        drop(held);

        let batching = verdict.as_ref().map(|reason| format!("batching is off: {reason}"));
        let aside = found.unbounded.map(|operator| {
            format!("runs on threads of its own: how long a run takes depends on the values of its inputs ({operator})")
        });
        let notes: Vec<String> = batching.into_iter().chain(aside).collect();
        let note = (!notes.is_empty()).then(|| notes.join("; "));
        let footprint =
            Footprint { memory, lanes: (self.pool.threads() / threads).max(1), batchable: verdict.is_none() };
        let metrics = self.families.model(&request.serving.deployment);
        let model = OnnxModel::new(
            Box::new(call),
            ModelIo { signature, named },
            footprint,
            &request.serving,
            self.pool.run_queue(),
            metrics,
        );
        Ok(Loaded { model: Arc::new(model), memory, measured, note })
    }
}
