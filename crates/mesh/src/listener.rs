//! The port: accepts connections and serves HTTP/1.1 and HTTP/2 (prior knowledge) on them.
//!
//! ```text
//! accepting ──stopping──→ finishing: no new connections; each one ends after its requests in flight
//!                             │ all ended, or told to cut
//!                             ▼
//!                           closed
//! ```
//!
//! An error of one connection, or of accepting one, ends that connection and nothing else.

mod connection;

use std::{io, net::SocketAddr, sync::Arc, sync::atomic::Ordering::Relaxed, time::Duration};

use berth_peer::{
    EventLoops,
    port::{Activity, ConnectionPermit, Greeter, Patience, Port, PortTls, Room, prepare},
};
use hyper_util::{rt::TokioTimer, server::conn::auto};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

use crate::{config::Limits, ingress::Ingress, listener::connection::StreamExecutor, metrics::Totals};

/// Connections that wait in the kernel to be accepted: room for a burst of new clients. The kernel cuts it to its own
/// bound.
const BACKLOG: i32 = 4_096;

/// HTTP/2 flow control: the bytes that a client may send ahead, a large tensor at once.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;

/// The largest HTTP/2 frame that a client may send. With the least allowed, 16 KiB, a tensor of 48 KiB comes in four
/// pieces, which are copied together; a larger frame keeps the other streams of its connection waiting.
const MAX_FRAME_BYTES: u32 = 256 << 10;

/// The pause after which an idle HTTP/2 connection is asked for a sign of life, and the time to give it.
const PING_INTERVAL: Duration = Duration::from_secs(60);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Takes the address, so that a failure is told before anything runs.
pub(crate) fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"));
    let bind = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        // A restart must not wait for the old process's connections to be forgotten.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(std::net::TcpListener::from(socket))
    };
    bind().map_err(named)
}

/// The two ends of a listener and its connections: gentle, then at once.
#[derive(Clone, Default)]
pub(crate) struct ShutdownSignals {
    /// Cancelled to accept no more connections, and have them take no more requests and end after those that they have.
    pub(crate) stopping: CancellationToken,
    /// Cancelled to end connections with their requests.
    pub(crate) cut: CancellationToken,
}

/// The port and all its connections.
pub(crate) struct Listener {
    pub(crate) listener: TcpListener,
    pub(crate) ingress: Arc<Ingress>,
    pub(crate) totals: Arc<Totals>,
    pub(crate) limits: Limits,
    /// Room for connections, which all addresses share.
    pub(crate) room: Room,
    /// `None`: connections begin with HTTP.
    pub(crate) tls: Option<PortTls>,
    /// The threads that serve connections; `None`: those of the runtime in which it runs.
    pub(crate) loops: Option<EventLoops>,
    pub(crate) signals: ShutdownSignals,
}

impl Listener {
    /// Accepts until it is told to stop, then waits for the last connection.
    pub(crate) async fn run(self) {
        let Self { listener, ingress, totals, limits, room, tls, loops, signals } = self;
        let connections = TaskTracker::new();
        let port = Port::within("inference", listener, room).with_tls(tls);
        loop {
            let (stream, place) = tokio::select! {
                (stream, _, place) = port.accept() => (stream, place),
                () = signals.stopping.cancelled() => break,
            };
            prepare(&stream, limits.unread);
            let executor = StreamExecutor::new(Activity::new(limits.unread, totals.unread.clone()));
            let connection = Connection {
                greeter: port.greeter(),
                http: builder(&limits, executor.clone()),
                executor,
                patience: Patience { first: limits.first_request, idle: limits.idle },
                ingress: Arc::clone(&ingress),
                totals: Arc::clone(&totals),
                signals: signals.clone(),
                _held: (place, connections.token()),
            };
            match &loops {
                None => drop(connections.spawn(connection.serve(stream))),
                Some(loops) => {
                    if let Err(error) = loops.adopt(stream, |stream| connection.serve(stream)) {
                        tracing::warn!(%error, "a connection is lost");
                    }
                }
            }
        }
        drop(port);
        connections.close();
        connections.wait().await;
    }
}

/// Serves one connection.
struct Connection {
    greeter: Greeter,
    http: auto::Builder<StreamExecutor>,
    executor: StreamExecutor,
    patience: Patience,
    ingress: Arc<Ingress>,
    totals: Arc<Totals>,
    signals: ShutdownSignals,
    /// Held as long as the connection is served: it counts until then.
    _held: (ConnectionPermit, TaskTrackerToken),
}

impl Connection {
    async fn serve(self, stream: TcpStream) {
        let Self { greeter, http, executor, patience, ingress, totals, signals, _held } = self;
        let _open = OpenConnection::new(&totals);
        let client = stream.peer_addr().ok().map(|address| address.ip());
        // A port that stops waits for requests, and there is none yet.
        let greeting = greeter.greet(stream, patience);
        let Some(Some(greeted)) = signals.stopping.run_until_cancelled(greeting).await else { return };
        if let Err(error) = connection::serve(http, executor, greeted, client, ingress, signals).await {
            tracing::debug!(%error, "a connection ended early");
        }
    }
}

/// Counts an open connection.
struct OpenConnection<'a>(&'a Totals);

impl<'a> OpenConnection<'a> {
    fn new(totals: &'a Totals) -> Self {
        totals.connections.fetch_add(1, Relaxed);
        Self(totals)
    }
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}

fn builder(limits: &Limits, executor: StreamExecutor) -> auto::Builder<StreamExecutor> {
    let mut builder = auto::Builder::new(executor);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_idle)
        .max_buf_size(limits.headers.max(8 << 10));
    // Not `pipeline_flush`: hyper then holds an answer back while unread input is left, and the answer to a malformed
    // or refused request is never sent.
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_frame_size(MAX_FRAME_BYTES)
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(u32::try_from(limits.headers).unwrap_or(u32::MAX))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    builder
}
