//! One connection of another node with all its requests, as one task.
//!
//! ```text
//! greeting ──refused, or too slow──→ ended
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
use hyper::{Request, Response, body::Incoming, server::conn::http2, service::Service};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{io::BufReader, net::TcpStream};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;

use super::{PeerHandler, refusals::Refusals};
use crate::{
    PeerBody,
    peer::window,
    pki::Identity,
    streams::{StreamSpawner, Streams},
    tls::{self, Caller},
};

/// Limit for a handshake. Allows for far or busy nodes.
const GREET: Duration = Duration::from_secs(5);

/// Most requests at a time on one connection. Bounds memory; the handler limits the work.
const STREAMS: u32 = 4_096;

/// The longest head of a request.
const HEADERS: u32 = 64 << 10;

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

/// A connection that was accepted.
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) from: SocketAddr,
    pub(super) identity: Identity,
    pub(super) handler: Arc<dyn PeerHandler>,
    pub(super) ends: Ends,
    pub(super) refusals: Arc<Refusals>,
}

impl Connection {
    /// Serves it to its end. What goes wrong ends this connection and nothing else.
    pub(super) async fn serve(self) {
        let Self { stream, from, identity, handler, ends, refusals } = self;
        let greeted = ends.stopping.run_until_cancelled(tokio::time::timeout(GREET, greet(stream, &identity))).await;
        let (stream, caller) = match greeted {
            None => return,
            Some(Ok(Ok(greeted))) => greeted,
            Some(Ok(Err(reason))) => return refusals.tell(from, &reason),
            Some(Err(_)) => return refusals.tell(from, &format!("it did not finish the handshake within {GREET:?}")),
        };
        // A child: what cuts all connections cuts it, too.
        let ends = Ends { cut: ends.cut.child_token(), ..ends };
        let _open = identity.opened(&caller, &ends.cut);
        if let Err(error) = run(stream, &caller, handler, ends).await {
            tracing::debug!(event = "peer_line_broke", %error, %caller, "a peer's line ended early");
        }
    }
}

async fn greet(stream: TcpStream, identity: &Identity) -> Result<(TlsStream<BufReader<TcpStream>>, Caller), String> {
    let stream = BufReader::with_capacity(window::READ, stream);
    let stream =
        TlsAcceptor::from(tls::server_config(identity)).accept(stream).await.map_err(|error| tls::explain(&error))?;
    let caller = tls::caller(stream.get_ref().1.peer_certificates())?;
    Ok((stream, caller))
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
    let begun = StreamSpawner::default();
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
            .max_header_list_size(HEADERS)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service)
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
        streams.poll(connection.as_mut(), cx)
    };
    poll_fn(turn).await
}
