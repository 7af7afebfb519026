//! One connection of another node with all its requests, as one task.
//!
//! ```text
//! handshake ──refused, or too slow──→ ended
//!    │ named by its certificate
//! serving ──stop──→ finishing: takes no new requests, ends after those in flight
//!    │ the peer is done, or cut          │
//!    └──────────────→ ended ←────────────┘
//! ```

use std::{
    convert::Infallible,
    future::poll_fn,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use hyper::{
    Request, Response,
    body::Incoming,
    server::conn::http2,
    service::{Service, service_fn},
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::server::Acceptor;
use tokio::{io::BufReader, net::TcpStream, sync::Semaphore, time::timeout};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;

use super::{
    PeerHandler,
    refusals::{Kind, Refusal, Refusals},
};
use crate::{
    PeerBody,
    http2::{StreamSpawner, Streams, WriteBuffer},
    joining::{self, DialledFrom},
    peer::window,
    pki::Identity,
    tls::{self, Caller},
};

/// Limit for a handshake. Allows for far or busy nodes.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Limit for a node without a certificate to ask and be answered. Longer than a CA key in a token may take.
const JOINED: Duration = Duration::from_secs(40);

/// The longest head of its request.
const JOIN_HEADERS: u32 = 8 << 10;

/// Most requests at a time on one connection. Bounds memory; the handler limits the work.
const STREAMS: u32 = 4_096;

/// Interval between pings on an idle connection, and the limit for the answer. Finds remains of vanished peers; the
/// dialler pings more often.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Signals that end a connection.
#[derive(Clone)]
pub(super) struct Ends {
    /// Take no more requests.
    pub(super) stopping: CancellationToken,
    /// Ends the connection now.
    pub(super) cut: CancellationToken,
}

/// A connection that was accepted and has no handshake yet.
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) from: SocketAddr,
    pub(super) identity: Identity,
    pub(super) handler: Arc<dyn PeerHandler>,
    pub(super) ends: Ends,
    pub(super) refusals: Arc<Refusals>,
    /// Places for nodes that have no certificate yet.
    pub(super) joins: Arc<Semaphore>,
}

impl Connection {
    /// Serves it to its end. What goes wrong ends this connection and nothing else.
    pub(super) async fn serve(self) {
        let Self { stream, from, identity, handler, ends, refusals, joins } = self;
        let may_join = handler.issues();
        let established =
            ends.stopping.run_until_cancelled(timeout(HANDSHAKE_TIMEOUT, handshake(stream, &identity, may_join))).await;
        let (stream, caller) = match established {
            None => return,
            Some(Ok(Ok(Established::Node(stream, caller)))) => (*stream, caller),
            Some(Ok(Ok(Established::Joining(stream)))) => {
                return match joins.try_acquire() {
                    Ok(_place) => join(*stream, DialledFrom(from.ip()), handler).await,
                    Err(_) => {
                        let busy = Refusal::new(Kind::Joining, "too many nodes join at once: it tries again");
                        refusals.tell(from, &busy);
                    }
                };
            }
            Some(Ok(Err(refusal))) => return refusals.tell(from, &refusal),
            Some(Err(_)) => {
                let slow = format!("it did not finish the handshake within {HANDSHAKE_TIMEOUT:?}");
                return refusals.tell(from, &Refusal::new(Kind::Slow, slow));
            }
        };
        // A child: what cuts all connections cuts it, too.
        let ends = Ends { cut: ends.cut.child_token(), ..ends };
        let _open = identity.opened(&caller, &ends.cut);
        if let Err(error) = run(stream, &caller, handler, ends).await {
            tracing::debug!(event = "peer_line_broke", %error, %caller, "a peer's line ended early");
        }
    }
}

/// A connection after its handshake, by its other end.
enum Established {
    /// A node with a certificate of the cluster.
    Node(Box<TlsStream<BufReader<TcpStream>>>, Caller),
    /// A node that has no certificate yet.
    Joining(Box<TlsStream<BufReader<TcpStream>>>),
}

