//! Graphs in a process of their own for each replica: an engine that crashes, or is killed, costs that replica and nothing else.
//!
//! ```text
//!  requests ─▶ Batcher ─▶ pool of this replica ─▶ RemoteEngine ─▶ queue ─▶ frames ─▶ host: Call (onnxruntime)
//!              (checks, signature, warm-up: as in the worker)               ◀─────── answers
//! ```
//! One process per replica: what its engine takes, breaks or leaks is that replica's, and ends with it. [`documents`] is what
//! both sides read and write, [`program`] starts the process, [`engine`] is the worker's side of a run, [`host`] the process's.
//! A run waits for another process, so that it never happens on the thread of a connection.

mod documents;
mod engine;
pub(in crate::runtime) mod host;
mod program;

use std::sync::Arc;

use berth_spec::{ByteSize, FailureCategory};

use self::{engine::RemoteEngine, program::GraphProgram};
use super::{
    OnnxEngine,
    model::{Footprint, ModelIo, OnnxModel, Remote},
    session,
};
use crate::runtime::{
    LoadError, LoadRequest, Loaded,
    batch::Pool,
    process::{
        Processes,
        isolation::Confinement,
        plan::{Bounds, Plan},
        queue::Limits,
        supervise::Supervisor,
    },
};

/// Memory that a process may take beside what the author declared for the model: the engine's library and its tables, and what
/// runs take for a moment in a small model.
const ENGINE_MEMORY: ByteSize = ByteSize::mib(256);

/// Loads a model into a process of its own.
pub(super) fn load(
    engine: &OnnxEngine,
    processes: &Arc<Processes>,
    confinement: Confinement,
    request: &LoadRequest,
) -> Result<Loaded, LoadError> {
    let revision = &request.revision;
    session::check_provider(&revision.runtime)?;
    let threads = engine.threads_for(&revision.runtime);
    let lanes = (engine.pool.threads() / threads).max(1);
    let isolation = confinement.note.clone();
    let program = GraphProgram::new(request, &engine.library, threads, lanes)?;
    let bounds = Bounds { memory: revision.memory.map(|memory| memory + ENGINE_MEMORY), cpus: None };
    let plan = Plan::new(request, processes, confinement, bounds, Box::new(program))?;
    // The batcher joins rows and bounds the runs: each of its runs is one entry here.
    let limits =
        Limits { max_requests: usize::MAX, max_rows: 1, max_delay: std::time::Duration::ZERO, parallel_runs: lanes };
    let metrics = engine.families.model(&request.serving.deployment);
    let (supervisor, loaded) = Supervisor::load(plan, limits, Arc::clone(&metrics))?;
    let graph = loaded.graph.ok_or_else(|| LoadError::new(FailureCategory::Internal, "a graph without a signature"))?;
    let no_threads = |error: std::io::Error| {
        LoadError::new(FailureCategory::Internal, format!("threads for the model cannot be started: {error}"))
    };
    let pool = Pool::waiting(lanes).map_err(no_threads)?;
    let (supervisor, signature) = (Arc::new(supervisor), Arc::new(graph.signature));
    let memory = supervisor.shared.memory();
    let batching = graph.unbatched.as_ref().map(|reason| format!("batching is off: {reason}"));
    let notes: Vec<String> = isolation.into_iter().chain(batching).collect();
    let note = (!notes.is_empty()).then(|| notes.join("; "));
    let footprint = Footprint { memory, lanes, batchable: graph.unbatched.is_none() };
    let remote = RemoteEngine::new(Arc::clone(&supervisor), Arc::clone(&signature));
    let run_queue = pool.run_queue();
    let io = ModelIo { signature, named: graph.named };
    let model = OnnxModel::new(Box::new(remote), io, footprint, &request.serving, run_queue, metrics);
    let model = model.in_process(Remote { supervisor, _pool: pool });
    Ok(Loaded { model: Arc::new(model), memory, measured: memory.0 > 0, note })
}
