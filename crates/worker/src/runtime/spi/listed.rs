//! Model servers that are told the whole list of their models: OpenVINO Model Server and TensorFlow Serving.
//!
//! ```text
//! load:   a folder (`layout`), one more in the list ─▶ the server reads the list ─▶ state of the model ── failed: off the list again
//! unload: one less in the list ─▶ the server reads the list ─▶ the folder goes
//! ```
//! The list lies in a file as well, so that a server that is started again loads what it held. Lists go one after another: the
//! server takes whole ones.

mod openvino;
mod tensorflow;

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use berth_spec::{FailureCategory, Signature};
use berth_wire::mmesh::{LoadModelRequest, LoadModelResponse, RuntimeStatusResponse};
use fs_err as fs;
use tokio::{sync::Mutex, time::sleep};
use tonic::{Code, Status, transport::Channel};

use self::{openvino::OpenVino, tensorflow::TensorFlow};
use super::{
    layout::{Layout, Repository},
    v2::V2,
};
use crate::runtime::LoadError;

/// The pause between looks at a model that is being loaded.
const LOOK: Duration = Duration::from_millis(100);

/// The control of such a server.
pub(super) struct Listed {
    server: Server,
    repository: Repository,
    /// The models that it should hold, by the names of their folders.
    list: Mutex<BTreeSet<String>>,
}

enum Server {
    OpenVino(OpenVino),
    TensorFlow(TensorFlow),
}

/// State of a model in such a server.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// Answers.
    Available,
    /// Being loaded: will answer or fail.
    Coming,
    /// Cannot be loaded, with the reason.
    Failed(String),
    /// Not in the server.
    Absent,
}

impl Listed {
    pub(super) fn open_vino(channel: Channel, rest: String, repository: Repository) -> Result<Self, String> {
        let oip = V2::new(channel, repository.clone());
        Ok(Self::new(Server::OpenVino(OpenVino::new(oip, rest)?), repository))
    }

    pub(super) fn tensorflow(channel: Channel, repository: Repository) -> Self {
        Self::new(Server::TensorFlow(TensorFlow::new(channel)), repository)
    }

    fn new(server: Server, repository: Repository) -> Self {
        Self { server, repository, list: Mutex::default() }
    }

    pub(super) async fn status(&self) -> Result<RuntimeStatusResponse, Status> {
        match &self.server {
            Server::OpenVino(server) => server.status().await,
            Server::TensorFlow(server) => server.status().await,
        }
    }

    pub(super) async fn load(&self, request: &LoadModelRequest) -> Result<LoadModelResponse, LoadError> {
        let id = request.model_id.as_str();
        let (repository, asked) = (self.repository.clone(), request.clone());
        let laid = tokio::task::spawn_blocking(move || repository.lay(&asked)).await;
        laid.map_err(io::Error::other)
            .flatten()
            .map_err(|error| LoadError::new(FailureCategory::Disk, format!("the model's folder: {error}")))?;
        let mut list = self.list.lock().await;
        list.insert(id.to_owned());
        let told = self.tell(&list).await;
        let state = loop {
            match self.state(id).await {
                Ok(State::Coming) => sleep(LOOK).await,
                Ok(state) => break state,
                Err(status) => break State::Failed(status.message().to_owned()),
            }
        };
        let why = match (state, told) {
            (State::Available, _) => return Ok(LoadModelResponse::default()),
            (State::Failed(why), _) => why,
            (_, Err(status)) => status.message().to_owned(),
            _ => "the server does not list it: see the server's log".to_owned(),
        };
        list.remove(id);
        // What stands in the server's list would be tried again with every other model.
        if let Err(status) = self.tell(&list).await {
            tracing::warn!(event = "runtime_list_failed", model_id = id, reason = status.message());
        }
        Err(LoadError::new(FailureCategory::Runtime, why))
    }

    pub(super) async fn unload(&self, id: &str) -> Result<(), Status> {
        let mut list = self.list.lock().await;
        list.remove(id);
        self.tell(&list).await?;
        self.repository.clear(id).map_err(|error| Status::new(Code::Internal, error.to_string()))
    }

    pub(super) async fn lacks(&self, id: &str) -> bool {
        matches!(self.state(id).await, Ok(State::Absent | State::Failed(_)))
    }

    pub(super) async fn signature(&self, id: &str) -> Option<Signature> {
        match &self.server {
            Server::OpenVino(server) => server.signature(id).await,
            Server::TensorFlow(_) => None,
        }
    }

    /// Writes the list, and has the server read it.
    async fn tell(&self, list: &BTreeSet<String>) -> Result<(), Status> {
        let models: Vec<(&str, PathBuf)> =
            list.iter().map(|id| (id.as_str(), self.repository.folder.join(id))).collect();
        write(&self.repository, &models).map_err(|error| Status::internal(error.to_string()))?;
        match &self.server {
            Server::OpenVino(server) => server.reload().await,
            Server::TensorFlow(server) => server.reload(&models).await,
        }
    }

    async fn state(&self, id: &str) -> Result<State, Status> {
        match &self.server {
            Server::OpenVino(server) => server.state(id).await,
            Server::TensorFlow(server) => server.state(id).await,
        }
    }
}

/// Writes the file that a server of the layout begins with; nothing for layouts without a list.
pub(super) fn write(repository: &Repository, models: &[(&str, PathBuf)]) -> io::Result<()> {
    let (name, text) = match repository.layout {
        Layout::OpenVino => (openvino::LIST, openvino::list(models)),
        Layout::TensorFlow => (tensorflow::LIST, tensorflow::list(models)),
        Layout::MlServer | Layout::Triton => return Ok(()),
    };
    // A server that starts meanwhile reads the old list or the new one.
    let (path, next) = (repository.folder.join(name), repository.folder.join(format!(".{name}.next")));
    fs::write(&next, text)?;
    fs::rename(next, path)
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
