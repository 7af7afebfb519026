//! Connections to a runtime for requests, one for each thread that serves some: a request changes no thread on its way.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, PoisonError, RwLock},
    thread::ThreadId,
    time::Duration,
};

use berth_mesh::exchange;
use berth_peer::{
    http2::{Line, Slot, Unsent, liveness},
    port::ReadAhead,
};
use bytes::Bytes;
use http::{Request, Response, Uri, uri::Scheme};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixStream,
    time::timeout,
};
use tokio_util::task::TaskTracker;

use super::{
    address::{Address, CONNECT, Transport, WINDOW},
    head,
};

/// Threads that have one at once. There are as many as cores; those of threads that ended are let go of beyond this.
const MAX_THREADS: usize = 256;

/// The largest frame that is taken. The minimum of 16 KiB cuts a tensor of some megabytes into hundreds of pieces.
const FRAME: u32 = 256 << 10;

/// The longest head, and the longest trailers, that are read: a status may repeat a part of the request. What is longer by far ends the connection
/// with all its calls; 64 KiB are passed on.
const HEADERS: u32 = 16 << 20;

/// Requests that may be cancelled at about the same time: a gateway's clients that go away. By default a few such end a connection.
const CANCELLED: usize = 4_096;

/// A message of gRPC without fields.
const EMPTY: Bytes = Bytes::from_static(&[0; 5]);

/// Reason why a health check failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum HealthCheckError {
    /// Refuses connections, or breaks them.
    #[error(transparent)]
    Unreached(#[from] io::Error),
    /// Takes connections, and answers nothing.
    #[error("it takes connections, and does not answer within {} s", after.as_secs_f64())]
    Silent {
        /// The time that was waited.
        after: Duration,
    },
}

/// Reason why a runtime did not answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// Nothing was received, or the runtime says that it did not look at it.
    #[error(transparent)]
    Unreached(io::Error),
    /// Unknown outcome: the request may have been run.
    #[error(transparent)]
    Broken(hyper::Error),
}

/// The connections. Each is made when it is first used, and again when it broke.
pub(super) struct ThreadConnections {
    address: Address,
    by_thread: RwLock<HashMap<ThreadId, Arc<Slot<exchange::Body>>>>,
    /// Each ends with its connection, so nobody waits for them.
    tasks: TaskTracker,
}

impl ThreadConnections {
    pub(super) fn new(address: Address) -> Self {
        Self { address, by_thread: RwLock::default(), tasks: TaskTracker::new() }
    }

    /// Sends a request of which the path alone counts. One that a connection gave back untouched goes over a new one, once.
    /// Must be called within a runtime of tokio.
    pub(super) async fn send(&self, mut request: Request<exchange::Body>) -> Result<Response<Incoming>, Failure> {
        self.name_server(&mut request).map_err(Failure::Unreached)?;
        let slot = self.here();
        for last in [false, true] {
            let line = slot.line(self.connect()).await.map_err(Failure::Unreached)?;
            match line.send(request).await {
                Ok(response) => return Ok(response),
                Err(Unsent::Returned { request: again, .. }) if !last => request = *again,
                Err(Unsent::Returned { error, .. }) => return Err(Failure::Unreached(io::Error::other(error))),
                Err(Unsent::Refused(error)) => return Err(Failure::Unreached(io::Error::other(error))),
                Err(Unsent::Unknown(error)) => return Err(Failure::Broken(error)),
            }
        }
        Err(Failure::Unreached(io::Error::other("no connection took it")))
    }

    /// Connects, and lets go of the connection.
    pub(super) async fn reach(&self) -> Result<(), HealthCheckError> {
        Ok(self.connect().await.map(drop)?)
    }

