//! A model server that does what its models' paths say, for tests of whatever calls one: `berth testing runtime`.
//!
//! ```text
//! mmesh.ModelRuntime ─▶ models: sizes, delays and failures as the path says
//! inference.GRPCInferenceService/ModelInfer ─▶ the inputs, as outputs
//! any other gRPC method ─▶ the request's messages, as they come
//! with a model repository: the Open Inference Protocol in place of mmesh.ModelRuntime    (repository)
//!   … standing for OpenVINO Model Server or TensorFlow Serving: lists of models            (listed)
//! ```
//! A call names its model in `mm-model-id-bin` or `mm-model-id`, and is answered NOT_FOUND where that is not loaded. The answer
//! has it in `testing-model-id`. The metadata `testing` of a call asks for something else:
//!
//! | `testing` | answer |
//! |---|---|
//! | `purge` | the call's own; all models are forgotten |
//! | `lose=2` | NOT_FOUND, and all models are forgotten; the third such call is answered |
//! | `delay=200` | the call's own, 200 ms later |
//! | `error=UNAVAILABLE:text` | this status |

mod answers;
mod listed;
mod models;
mod repository;
mod script;

use std::{convert::Infallible, future::poll_fn, io, net::SocketAddr, path::PathBuf, pin::pin, sync::Arc};

use berth_peer::http2::{StreamSpawner, Streams};
use berth_wire::mmesh::model_runtime_server::ModelRuntimeServer;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{rt::TokioIo, server::conn::auto};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
    task::JoinSet,
};
use tower_service::Service as _;

use self::{answers::Body, models::Models};
pub use script::{InvalidScript, Script};

/// Connections at once.
const CONNECTIONS: usize = 1024;

/// The server's own behaviour.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Memory that it says models may take, in bytes.
    pub capacity: u64,
    /// The size of a model whose path says none.
    pub default_size: u64,
    /// Loads at once that it says it takes. It counts those beyond.
    pub parallel_loads: u32,
    /// The time that it says a load may take, in milliseconds.
    pub load_timeout_ms: u32,
    /// Methods that it lists, with the path of field numbers where it wants the model's id; see
    /// [`RuntimeStatusResponse`](berth_wire::mmesh::RuntimeStatusResponse).
    pub methods: Vec<(String, Vec<u32>)>,
    /// True if it takes methods beside those.
    pub any_method: bool,
    /// Requests at once that it says each model takes; 0: it does not say.
    pub concurrency: u32,
    /// The answer about its state comes as STARTING so often first.
    pub starting: u32,
    /// Folder of a model repository: it then speaks the Open Inference Protocol, and not `mmesh.ModelRuntime`.
    pub repository: Option<PathBuf>,
    /// The server that it stands for, where it has a repository.
    pub stands_for: StandsFor,
}

/// A server with a model repository.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StandsFor {
    /// Triton or MLServer: models are loaded one by one.
    #[default]
    Oip,
    /// OpenVINO Model Server: a file lists the models.
    OpenVino,
    /// TensorFlow Serving: a call lists the models.
    TensorFlow,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            capacity: 1 << 30,
            default_size: 50 << 20,
            parallel_loads: 6,
            load_timeout_ms: 90_000,
            methods: Vec::new(),
            any_method: false,
            concurrency: 0,
            starting: 0,
            repository: None,
            stands_for: StandsFor::Oip,
        }
    }
}

/// The address that a [`Server`] listens on.
#[derive(Debug, Clone)]
pub enum Listen {
    /// A Unix socket; one that is there is replaced.
    Unix(PathBuf),
    /// A TCP address; port 0 has the system choose one.
    Tcp(SocketAddr),
}

/// A scripted model server that listens and does not answer yet.
pub struct Server {
    listener: Listener,
    models: Arc<Models>,
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Server {
    /// Starts to listen on an address; calls wait until the server runs.
    pub async fn bind(listen: &Listen, settings: Settings) -> io::Result<Self> {
        let listener = match listen {
            Listen::Unix(path) => {
                if let Some(folder) = path.parent() {
                    fs_err::create_dir_all(folder)?;
                }
                match fs_err::remove_file(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => Listener::Unix(UnixListener::bind(path)?),
                }
            }
            Listen::Tcp(address) => Listener::Tcp(TcpListener::bind(address).await?),
        };
        Ok(Self { listener, models: Arc::new(Models::new(settings)) })
    }

    /// The port that it has; `None`: it listens at a socket.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        match &self.listener {
            Listener::Unix(_) => None,
            Listener::Tcp(listener) => listener.local_addr().ok().map(|address| address.port()),
        }
    }

    /// Counts of what it did, for tests.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts(Arc::clone(&self.models))
    }

    /// Serves until it is dropped.
    pub async fn run(self) -> io::Result<()> {
        let mut connections = JoinSet::new();
        loop {
            while connections.len() >= CONNECTIONS {
                connections.join_next().await;
            }
            while connections.try_join_next().is_some() {}
            let models = Arc::clone(&self.models);
            match &self.listener {
                Listener::Unix(listener) => connections.spawn(serve(listener.accept().await?.0, models)),
                Listener::Tcp(listener) => {
                    let (stream, _) = listener.accept().await?;
                    stream.set_nodelay(true)?;
                    connections.spawn(serve(stream, models))
                }
            };
        }
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, models: Arc<Models>) {
    let service = service_fn(move |request| answer(Arc::clone(&models), request));
    // One task for a connection and its requests: an answer leaves in one write, as from servers in use.
    let begun = StreamSpawner::default();
    let mut builder = auto::Builder::new(begun.clone());
    // Whoever sends long metadata gets a long head.
    builder.http2().max_concurrent_streams(10_000).initial_stream_window_size(4 << 20).max_header_list_size(1 << 20);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut streams = Streams::new(begun);
    // A client that breaks off is none of our business.
    let _ = poll_fn(|cx| streams.poll(connection.as_mut(), cx)).await;
}

async fn answer(models: Arc<Models>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    if models.repository().is_none() && request.uri().path().starts_with("/mmesh.ModelRuntime/") {
        let Ok(response) = ModelRuntimeServer::from_arc(models).call(request).await;
        return Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()));
    }
    if models.stands_for() == StandsFor::OpenVino
        && request.uri().path().starts_with(listed::CONFIG)
        && let Some(repository) = models.repository()
    {
        return Ok(listed::open_vino(&models, repository, request.method(), request.uri().path()).await);
    }
    Ok(answers::of(&models, request).await)
}

/// The counts of a server so far.
#[derive(Clone)]
pub struct Counts(Arc<Models>);

impl Counts {
    /// The ids of the models that are loaded.
    #[must_use]
    pub fn loaded(&self) -> Vec<String> {
        self.0.loaded()
    }

    /// Loads that were begun.
    #[must_use]
    pub fn loads(&self) -> u32 {
        self.0.loads()
    }

    /// The most loads that ran at once.
    #[must_use]
    pub fn most_at_once(&self) -> u32 {
        self.0.most_at_once()
    }

    /// Refuses all loads from now on.
    pub fn refuse(&self, text: &str) {
        self.0.refuse(text);
    }

    /// Forgets all models, as a server that was started anew.
    pub fn purge(&self) {
        self.0.purge();
    }
}
