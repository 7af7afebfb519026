//! A bare proxy: takes HTTP/1.1 and HTTP/2 and sends every request on over one of a few HTTP/2 connections, body untouched. It
//! looks at nothing, balances nothing and retries nothing: the least that a hop can cost with this HTTP library.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::Result;
use hyper::{Request, body::Incoming, client::conn::http2::SendRequest, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{net::TcpStream, task::JoinSet};

/// Connections to the server behind: as many as Berth holds.
const LINES: usize = 4;

/// Windows that do not hold tensors up: as Berth's.
const WINDOW: u32 = 1 << 20;

/// Serves until it is killed.
pub(crate) async fn serve(address: SocketAddr, behind: SocketAddr) -> Result<()> {
    let mut drivers = JoinSet::new();
    let mut lines: Vec<SendRequest<Incoming>> = Vec::new();
    for _ in 0..LINES {
        let stream = TcpStream::connect(behind).await?;
        stream.set_nodelay(true)?;
        let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).initial_stream_window_size(WINDOW).initial_connection_window_size(8 * WINDOW);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        drivers.spawn(connection);
        lines.push(sender);
    }
    let lines: Arc<[SendRequest<Incoming>]> = lines.into();
    let turn = Arc::new(AtomicUsize::new(0));
    let listener = tokio::net::TcpListener::bind(address).await?;
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (lines, turn) = (Arc::clone(&lines), Arc::clone(&turn));
        let service = service_fn(move |mut request: Request<Incoming>| {
            let mut line = lines[turn.fetch_add(1, Ordering::Relaxed) % lines.len()].clone();
            async move {
                let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
                let uri = format!("http://{behind}{path}").parse().unwrap_or_default();
                *request.uri_mut() = uri;
                *request.version_mut() = http::Version::HTTP_2;
                request.headers_mut().remove(http::header::HOST);
                request.headers_mut().remove(http::header::CONNECTION);
                let mut response = line.send_request(request).await?;
                *response.version_mut() = http::Version::HTTP_11;
                Ok::<_, hyper::Error>(response)
            }
        });
        connections.spawn(async move {
            let mut builder = auto::Builder::new(TokioExecutor::new());
            builder.http2().initial_stream_window_size(WINDOW).initial_connection_window_size(8 * WINDOW);
            builder.serve_connection(TokioIo::new(stream), service).await.ok();
            Ok::<_, Infallible>(())
        });
    }
}
