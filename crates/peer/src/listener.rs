//! The peer port: takes connections of other nodes, knows each by its certificate, and serves HTTP/2 on them.
//!
//! ```text
//! accepting ──shutdown──→ finishing: no new connections; each one ends after its requests in flight
//!                             │ all ended, or `FINISH` is over
//!                             ▼
//!                           closed
//! ```
//!
//! Who does not show a certificate of the cluster's CA gets no further than the handshake, and one line in the log.

mod connection;
mod refusals;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use http::StatusCode;
use hyper::{Request, Response, body::Incoming};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{
    connection::{Connection, Ends},
    refusals::Refusals,
};
use crate::{
    EventLoops, PeerBody,
    pki::Identity,
    port::{Bounds, Port, prepare},
    tls::Caller,
};

/// Connections that wait in the kernel to be accepted. Enough for all nodes of a cluster that start together.
const BACKLOG: i32 = 1_024;

/// Most connections at a time, including handshakes. Room for hundreds of nodes with several connections each.
const CONNECTIONS: usize = 8_192;

/// Most connections of one address. Nodes may share one behind a gateway; strangers with one address leave room for all
/// nodes.
const PER_ADDRESS: usize = 2_048;

/// Most nodes without a certificate that are listened to at a time. Strangers can hold these places, and no others.
const JOINS: usize = 16;

/// Limit for requests in flight when the port closes. Nodes with longer requests drain before.
const FINISH: Duration = Duration::from_secs(30);

/// Longest time a peer may leave data unread or unacknowledged. Outlasts a machine that is paused or moved.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Handler of requests from other nodes.
pub trait PeerHandler: Send + Sync + 'static {
    /// Answers one request of `caller`, whose name and roles are those of its certificate. The future runs in the connection's task: what
    /// computes for long belongs elsewhere.
    fn serve(self: Arc<Self>, caller: &Caller, request: Request<Incoming>) -> BoxFuture<'static, Response<PeerBody>>;

    /// True if it issues certificates: only then nodes without one are listened to.
    fn issues(&self) -> bool {
        false
    }

    /// Answers the request of a node that has no certificate yet. Anybody may send it.
    fn join(self: Arc<Self>, request: Request<Incoming>) -> BoxFuture<'static, Response<PeerBody>> {
        drop(request);
        let mut response = Response::new(crate::full(Vec::new()));
        *response.status_mut() = StatusCode::NOT_FOUND;
        Box::pin(std::future::ready(response))
    }
}

/// The port, before it takes connections.
#[derive(Debug)]
pub struct PeerListener {
    listener: std::net::TcpListener,
    identity: Identity,
    loops: Option<EventLoops>,
}

impl PeerListener {
    /// Takes the address, so that a failure is told before anything runs.
    ///
    /// # Errors
    /// The address cannot be had; the error names it.
    pub fn bind(address: SocketAddr, identity: Identity) -> io::Result<Self> {
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("cannot listen for other nodes on {address}: {error}"))
        };
        let bind = || {
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
            // A restart must not wait for the old process's connections to be forgotten.
            socket.set_reuse_address(true)?;
            socket.set_nonblocking(true)?;
            socket.bind(&address.into())?;
            socket.listen(BACKLOG)?;
            Ok(std::net::TcpListener::from(socket))
        };
        Ok(Self { listener: bind().map_err(named)?, identity, loops: None })
    }

    /// Serves its connections on these loops, not in the runtime in which it runs.
    #[must_use]
    pub fn on(self, loops: EventLoops) -> Self {
        Self { loops: Some(loops), ..self }
    }

    /// The address that it has: the port is known where 0 was asked for.
    ///
    /// # Errors
    /// The system does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `shutdown`, then lets requests in flight end. Meanwhile it also takes up changed certificates
    /// ([`Identity::follow`]), for what is dialled as well.
    ///
    /// # Errors
    /// The socket cannot be used in this runtime.
    pub async fn run(self, handler: Arc<dyn PeerHandler>, shutdown: CancellationToken) -> io::Result<()> {
        let Self { listener, identity, loops } = self;
        let listener = TcpListener::from_std(listener)?;
        let connections = TaskTracker::new();
        let port = Port::new("peer", listener, Bounds { connections: CONNECTIONS, per_address: PER_ADDRESS });
        let ends = Ends { stopping: shutdown.clone(), cut: CancellationToken::new() };
        let (refusals, joins) = (Arc::new(Refusals::default()), Arc::new(Semaphore::new(JOINS)));
        let follower = {
            let (identity, shutdown) = (identity.clone(), shutdown.clone());
            async move { identity.follow(&shutdown).await }
        };
        connections.spawn(follower);
        while let Some((stream, from, place)) = shutdown.run_until_cancelled(port.accept()).await {
            prepare(&stream, UNREAD_TIMEOUT);
            let (identity, handler, ends) = (identity.clone(), Arc::clone(&handler), ends.clone());
            let (refusals, joins) = (Arc::clone(&refusals), Arc::clone(&joins));
            let tracked = connections.token();
            let serve = move |stream| async move {
                let _held = (place, tracked);
                Connection { stream, from, identity, handler, ends, refusals, joins }.serve().await;
            };
            match &loops {
                None => drop(connections.spawn(serve(stream))),
                Some(loops) => match loops.adopt(stream, serve) {
                    Ok(()) => {}
                    Err(error) => tracing::warn!(event = "peer_connection_lost", %error),
                },
            }
        }
        drop(port);
        connections.close();
        if tokio::time::timeout(FINISH, connections.wait()).await.is_err() {
            tracing::warn!(
                event = "peer_requests_cut",
                connections = connections.len(),
                "requests of other nodes did not end in time; closing their connections"
            );
            ends.cut.cancel();
            connections.wait().await;
        }
        Ok(())
    }
}