    /// The same, once the runtime has answered something within a time. Which answer it is does not matter.
    pub(super) async fn check(&self, after: Duration) -> Result<(), HealthCheckError> {
        let mut question = head::health(Full::new(EMPTY).map_err(|never| match never {}).boxed_unsync());
        self.name_server(&mut question)?;
        let line = self.connect().await?;
        match timeout(after, line.send(question)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(Unsent::Returned { error, .. })) => Err(io::Error::other(error).into()),
            Ok(Err(Unsent::Refused(error) | Unsent::Unknown(error))) => Err(io::Error::other(error).into()),
            Err(_) => Err(HealthCheckError::Silent { after }),
        }
    }

    /// Adds scheme and host to a request that has a path alone.
    fn name_server(&self, request: &mut Request<exchange::Body>) -> io::Result<()> {
        let mut uri = std::mem::take(request.uri_mut()).into_parts();
        (uri.scheme, uri.authority) = (Some(Scheme::HTTP), Some(self.address.authority().clone()));
        *request.uri_mut() = Uri::from_parts(uri).map_err(io::Error::other)?;
        Ok(())
    }

    fn here(&self) -> Arc<Slot<exchange::Body>> {
        let thread = std::thread::current().id();
        if let Some(slot) = self.by_thread.read().unwrap_or_else(PoisonError::into_inner).get(&thread) {
            return Arc::clone(slot);
        }
        let mut by_thread = self.by_thread.write().unwrap_or_else(PoisonError::into_inner);
        if by_thread.len() >= MAX_THREADS {
            by_thread.clear();
        }
        Arc::clone(by_thread.entry(thread).or_default())
    }

    async fn connect(&self) -> io::Result<Line<exchange::Body>> {
        let connected = async {
            match self.address.transport() {
                Transport::Socket(path) => speak(UnixStream::connect(path).await?, &self.tasks).await,
                Transport::Tcp(host) => speak(liveness::connect(host).await?, &self.tasks).await,
            }
        };
        let late = || io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {} s", CONNECT.as_secs()));
        timeout(CONNECT, connected).await.unwrap_or_else(|_| Err(late()))
    }
}

async fn speak(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    tasks: &TaskTracker,
) -> io::Result<Line<exchange::Body>> {
    // Most servers send frames of 16 KiB.
    let opened = Line::open(ReadAhead::new(stream), |settings| {
        settings
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(2 * WINDOW)
            .max_frame_size(FRAME)
            .max_header_list_size(HEADERS)
            .max_concurrent_reset_streams(CANCELLED);
    });
    let (line, runs) = opened.await.map_err(io::Error::other)?;
    tasks.spawn(async move {
        if let Err(error) = runs.await {
            tracing::debug!(event = "runtime_connection_ended", %error, "a connection to a runtime ended");
        }
    });
    Ok(line)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use tokio::task::JoinSet;

    use super::*;
    use crate::scripted::{self, Listen, Server};

    const ANSWER: Duration = Duration::from_secs(10);

    fn to(port: u16) -> ThreadConnections {
        ThreadConnections::new(Address::port(port))
    }

    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_takes_connections_and_answers_nothing_is_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let connections = to(listener.local_addr().expect("bound").port());
        assert!(connections.reach().await.is_ok());
        let silent = connections.check(ANSWER).await;
        assert!(matches!(silent, Err(HealthCheckError::Silent { .. })), "{silent:?}");
        drop(listener);
        let gone = connections.check(ANSWER).await;
        assert!(matches!(gone, Err(HealthCheckError::Unreached(_))), "{gone:?}");
    }

    #[tokio::test]
    async fn a_runtime_that_does_not_know_the_question_has_answered() {
        let listen = Listen::Tcp(([127, 0, 0, 1], 0).into());
        let server = Server::bind(&listen, scripted::Settings::default()).await.expect("it listens");
        let connections = to(server.port().expect("a port"));
        let mut serving = JoinSet::new();
        serving.spawn(server.run());
        let answered = connections.check(ANSWER).await;
        assert!(answered.is_ok(), "{answered:?}");
    }
}