async fn handshake(stream: TcpStream, identity: &Identity, may_join: bool) -> Result<Established, Refusal> {
    let stream = BufReader::with_capacity(window::READ, stream);
    let hello = LazyConfigAcceptor::new(Acceptor::default(), stream).await.map_err(|error| Refusal::of(&error))?;
    let joins = hello.client_hello().server_name() == Some(joining::SERVER_NAME);
    if joins && !may_join {
        let why = "it wants to join, and this node issues no certificates: --authority makes it do so";
        return Err(Refusal::new(Kind::Joining, why));
    }
    let current = identity.current();
    let config = if joins { &current.joining } else { &current.server };
    let stream = hello.into_stream(Arc::clone(config)).await.map_err(|error| Refusal::of(&error))?;
    if joins {
        return Ok(Established::Joining(Box::new(stream)));
    }
    let caller = tls::caller(stream.get_ref().1.peer_certificates());
    let caller = caller.map_err(|why| Refusal::new(Kind::Nameless, why))?;
    Ok(Established::Node(Box::new(stream), caller))
}

/// Answers one request of a node that has no certificate yet.
async fn join(stream: TlsStream<BufReader<TcpStream>>, from: DialledFrom, handler: Arc<dyn PeerHandler>) {
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(from);
        let answer = Arc::clone(&handler).join(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let served = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(1)
        .max_header_list_size(JOIN_HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(JOINED, served).await {
        Ok(Err(error)) => tracing::debug!(event = "join_broke", %error),
        Ok(Ok(())) => {}
        Err(_) => tracing::debug!(event = "join_too_slow"),
    }
}

/// Hands requests to the handler. Spelled out: as a closure it is too general for the compiler to see that its futures
/// may change threads.
struct Serving {
    caller: Caller,
    handler: Arc<dyn PeerHandler>,
}

impl Service<Request<Incoming>> for Serving {
    type Response = Response<PeerBody>;
    type Error = Infallible;
    type Future = Answering;

    fn call(&self, request: Request<Incoming>) -> Answering {
        Answering(Arc::clone(&self.handler).serve(&self.caller, request))
    }
}

struct Answering(BoxFuture<'static, Response<PeerBody>>);

impl Future for Answering {
    type Output = Result<Response<PeerBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx).map(Ok)
    }
}

async fn run(
    stream: TlsStream<BufReader<TcpStream>>,
    caller: &Caller,
    handler: Arc<dyn PeerHandler>,
    ends: Ends,
) -> Result<(), hyper::Error> {
    let service = Serving { caller: caller.clone(), handler };
    let (begun, held) = (StreamSpawner::default(), WriteBuffer::new(stream));
    let mut connection = pin!(
        http2::Builder::new(begun.clone())
            .timer(TokioTimer::new())
            .initial_stream_window_size(window::STREAM)
            .initial_connection_window_size(window::CONNECTION)
            .max_frame_size(window::FRAME)
            .max_send_buf_size(window::SEND_BUFFER)
            .max_pending_accept_reset_streams(window::CANCELLED)
            .max_local_error_reset_streams(None)
            .max_concurrent_streams(STREAMS)
            .max_header_list_size(window::HEADERS)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT)
            .serve_connection(TokioIo::new(held.clone()), service)
    );
    let mut streams = Streams::new(begun);
    let mut stopping = pin!(ends.stopping.cancelled());
    let mut cut = pin!(ends.cut.cancelled());
    let mut stopped = false;
    let turn = |cx: &mut Context<'_>| {
        if cut.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        if !stopped && stopping.as_mut().poll(cx).is_ready() {
            stopped = true;
            connection.as_mut().graceful_shutdown();
        }
        let ended = streams.poll(connection.as_mut(), cx);
        // The head of an answer, its body and its end leave in one write, and wake the gateway once.
        held.send(cx);
        ended
    };
    poll_fn(turn).await
}
