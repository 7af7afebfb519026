//! One line: an HTTP/2 connection and its task.
//!
//! ```text
//! open ──the peer says that it goes (GOAWAY)──→ finishing: takes no new requests, ends after those in flight
//!   │ broken, a ping unanswered, or cut             │
//!   └──────────────────→ closed ←───────────────────┘
//! ```
//!
//! The task runs the connection and everything that hyper begins on it. A request crosses from the caller's task to
//! this one and back, and no other.

use std::{
    future::poll_fn,
    io,
    pin::pin,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
    task::Context,
    time::Duration,
};

use http::{Request, Response};
use hyper::{
    body::Incoming,
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::{Dialer, held::Held, window};
use crate::{
    BoxError, PeerBody,
    pki::OpenConnection,
    streams::{StreamSpawner, Streams},
};

/// The longest head of an answer.
const HEADERS: u32 = 64 << 10;

/// Reason why a request has no answer.
pub(super) enum Unsent {
    /// The line did not touch it.
    Returned { request: Box<Request<PeerBody>>, error: BoxError },
    /// The peer says that it did not look at it.
    Refused(BoxError),
    /// Unknown outcome.
    Unknown(BoxError),
}

/// The entrance of a line for requests, for as long as it takes any.
///
/// hyper takes them through a channel of tokio's. A value that is being put in while the other end goes may come after the
/// last look into it: then it lies there until the last sender is gone, and that is who waits for its answer. Hence a lock,
/// which nobody waits for while the line is open: the end comes when nobody is putting anything in, and what is in is given
/// back.
struct Entry(RwLock<Option<SendRequest<PeerBody>>>);

impl Entry {
    fn read(&self) -> RwLockReadGuard<'_, Option<SendRequest<PeerBody>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes the entry, before the connection is dropped.
struct Closes(Arc<Entry>);

impl Drop for Closes {
    fn drop(&mut self) {
        self.0.0.write().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// A line that takes requests.
pub(super) struct Line {
    entry: Arc<Entry>,
    /// Time that connecting took: one round trip.
    pub(super) connected_in: Duration,
}

impl Line {
    /// Speaks HTTP/2 on a connection that the peer has taken, in a task of its own.
    pub(super) async fn open<S>(
        stream: S,
        connected_in: Duration,
        dialer: &Dialer,
        (cut, open): (CancellationToken, OpenConnection),
    ) -> io::Result<Self>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (begun, held) = (StreamSpawner::default(), Held::new(stream));
        let (sender, connection) = http2::Builder::new(begun.clone())
            .timer(TokioTimer::new())
            .initial_stream_window_size(window::STREAM)
            .initial_connection_window_size(window::CONNECTION)
            .max_frame_size(window::FRAME)
            .max_header_list_size(HEADERS)
            .max_send_buf_size(window::SEND_BUFFER)
            .max_concurrent_reset_streams(window::CANCELLED)
            .max_local_error_reset_streams(None)
            .keep_alive_interval(dialer.policy.ping_every)
            .keep_alive_timeout(dialer.policy.ping_timeout)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(held.clone()))
            .await
            .map_err(io::Error::other)?;
        let entry = Arc::new(Entry(RwLock::new(Some(sender))));
        let closes = Closes(Arc::clone(&entry));
        let task = async move {
            let _open = open;
            let mut streams = Streams::new(begun);
            let ended = {
                let mut connection = pin!(connection);
                // Dropped before it, also where the task is.
                let _closes = closes;
                let turn = |cx: &mut Context<'_>| {
                    let ended = streams.poll(connection.as_mut(), cx);
                    held.send(cx);
                    ended
                };
                cut.run_until_cancelled(poll_fn(turn)).await
            };
            match ended {
                Some(Err(error)) => tracing::debug!(event = "peer_line_ended", %error, "a line ended"),
                // What was begun is answered before the line closes; what was not has been given back.
                Some(Ok(())) => {
                    let rest = |cx: &mut Context<'_>| {
                        let ended = streams.poll_rest(cx);
                        held.send(cx);
                        ended
                    };
                    cut.run_until_cancelled(poll_fn(rest)).await;
                }
                None => {}
            }
        };
        dialer.tasks.spawn(task);
        Ok(Self { entry, connected_in })
    }

    /// True if it takes requests.
    pub(super) fn is_open(&self) -> bool {
        self.entry.read().is_some()
    }

    pub(super) async fn send(&self, request: Request<PeerBody>) -> Result<Response<Incoming>, Unsent> {
        let put = match &*self.entry.read() {
            Some(sender) => sender.clone().try_send_request(request),
            None => return Err(Unsent::Returned { request: Box::new(request), error: "the line has closed".into() }),
        };
        let mut failed = match put.await {
            Ok(response) => return Ok(response),
            Err(failed) => failed,
        };
        Err(match failed.take_message() {
            Some(request) => Unsent::Returned { request: Box::new(request), error: failed.into_error().into() },
            None => unanswered(failed.into_error()),
        })
    }
}

/// HTTP/2 says for some streams that the other end did not look at them: RFC 9113, sections 6.8 and 8.7.
fn unanswered(error: hyper::Error) -> Unsent {
    let h2 = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<h2::Error>());
    let untouched = h2.is_some_and(|h2| {
        let refused = h2.is_reset() && h2.reason() == Some(h2::Reason::REFUSED_STREAM);
        let above_the_last = h2.is_go_away();
        h2.is_remote() && (refused || above_the_last)
    });
    if untouched { Unsent::Refused(error.into()) } else { Unsent::Unknown(error.into()) }
}
