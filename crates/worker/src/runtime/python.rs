//! Models of model cards: somebody else's Python code, in a process of its own for each replica.
//!
//! ```text
//! load:  card + Prepared ─▶ plan ─▶ control group ─▶ process ─▶ steps … loaded ─▶ memory is measured
//! call:  JSON ── input schema ──┐                                        ┌─ output schema ─▶ JSON
//! infer: tensors ─▶ rows ───────┴▶ queue ─▶ frames ─▶ berth.host ─▶ answers ─┴────────────▶ tensors
//! ```
//! Reading order: [`frame`] is the language of the line and `message` what is said in it; `queue` decides who runs with
//! whom; `supervise` keeps the process running, `process_reader` reads its frames, `shared` is what both know; `process` is one
//! process, `cgroup` limits it, `log_reader` reads what it prints, `ended` says how it ended; `document`, `schema` and `sample`
//! are the card's interface, and `validation` tries it. The other side is the Python package in
//! `python/berth`, which is part of this program.
//!
//! The code runs in a sandbox (`isolation`, `berth_sandbox`): docs/models.md says what it sees, docs/security.md what that is
//! worth.

pub(super) mod backoff;
mod cgroup;
mod document;
mod ended;
mod failure;
mod footprint;
pub mod frame;
mod isolation;
pub(super) mod log_reader;
mod message;
mod model;
mod outgoing;
mod package;
mod plan;
mod process;
mod process_reader;
mod queue;
mod sample;
mod schema;
mod shared;
mod supervise;
mod validation;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use berth_spec::{FailureCategory, ModelFormat, RuntimeInfo};

use self::{
    cgroup::CgroupParents, document::Interface, isolation::Isolator, model::PythonModel, plan::Plan, schema::Schema,
    supervise::Supervisor,
};
use super::{LoadError, LoadRequest, Loaded, Runtime, metrics::Families};
use crate::config::IsolationSettings;

/// The runtime.
pub struct PythonRuntime {
    /// The folder that is put on Python's path.
    package: PathBuf,
    /// Where each replica has its folder.
    runs: PathBuf,
    parents: Arc<CgroupParents>,
    isolator: Arc<Isolator>,
    families: Families,
}

/// The resources of models' processes that control groups cannot bound on this machine, for people.
#[must_use]
pub fn unbounded() -> Vec<&'static str> {
    CgroupParents::lacking()
}

impl PythonRuntime {
    /// Opens it over a folder of its own, `data/python`. What an earlier process left behind there, or running, is
    /// cleared away.
    pub fn open(data: &Path, isolation: &IsolationSettings, families: Families) -> io::Result<Self> {
        let data = std::path::absolute(data)?;
        let home = data.join("python");
        let package = package::unpack(&home)?;
        let runs = home.join("runs");
        plan::sweep(&runs);
        let isolator = Arc::new(Isolator::open(isolation, data)?);
        Ok(Self { package, runs, parents: Arc::new(CgroupParents::find()), isolator, families })
    }
}

impl Runtime for PythonRuntime {
    fn info(&self) -> RuntimeInfo {
        RuntimeInfo::unlimited("python", &[ModelFormat::PYTHON])
    }

    fn is_interruptible(&self) -> bool {
        true
    }

    fn load(&self, request: &LoadRequest) -> Result<Loaded, LoadError> {
        let card = request.revision.card.as_deref().map(|pinned| &pinned.card);
        let card = card.ok_or_else(|| LoadError::new(FailureCategory::Internal, "a Python model without its card"))?;
        self.isolator.check()?;
        let input = Schema::compile("interface.input_schema", &card.interface.input_schema)?;
        let output = Schema::compile("interface.output_schema", &card.interface.output_schema)?;
        let interface = Interface::new(input, output);
        let batch_size = card.interface.batch_size.unwrap_or(1).max(1);
        let plan = Plan::new(request, &self.package, &self.runs, &interface.arrays(), &self.isolator)?;
        let limits = model::limits(&request.serving, batch_size);
        let metrics = self.families.model(&request.serving.deployment);
        let (supervisor, loaded) = Supervisor::load(plan, Arc::clone(&self.parents), limits, metrics)?;
        tracing::info!(
            event = "model_process_loaded",
            deployment_id = %request.serving.deployment,
            python = loaded.python,
            batched = ?loaded.batched,
        );
        let memory = supervisor.shared.memory();
        let prepared = request.prepared.iter().flat_map(|prepared| &prepared.notes);
        let isolation = self.isolator.note();
        let notes: Vec<&str> = prepared.chain(&loaded.notes).chain(&isolation).map(String::as_str).collect();
        let note = (!notes.is_empty()).then(|| notes.join("; "));
        let model = Arc::new(PythonModel::new(supervisor, interface, batch_size));
        Ok(Loaded { model, memory, measured: memory.0 > 0, note })
    }
}
