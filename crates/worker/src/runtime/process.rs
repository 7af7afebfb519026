//! Processes that hold models: each replica's is started, spoken to, limited, confined, and started again when it dies.
//!
//! ```text
//! load: Plan ─▶ control group ─▶ process ─▶ steps … loaded ─▶ memory is measured
//! run:  Document ─▶ queue ─▶ frame ─▶ process ─▶ frame ─▶ Outcome
//! ```
//! Reading order: [`plan`] says what is run and is all that a [`Program`](plan::Program) differs in; [`frame`] is the language of
//! the line and `message` what is said in it; `queue` decides who runs with whom, `gathering` when a run waits for more, and
//! `frame_writer` sends it; `supervise` keeps the process running, `reader` reads its frames, `shared` is what both know; `child` is one process,
//! `isolation` confines it as a user of its own, `cgroup` limits it, `log_reader` reads what it prints, `ended` says how it ended;
//! `egress` lets it reach the hosts that are declared for it.
//! Two programs use it: [`python`](super::python) for model cards, [`onnx`](super::onnx) for graphs outside of the worker.

pub(super) mod backoff;
mod child;
pub(super) mod document;
mod egress;
mod ended;
pub(super) mod failure;
mod footprint;
pub mod frame;
mod frame_writer;
mod gathering;
pub(super) mod isolation;
pub(super) mod log_reader;
pub(super) mod message;
mod outgoing;
pub(super) mod plan;
pub(super) mod queue;
mod reader;
pub(super) mod shared;
pub(super) mod supervise;
pub(super) mod wait;

use std::{
    io,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
};

use self::{egress::Egress, isolation::Isolator};
use crate::{cgroup::CgroupParents, config::IsolationSettings};

/// All that processes of one worker's models share.
#[derive(Debug)]
pub struct Processes {
    /// The folder with the folders of replicas.
    runs: PathBuf,
    parents: CgroupParents,
    pub(super) isolator: Isolator,
    egress: Mutex<Option<Arc<Egress>>>,
}

impl Processes {
    /// Opens it over the worker's folder `data`. What an earlier process left behind there, or running, is cleared away.
    ///
    /// # Errors
    /// If the folder has no absolute path, or the launcher cannot be run.
    pub fn open(data: &Path, isolation: &IsolationSettings) -> io::Result<Arc<Self>> {
        let data = std::path::absolute(data)?;
        let runs = data.join("runs");
        plan::sweep(&runs);
        let isolator = Isolator::open(isolation, data)?;
        Ok(Arc::new(Self { runs, parents: CgroupParents::find(), isolator, egress: Mutex::default() }))
    }

    /// The proxies of models that reach a network, started with the first of them.
    fn egress(&self) -> io::Result<Arc<Egress>> {
        let mut egress = self.egress.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(egress) = &*egress {
            return Ok(Arc::clone(egress));
        }
        let started = Arc::new(Egress::start(self.isolator.own_ports())?);
        *egress = Some(Arc::clone(&started));
        Ok(started)
    }
}

/// The engine of a graph, as a continuation of this program.
pub(super) const OWN_ENGINE: &str = "onnx";

/// Goes on as a model's process: what the launcher is told to call in a sandbox. `None`: there is none of that name.
#[must_use]
pub fn own(name: &str) -> Option<ExitCode> {
    (name == OWN_ENGINE).then(super::onnx::host)
}

/// The resources of models' processes that control groups cannot bound on this machine, for people.
#[must_use]
pub fn unbounded() -> Vec<&'static str> {
    CgroupParents::lacking()
}
