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
    error::Error as _,
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
    control::refused,
    layout::{Layout, Repository},
    reach::{LoadClock, is_late, is_unreached, when_reached},
    v2::V2,
};
use crate::runtime::LoadError;

/// The pause between looks at a model that is being loaded: the first request waits for it.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

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

    pub(super) async fn load(
        &self,
        request: &LoadModelRequest,
        clock: &LoadClock,
    ) -> Result<LoadModelResponse, LoadError> {
        let id = request.model_id.as_str();
        let (repository, asked) = (self.repository.clone(), request.clone());
        let laid = tokio::task::spawn_blocking(move || repository.lay(&asked)).await;
        laid.map_err(io::Error::other)
            .flatten()
            .map_err(|error| LoadError::new(FailureCategory::Disk, format!("the model's folder: {error}")))?;
        let mut list = self.list.lock().await;
        list.insert(id.to_owned());
        let all: &BTreeSet<String> = &list;
        let ended = match when_reached(clock, || self.tell(all)).await {
            Err(status) if is_unreached(&status) => Err(refused(&status)),
            told => self.outcome(id, told).await,
        };
        let Err(error) = ended else { return Ok(LoadModelResponse::default()) };
        list.remove(id);
        // What stands in the server's list would be tried again with every other model.
        if let Err(status) = self.tell(&list).await {
            tracing::warn!(event = "runtime_list_failed", model_id = id, reason = status.message());
        }
        Err(error)
    }

    /// The end of a load that the server was told of.
    async fn outcome(&self, id: &str, told: Result<(), Status>) -> Result<(), LoadError> {
        let state = loop {
            match self.state(id).await {
                Ok(State::Coming) => {}
                Ok(state) => break state,
                // Its work keeps it from answering. The load has a time limit of its own.
                Err(status) if is_late(&status) => {}
                // It went away, and not only for others: it may have died of this model, and would again when it is started.
                Err(status) if status.source().is_some() => {
                    let message = format!("the runtime went away while it loaded the model: {}", status.message());
                    return Err(LoadError::new(FailureCategory::Network, message));
                }
                Err(status) => break State::Failed(status.message().to_owned()),
            }
            sleep(POLL_INTERVAL).await;
        };
        let why = match (state, told) {
            (State::Available, _) => return Ok(()),
            (State::Failed(why), _) => why,
            // It went away, and is there again.
            (_, Err(status)) if status.source().is_some() => return Err(refused(&status)),
            (_, Err(status)) => status.message().to_owned(),
            _ => "the server does not list it: see the server's log".to_owned(),
        };
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use tonic::transport::Endpoint;

    use super::*;

    /// Clients of both servers, at the address of a listener.
    fn both(listener: &TcpListener) -> [Listed; 2] {
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let channel = || Endpoint::from_shared(url.clone()).expect("a URL").connect_lazy();
        let repository = |layout| Repository { folder: PathBuf::new(), layout, owned: false, given: None };
        let open_vino = Listed::open_vino(channel(), url.clone(), repository(Layout::OpenVino)).expect("a client");
        [open_vino, Listed::tensorflow(channel(), repository(Layout::TensorFlow))]
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_answer_is_late_and_not_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        for listed in both(&listener) {
            let status = listed.state("m").await.expect_err("it does not answer");
            assert!(is_late(&status) && !is_unreached(&status), "{status:?}");
            assert_eq!(refused(&status).category, FailureCategory::Timeout, "{status:?}");
        }
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_cannot_be_reached() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let listed = both(&listener);
        drop(listener);
        for listed in listed {
            let status = listed.state("m").await.expect_err("nobody is there");
            assert!(is_unreached(&status) && !is_late(&status), "{status:?}");
            assert_eq!(refused(&status).category, FailureCategory::Network, "{status:?}");
        }
    }
}
