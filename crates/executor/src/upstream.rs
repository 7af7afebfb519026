//! Connections to the model server.
//!
//! ```text
//! HTTP/1.1: an idle connection, else a new one ──▶ request ──▶ answer ──▶ its body ends ──▶ idle
//! HTTP/2:   a few connections for all, in turn
//! ```
//! A request that a connection has not taken (it had just been closed) goes to the next one: nothing of it was sent. While the
//! server restarts nobody listens, and a request waits for that, up to a limit.

mod secure;

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_peer::{
    http2::{Line, Slot, Unsent, liveness},
    port::ServerStream,
};
use http::{Request, Response, Version, uri::Scheme};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::task::TaskTracker;

use self::secure::Secure;
pub(crate) use self::secure::UpstreamTls;
use crate::{body::Body, tls};

/// Idle connections that are kept: as many as busy clients of one pod use at once.
const MOST_IDLE: usize = 512;

/// Connections of HTTP/2, used in turn: one would be read and written by one thread at a time.
const LINES: usize = 4;

/// Requests of one connection that may be cancelled at about the same time: clients that go away. By default a few such end it.
const CANCELLED: usize = 1_024;

/// The longest head, and the longest trailers, of an answer of HTTP/2. What is longer by far ends the connection with all its requests.
const HEADERS: u32 = 16 << 20;

/// Pause between two attempts to connect: a server that restarts is found as soon as it listens, and a refusal costs
/// little.
const CONNECT_AGAIN: Duration = Duration::from_millis(50);

/// HTTP/2 flow control, as on the executor's own ports.
pub(crate) const STREAM_WINDOW: u32 = 1 << 20;
pub(crate) const CONNECTION_WINDOW: u32 = 8 << 20;

/// A model server.
pub(crate) struct Upstream {
    address: String,
    secure: Option<Secure>,
    idle: Mutex<Vec<http1::SendRequest<Body>>>,
    shared: [Slot<Body>; LINES],
    turn: AtomicUsize,
    /// Each ends with what is sent on it, so nobody waits for them.
    connections: TaskTracker,
}

/// Reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    /// No connection in time.
    #[error(transparent)]
    Unreachable(io::Error),
    /// The server says that it did not look at the request.
    #[error(transparent)]
    Refused(hyper::Error),
    /// The connection broke: the request may have been run.
    #[error(transparent)]
    Broken(hyper::Error),
}

impl<B> From<Unsent<B>> for UpstreamError {
    fn from(unsent: Unsent<B>) -> Self {
        match unsent {
            Unsent::Returned { error, .. } => Self::Unreachable(io::Error::other(error)),
            Unsent::Refused(error) => Self::Refused(error),
            Unsent::Unknown(error) => Self::Broken(error),
        }
    }
}

/// A connection that is used by an answer whose body has not ended.
pub(crate) struct Lease {
    upstream: Arc<Upstream>,
    sender: http1::SendRequest<Body>,
}

impl Lease {
    /// The body has ended: the next request may have the connection.
    pub(crate) fn give_back(self) {
        let Self { upstream, sender } = self;
        let mut idle = upstream.idle();
        if !sender.is_closed() && idle.len() < MOST_IDLE {
            idle.push(sender);
        }
    }
}

impl Upstream {
    /// A server at an address. Reads the files of TLS; blocking then.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub(crate) fn open(address: &str, tls: Option<&UpstreamTls>) -> Result<Arc<Self>, String> {
        Ok(Arc::new(Self {
            address: address.to_owned(),
            secure: tls.map(|tls| Secure::open(tls, address)).transpose()?,
            idle: Mutex::default(),
            shared: Default::default(),
            turn: AtomicUsize::new(0),
            connections: TaskTracker::new(),
        }))
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The scheme of what is sent to it.
    pub(crate) fn scheme(&self) -> Scheme {
        if self.secure.is_some() { Scheme::HTTPS } else { Scheme::HTTP }
    }

    /// Sends a request of HTTP/1.1 or HTTP/2, by its version. A lease is given for connections that carry one request at a time.
    pub(crate) async fn send(
        self: &Arc<Self>,
        mut request: Request<Body>,
        connect: Duration,
    ) -> Result<(Response<Incoming>, Option<Lease>), UpstreamError> {
        let until = Instant::now() + connect;
        if request.version() == Version::HTTP_2 {
            return Ok((self.send_http2(request, until).await?, None));
        }
        loop {
            let mut sender = self.own(until).await?;
            let mut failed = match sender.try_send_request(request).await {
                Ok(response) => return Ok((response, Some(Lease { upstream: Arc::clone(self), sender }))),
                Err(failed) => failed,
            };
            match failed.take_message() {
                // There may be many such; each is gone now.
                Some(unsent) if Instant::now() < until => request = unsent,
                _ => return Err(UpstreamError::Broken(failed.into_error())),
            }
        }
    }

