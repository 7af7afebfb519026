//! Models of model cards: somebody else's Python code, in a process of its own for each replica.
//!
//! ```text
//! load:  card + Prepared ─▶ Interpreter ─▶ process ─▶ steps … loaded
//! call:  JSON ── input schema ──┐                                        ┌─ output schema ─▶ JSON
//! infer: tensors ─▶ rows ───────┴▶ queue ─▶ frames ─▶ berth.host ─▶ answers ─┴────────────▶ tensors
//! ```
//! Reading order: `program` is what the process runs ([`process`](super::process) keeps it running and confines it); `document`,
//! `schema` and `sample` are the card's interface, and `validation` tries it. The other side is the Python package in
//! `python/berth`, which is part of this program.
//!
//! The code runs in a sandbox (`berth_sandbox`): docs/models.md says what it sees, docs/security.md what that is worth.

mod document;
mod model;
mod numbers;
mod package;
mod program;
mod sample;
mod schema;
mod validation;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use berth_spec::{FailureCategory, ModelFormat, PinnedCard, RuntimeInfo};

pub use self::program::prefixes;
use self::{document::Interface, model::PythonModel, program::Interpreter, schema::Schema};
use super::{
    LoadError, LoadRequest, Loaded, Runtime,
    metrics::Families,
    process::{
        Processes,
        plan::{Bounds, Plan},
        supervise::Supervisor,
    },
};
use crate::config::IsolationSettings;

/// A [`Runtime`] for model cards: runs their Python code in processes of its own.
pub struct PythonRuntime {
    /// The folder that is put on Python's path.
    package: PathBuf,
    processes: Arc<Processes>,
    families: Families,
}

/// A request that fits the input schema of a card, for people to try; `None`: none can be made up.
#[must_use]
pub fn example(input_schema: &serde_json::Value) -> Option<serde_json::Value> {
    let schema = Schema::compile("interface.input_schema", input_schema).ok()?;
    sample::request(&schema).ok()
}

impl PythonRuntime {
    /// Opens it over the worker's folder `data`, with processes of its own.
    ///
    /// # Errors
    /// If its files cannot be written.
    pub fn open(data: &Path, isolation: &IsolationSettings, families: Families) -> io::Result<Self> {
        Self::over(Processes::open(data, isolation)?, data, families)
    }

    /// The same, with processes that other runtimes share.
    ///
    /// # Errors
    /// If its files cannot be written.
    pub fn over(processes: Arc<Processes>, data: &Path, families: Families) -> io::Result<Self> {
        let package = package::unpack(&std::path::absolute(data)?.join("python"))?;
        Ok(Self { package, processes, families })
    }
}

impl Runtime for PythonRuntime {
    fn info(&self) -> RuntimeInfo {
        let isolation = self.processes.isolator.offer();
        RuntimeInfo { isolation, ..RuntimeInfo::unlimited("python", &[ModelFormat::PYTHON]) }
    }

    fn is_interruptible(&self) -> bool {
        true
    }

    fn load(&self, request: &LoadRequest) -> Result<Loaded, LoadError> {
        let revision = &request.revision;
        let card = revision.card.as_deref().map(|pinned| &pinned.card);
        let card = card.ok_or_else(|| LoadError::new(FailureCategory::Internal, "a Python model without its card"))?;
        let confinement = self.processes.isolator.of_card(revision.runtime.isolation, revision.hosts())?;
        let input = Schema::compile("interface.input_schema", &card.interface.input_schema)?;
        let output = Schema::compile("interface.output_schema", &card.interface.output_schema)?;
        let built_in = revision.card.as_deref().is_some_and(PinnedCard::is_built_in);
        let interface = Interface::new(input, output);
        let interface = if built_in { interface.lenient() } else { interface };
        let batch_size = card.interface.batch_size.unwrap_or(1).max(1);
        let bounds = Bounds {
            memory: card.resources.as_ref().and_then(|resources| resources.memory_bytes()).or(revision.memory),
            cpus: card.resources.as_ref().map(|resources| resources.cpu),
        };
        let program = Interpreter::new(request, &self.package, &interface.arrays())?;
        let isolation = confinement.note.clone();
        let plan = Plan::new(request, &self.processes, confinement, bounds, Box::new(program))?;
        let limits = model::limits(&request.serving, batch_size);
        let metrics = self.families.model(&request.serving.deployment);
        let (supervisor, loaded) = Supervisor::load(plan, limits, metrics)?;
        tracing::info!(
            event = "model_process_loaded",
            deployment_id = %request.serving.deployment,
            python = loaded.python,
            batched = ?loaded.batched,
        );
        let memory = supervisor.shared.memory();
        let prepared = request.prepared.iter().flat_map(|prepared| &prepared.notes);
        let notes: Vec<&str> = prepared.chain(&loaded.notes).chain(&isolation).map(String::as_str).collect();
        let note = (!notes.is_empty()).then(|| notes.join("; "));
        let model = Arc::new(PythonModel::new(supervisor, interface, batch_size));
        Ok(Loaded { model, memory, measured: memory.0 > 0, note })
    }
}
