//! A CA, and nodes with a peer port that answers.

use std::{
    io::Write,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use berth_peer::{
    EventLoops, Identity, Peer, PeerBody, PeerHandler, PeerListener, Peers, SendError, full, pki::Authority,
};
use berth_spec::WorkerId;
use futures::{FutureExt as _, future::BoxFuture};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::{runtime::Handle, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// Longer than anything here may take, also on a machine that compiles beside the tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until it is so, while other tasks and threads go on.
pub(crate) async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < end, "never came: {what}");
        tokio::task::yield_now().await;
    }
}

/// Outcome of a request to this path. Connections promise that there is one.
pub(crate) async fn ask(peer: &Peer, path: &str) -> Result<Response<Incoming>, SendError> {
    let asked = tokio::time::timeout(PATIENCE, peer.send(get(path))).await;
    asked.unwrap_or_else(|_| panic!("nothing became of a request to {path}"))
}

pub(crate) fn name(text: &str) -> WorkerId {
    WorkerId::new(text).expect("a name")
}

pub(crate) struct Ca {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) authority: Authority,
}

impl Ca {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let authority = Authority::create(folder.path()).expect("a CA");
        Self { folder, authority }
    }

    pub(crate) fn folder(&self, node: &str) -> PathBuf {
        self.authority.issue(&name(node), &[]).expect("a certificate")
    }

    pub(crate) fn identity(&self, node: &str) -> Identity {
        Identity::load(self.folder(node)).expect("an identity")
    }

    /// Lines of the node `me` to one peer.
    pub(crate) fn lines(&self, me: &str, peer: &str, at: SocketAddr) -> Peers {
        Peers::fixed(self.identity(me), [(name(peer), at)])
    }
}

/// Answers `/echo` with the caller, the header `x-long` and the body, never answers `/hang`.
#[derive(Default)]
pub(crate) struct Echo {
    pub(crate) served: AtomicUsize,
}

impl PeerHandler for Echo {
    fn serve(
        self: Arc<Self>,
        caller: &berth_peer::Caller,
        request: Request<Incoming>,
    ) -> BoxFuture<'static, Response<PeerBody>> {
        let caller = caller.clone();
        async move {
            self.served.fetch_add(1, SeqCst);
            if request.uri().path() == "/hang" {
                std::future::pending::<()>().await;
            }
            let (head, body) = request.into_parts();
            let body = body.collect().await.expect("a body").to_bytes();
            let mut answer =
                Response::builder().header("caller", caller.name.as_str()).body(full(body)).expect("a response");
            if let Some(long) = head.headers.get("x-long") {
                answer.headers_mut().insert("x-long", long.clone());
            }
            answer
        }
        .boxed()
    }
}

pub(crate) struct Node {
    pub(crate) at: SocketAddr,
    pub(crate) echo: Arc<Echo>,
    shutdown: CancellationToken,
    run: JoinHandle<()>,
}

impl Node {
    pub(crate) fn start(identity: Identity) -> Self {
        Self::start_at(identity, SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    /// At an address that nobody else is given while the node is stopped, so that it can come back there.
    pub(crate) fn start_apart(identity: Identity) -> Self {
        // Elsewhere than on Linux loopback is one address.
        let [a, b, c] = if cfg!(target_os = "linux") { rand::random() } else { [0, 0, 1] };
        Self::start_at(identity, SocketAddr::from(([127, a, b, c.clamp(1, 254)], 0)))
    }

    pub(crate) fn start_at(identity: Identity, at: SocketAddr) -> Self {
        let loops = EventLoops::start(Some(2)).expect("threads");
        Self::of(PeerListener::bind(at, identity).expect("a port").on(loops))
    }

    /// In the test's own thread, whose log can be captured.
    pub(crate) fn start_here(identity: Identity) -> Self {
        Self::of(PeerListener::bind(([127, 0, 0, 1], 0).into(), identity).expect("a port"))
    }

    fn of(listener: PeerListener) -> Self {
        let at = listener.local_addr().expect("an address");
        let (echo, shutdown) = (Arc::new(Echo::default()), CancellationToken::new());
        let run = listener.run(Arc::clone(&echo) as Arc<dyn PeerHandler>, shutdown.clone());
        let run = Handle::current().spawn(async move { run.await.expect("the port works") });
        Self { at, echo, shutdown, run }
    }

    /// Ends it as a process that is told to: what is in flight is answered.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(PATIENCE, self.run).await.expect("in time").expect("it ends");
    }
}

pub(crate) fn get(path: &str) -> Request<PeerBody> {
    Request::post(path).body(full("tensor")).expect("a request")
}

/// Log output of this thread during its lifetime.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(crate) fn capture() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let into = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || into.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("no panic").clone()).expect("text")
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
