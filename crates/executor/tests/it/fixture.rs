//! Executors and servers for tests.

use std::{convert::Infallible, net::SocketAddr, path::PathBuf, time::Duration};

use berth_executor::{Executor, Limits};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

pub(crate) type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// Longest wait for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// An executor that runs.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) file: PathBuf,
    pub(crate) stop: CancellationToken,
    pub(crate) ended: JoinHandle<usize>,
    _folder: TempDir,
}

/// A configuration with one port before `upstream`, and more settings of it.
pub(crate) fn config(upstream: SocketAddr, more: &str) -> String {
    format!(
        "ports:\n  - {{name: http, listen: '127.0.0.1:0', upstream: '{upstream}', {more}}}\n\
         admin: {{listen: '127.0.0.1:0'}}\ndrain: {{delay: 0s, timeout: 20s}}\n"
    )
}

pub(crate) fn executor(config: &str) -> Running {
    executor_within(config, Limits::default())
}

/// One that may not use more.
pub(crate) fn executor_within(config: &str, limits: Limits) -> Running {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("executor.yaml");
    fs_err::write(&file, config).expect("written");
    let executor = Executor::start_within(&file, limits).unwrap_or_else(|error| panic!("{error}"));
    let (address, admin) = (executor.ports()[0].1, executor.admin().expect("bound"));
    let stop = CancellationToken::new();
    let ended = tokio::spawn(executor.run(stop.clone()));
    Running { address, admin, file, stop, ended, _folder: folder }
}

impl Running {
    /// Asks the admin port.
    pub(crate) async fn ask(&self, path: &str) -> String {
        said(self.admin, &format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")).await
    }

    /// Waits until the metrics have a line.
    pub(crate) async fn tells(&self, line: &str) {
        let told = async {
            while !self.ask("/metrics").await.lines().any(|told| told == line) {
                tokio::task::yield_now().await;
            }
        };
        if tokio::time::timeout(PATIENCE, told).await.is_err() {
            panic!("no {line} in:\n{}", self.ask("/metrics").await);
        }
    }

    pub(crate) async fn ends(self) -> usize {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.ended).await.expect("it ends").expect("no panic")
    }
}

/// Sends the bytes of a request, and reads to the end of the connection.
pub(crate) async fn said(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("an answer");
    assert!(read.is_ok() || !answer.is_empty(), "{read:?}");
    answer
}

pub(crate) fn full(text: &str) -> Body {
    Full::new(Bytes::from(text.to_owned())).map_err(|never| match never {}).boxed_unsync()
}

/// A server of HTTP/1.1 and HTTP/2 on an address, until the guard is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) async fn server<F, R>(address: SocketAddr, answer: F) -> Server
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    let listener = TcpListener::bind(address).await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let task = tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(serve_connection(stream, answer.clone()));
        }
    });
    Server { address, task }
}

/// Answers what comes on a connection.
pub(crate) async fn serve_connection<S, F, R>(stream: S, answer: F)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Request<Incoming>) -> R + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    let service = service_fn(move |request| {
        let answered = answer(request);
        async move { Ok::<_, Infallible>(answered.await) }
    });
    let builder = auto::Builder::new(TokioExecutor::new());
    builder.serve_connection(TokioIo::new(stream), service).await.ok();
}

/// Any free port of this machine.
pub(crate) fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// Answers with the request's path, and its body.
pub(crate) async fn echo(request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    Response::new(full(&format!("{path} {}", String::from_utf8_lossy(&body))))
}
