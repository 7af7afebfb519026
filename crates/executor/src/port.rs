//! A port for clients: HTTP/1.1 with upgrades, and HTTP/2 (prior knowledge).
//!
//! ```text
//! accepting ──stop──→ finishing: no new connections; each one ends after its requests in flight
//!                         │ all ended, or cut
//!                         ▼
//!                       closed
//! ```

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use berth_peer::port::{Activity, ClientStream, Counting, Inactivity, Paced, Patience, Port, PortTls, Room, prepare};
use hyper::{Request, Version, body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto,
};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{net::TcpListener, sync::Notify};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    proxy::{Client, Proxy},
    tls,
    upstream::STREAM_WINDOW,
    window::{Window, Windows},
};

/// Connections that wait in the kernel to be accepted: room for a burst of new clients.
const BACKLOG: i32 = 4_096;

/// The most streams of one HTTP/2 connection: a proxy before the executor sends all its requests over a few
/// connections, and a single client with more has its requests wait at its own side.
const STREAMS: u32 = 1_024;

/// Largest head of a request of HTTP/1.1. What is read at once of its body is as much.
const HEAD_BYTES: usize = 64 << 10;

/// Largest headers of a request of HTTP/2, as HPACK counts them.
const HEADER_LIST: u32 = 32 << 10;

/// Longest wait for the head of a request on a connection of HTTP/1.1, also between two requests.
const HEAD: Duration = Duration::from_secs(75);

/// Longest silences of a connection.
const PATIENCE: Patience = Patience { first: Duration::from_secs(75), idle: Duration::from_secs(3_600) };

/// Longest time that a client may leave data unread: networks that fail come back sooner.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(120);

/// Pause after which an idle HTTP/2 connection is asked for a sign of life, and the time to give it.
const PING_EVERY: Duration = Duration::from_secs(60);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Takes the address, so that a failure is told before anything changes.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"));
    let bind = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        // A restart must not wait for the old process's connections to be forgotten.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        TcpListener::from_std(socket.into())
    };
    bind().map_err(named)
}

/// When the connections of a port end.
#[derive(Clone, Default)]
pub(crate) struct Shutdown {
    /// Take no more requests.
    pub(crate) stopping: CancellationToken,
    /// End now.
    pub(crate) cut: CancellationToken,
    /// Told to the connections that there are: end after the requests in flight. Others may come.
    pub(crate) leave: Arc<Notify>,
}

/// Accepts until it is told to stop, then waits for the last connection. Room and windows are those of all ports.
pub(crate) async fn run(
    listener: TcpListener,
    tls: Option<PortTls>,
    proxy: Arc<Proxy>,
    shutdown: Shutdown,
    room: Room,
    windows: Arc<Windows>,
) {
    let secure = tls.is_some();
    let port = Port::within("executor", listener, room).with_tls(tls);
    let connections = TaskTracker::new();
    while let Some((stream, from, place)) = shutdown.stopping.run_until_cancelled(port.accept()).await {
        prepare(&stream, UNREAD_TIMEOUT);
        // A WebSocket may rest for hours; one whose client has gone would count as in flight for ever.
        tls::keep_alive(&stream);
        let (greeter, proxy, shutdown, windows) =
            (port.greeter(), Arc::clone(&proxy), shutdown.clone(), Arc::clone(&windows));
        connections.spawn(async move {
            let _place = place;
            if let Some(greeted) = greeter.greet(stream, PATIENCE).await {
                let client = Client { from: from.ip(), certificate: greeted.certificate, secure };
                serve(greeted.stream, windows.take(), greeted.patience, client, proxy, shutdown).await;
            }
        });
    }
    drop(port);
    connections.close();
    connections.wait().await;
}

async fn serve(
    stream: ClientStream,
    window: Window,
    patience: Patience,
    client: Client,
    proxy: Arc<Proxy>,
    shutdown: Shutdown,
) {
    let activity = Activity::new(UNREAD_TIMEOUT, proxy.metrics().unread(proxy.name(), "answer"));
    let mut builder = auto::Builder::new(Counting(activity.clone()));
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEADER_LIST)
        .initial_stream_window_size(STREAM_WINDOW.min(window.bytes()))
        .initial_connection_window_size(window.bytes())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT);
    let (silence, unread) = (activity.clone().silence(patience), activity.clone().unread_still());
    let client = Arc::new(client);
    let service = service_fn(move |request: Request<Incoming>| {
        activity.request();
        let (proxy, client, version) = (Arc::clone(&proxy), Arc::clone(&client), request.version());
        if version != Version::HTTP_2 {
            window.release();
        }
        async move {
            let answer = proxy.serve(request, &client).await;
            Ok::<_, Infallible>(answer.map(|body| Paced::new(body, version)))
        }
    });
    let mut connection = std::pin::pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
    let mut silence = std::pin::pin!(silence);
    let mut unread = std::pin::pin!(unread);
    let (mut finishing, mut silent) = (false, false);
    loop {
        tokio::select! {
            // A client that breaks off ends its connection and nothing else.
            ended = connection.as_mut() => break drop(ended),
            () = shutdown.cut.cancelled() => break,
            () = shutdown.stopping.cancelled(), if !finishing => {
                finishing = true;
                connection.as_mut().graceful_shutdown();
            }
            () = shutdown.leave.notified(), if !finishing => connection.as_mut().graceful_shutdown(),
            inactivity = silence.as_mut(), if !silent => {
                silent = true;
                match inactivity {
                    Inactivity::NoRequest => break,
                    Inactivity::Idle | Inactivity::Unread => connection.as_mut().graceful_shutdown(),
                }
            }
            () = unread.as_mut(), if silent => break,
        }
    }
}
