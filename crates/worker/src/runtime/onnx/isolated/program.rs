//! The program of a graph's process: this very one, which goes on as the engine once it is confined.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use std::any::Any;

use berth_spec::{FailureCategory, Signature};
use serde::{Deserialize, Serialize};

use crate::{
    artifacts::Source,
    runtime::{
        LoadError, LoadRequest,
        onnx::session,
        process::{
            OWN_ENGINE,
            message::Limits,
            plan::{Executable, Program},
        },
    },
};

/// Order to the engine's process: the graph to load, and how to run it. The head of its `Load` frame.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct LoadGraph {
    /// Path of the ONNX Runtime library: the one that the worker has loaded.
    pub(super) library: PathBuf,
    /// Path of the graph's file.
    pub(super) graph: PathBuf,
    /// The folder that it may read weights from, where it is one of a folder.
    pub(super) folder: Option<PathBuf>,
    /// Threads of the engine inside one run.
    pub(super) threads: usize,
    /// Runs of the engine at once.
    pub(super) lanes: usize,
    /// The author's word on its inputs and outputs.
    pub(super) signature: Option<Signature>,
}

/// A graph in an engine of its own.
pub(super) struct GraphProgram {
    load: LoadGraph,
    /// Size and time of change of the graph when the replica was made: a process that is started again loads the same.
    made_of: (u64, Option<SystemTime>),
    /// Keeps the files in the cache.
    _pin: Option<Arc<dyn Any + Send + Sync>>,
}

impl GraphProgram {
    /// Takes everything that a process needs, so that it can be started again.
    pub(super) fn new(request: &LoadRequest, library: &Path, threads: usize, lanes: usize) -> Result<Self, LoadError> {
        let gone = |error: io::Error| {
            LoadError::new(FailureCategory::Internal, format!("the artifact is gone from the cache: {error}"))
        };
        // The process has another folder than we, and links are followed before its file tree is made.
        let graph = fs_err::canonicalize(session::graph(&request.artifact)?).map_err(gone)?;
        let folder = match &request.artifact {
            Source::Folder(folder) => Some(fs_err::canonicalize(folder).map_err(gone)?),
            _ => None,
        };
        let made_of = state(&graph).map_err(gone)?;
        let signature = request.revision.signature.as_deref().cloned();
        let load = LoadGraph { library: library.to_owned(), graph, folder, threads, lanes, signature };
        Ok(Self { load, made_of, _pin: request.pin.clone() })
    }
}

impl Program for GraphProgram {
    fn name(&self) -> &'static str {
        "the model's engine"
    }

    fn executable(&self) -> Executable<'_> {
        Executable::Own(OWN_ENGINE)
    }

    fn readable(&self) -> Vec<PathBuf> {
        let LoadGraph { library, graph, folder, .. } = &self.load;
        vec![library.clone(), folder.clone().unwrap_or_else(|| graph.clone())]
    }

    fn environment(&self, scratch: &Path) -> Vec<(&'static str, String)> {
        let scratch = scratch.display().to_string();
        vec![("HOME", scratch.clone()), ("TMPDIR", scratch), ("LANG", "C.UTF-8".to_owned())]
    }

    fn load(&self, _: Limits<'_>) -> io::Result<Vec<u8>> {
        if state(&self.load.graph)? != self.made_of {
            let message = "the graph's file was changed since the replica was made: apply the deployment again";
            return Err(io::Error::other(message));
        }
        Ok(serde_json::to_vec(&self.load)?)
    }

    fn fails_as(&self) -> FailureCategory {
        FailureCategory::InvalidModel
    }

    fn stops_runs(&self) -> bool {
        true
    }

    fn is_counted(&self) -> bool {
        false
    }
}

fn state(graph: &Path) -> io::Result<(u64, Option<SystemTime>)> {
    let about = fs_err::metadata(graph)?;
    Ok((about.len(), about.modified().ok()))
}