    /// Sends a request of HTTP/2. What a connection that had just closed gives back goes to another one, at once the first time: a server
    /// that closes each is not asked without a pause.
    async fn send_http2(
        &self,
        mut request: Request<Body>,
        until: Instant,
    ) -> Result<Response<Incoming>, UpstreamError> {
        let mut pauses = false;
        loop {
            request = match self.shared(until).await?.send(request).await {
                Ok(response) => return Ok(response),
                Err(Unsent::Returned { request, .. }) if !pauses || Instant::now() + CONNECT_AGAIN < until => *request,
                Err(unsent) => return Err(unsent.into()),
            };
            if std::mem::replace(&mut pauses, true) {
                sleep(CONNECT_AGAIN).await;
            }
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<http1::SendRequest<Body>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn own(&self, until: Instant) -> Result<http1::SendRequest<Body>, UpstreamError> {
        loop {
            // The youngest first: the oldest ones then end by themselves.
            let Some(mut sender) = self.idle().pop() else { break };
            if let Ok(Ok(())) = timeout_at(until, sender.ready()).await {
                return Ok(sender);
            }
        }
        let stream = self.connect(until, Version::HTTP_11).await.map_err(UpstreamError::Unreachable)?;
        self.begin(stream).await
    }

    async fn shared(&self, until: Instant) -> Result<Line<Body>, UpstreamError> {
        let slot = &self.shared[self.turn.fetch_add(1, Relaxed) % LINES];
        loop {
            let connect = async { self.begin_http2(self.connect(until, Version::HTTP_2).await?).await };
            match slot.line(connect).await {
                Ok(line) => return Ok(line),
                // It may be that of one who came before, and whose time is over.
                Err(error) if Instant::now() + CONNECT_AGAIN >= until => return Err(UpstreamError::Unreachable(error)),
                Err(_) => sleep(CONNECT_AGAIN).await,
            }
        }
    }

    async fn begin_http2(&self, stream: ServerStream) -> io::Result<Line<Body>> {
        let opened = Line::open(stream, |settings| {
            settings
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .max_header_list_size(HEADERS)
                .max_concurrent_reset_streams(CANCELLED);
        });
        let (line, runs) = opened.await.map_err(io::Error::other)?;
        // Its errors reach whoever waits for an answer on it.
        self.connections.spawn(async move { runs.await.ok() });
        Ok(line)
    }

    /// A connection of HTTP/2 for one question.
    pub(crate) async fn aside_http2(&self) -> Result<Line<Body>, UpstreamError> {
        let line = async { self.begin_http2(self.connect_once(Version::HTTP_2).await?).await };
        line.await.map_err(UpstreamError::Unreachable)
    }

    /// A connection of HTTP/1.1 for one question.
    pub(crate) async fn aside(&self) -> Result<http1::SendRequest<Body>, UpstreamError> {
        let stream = self.connect_once(Version::HTTP_11).await.map_err(UpstreamError::Unreachable)?;
        self.begin(stream).await
    }

    async fn begin(&self, stream: ServerStream) -> Result<http1::SendRequest<Body>, UpstreamError> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(UpstreamError::Broken)?;
        // Its errors reach whoever waits for an answer on it.
        self.connections.spawn(async move { connection.with_upgrades().await.ok() });
        Ok(sender)
    }

    /// Connects, once, for a version of HTTP.
    pub(crate) async fn connect_once(&self, version: Version) -> io::Result<ServerStream> {
        let stream = tls::connect(&self.address).await?;
        // Many requests share it, and would all wait for a machine that has gone: it ends sooner than a connection of HTTP/1.1, which has
        // one request at a time.
        if version == Version::HTTP_2 {
            liveness::end_when_silent(&stream);
        }
        match &self.secure {
            Some(secure) => secure.handshake(stream, version).await,
            None => Ok(ServerStream::Plain(stream)),
        }
    }

    /// Connects, again and again while nobody listens.
    async fn connect(&self, until: Instant, version: Version) -> io::Result<ServerStream> {
        loop {
            let late = || io::Error::new(io::ErrorKind::TimedOut, "no connection in time");
            let error = match timeout_at(until, self.connect_once(version)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => error,
                Err(_) => late(),
            };
            if Instant::now() + CONNECT_AGAIN >= until {
                return Err(error);
            }
            sleep(CONNECT_AGAIN).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use socket2::SockRef;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_connection_that_requests_share_ends_soon_when_its_machine_is_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let upstream = Upstream::open(&address, None).expect("it has no files");
        for (version, shared) in [(Version::HTTP_2, true), (Version::HTTP_11, false)] {
            let stream = upstream.connect_once(version).await.expect("connected");
            let ServerStream::Plain(stream) = stream else { panic!("nobody asked for TLS") };
            let quiet = SockRef::from(&stream).tcp_keepalive_time().expect("a setting");
            assert_eq!(quiet == liveness::KEEPALIVE_IDLE, shared, "{version:?}: {quiet:?}");
        }
    }
}
