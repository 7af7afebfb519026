//! One line: a connection of HTTP/2 to a server, and its task.
//!
//! ```text
//! open ──the server says that it goes (GOAWAY)──→ finishing: takes no new requests, ends after those in flight
//!   │ broken, a ping unanswered, or cut             │
//!   └──────────────────→ closed ←───────────────────┘
//! ```
//!
//! The task runs the connection and everything that hyper begins on it. A request crosses from the caller's task to
//! this one and back, and no other.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, Weak},
    task::Context,
};

use futures::{FutureExt as _, future::BoxFuture};
use http::{Request, Response};
use http_body::Body;
use hyper::{
    body::Incoming,
    client::conn::http2::{self, Builder, Connection, SendRequest},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{StreamSpawner, Streams, WriteBuffer};
use crate::BoxError;

/// Reason why a request has no answer.
pub enum Unsent<B> {
    /// The line did not touch it.
    Returned {
        /// The request, untouched: it may go over another line.
        request: Box<Request<B>>,
        /// The reason why the line took no request.
        error: BoxError,
    },
    /// The server says that it did not look at it.
    Refused(hyper::Error),
    /// The connection broke under it: the server may have acted on it.
    Unknown(hyper::Error),
}

/// The sender of a line, which all its clones share; none once the line takes no more requests.
///
/// hyper takes them through a channel of tokio's. A value that is being put in while the other end goes may come after the
/// last look into it: then it lies there until the last sender is gone, and that is who waits for its answer. Hence a lock,
/// which nobody waits for while the line is open: the end comes when nobody is putting anything in, and what is in is given
/// back.
struct SharedSender<B>(RwLock<Option<SendRequest<B>>>);

impl<B> SharedSender<B> {
    fn read(&self) -> RwLockReadGuard<'_, Option<SendRequest<B>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the sender away before the connection is dropped. It keeps none itself: a line that nobody has any more ends.
struct Closes<B>(Weak<SharedSender<B>>);

impl<B> Drop for Closes<B> {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            shared.0.write().unwrap_or_else(PoisonError::into_inner).take();
        }
    }
}

/// A line that takes requests. Clones share it; with the last one the connection ends, after the requests in flight.
pub struct Line<B> {
    sender: Arc<SharedSender<B>>,
}

impl<B> Line<B> {
    /// True if it takes requests.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.sender.read().is_some()
    }
}

impl<B> Clone for Line<B> {
    fn clone(&self) -> Self {
        Self { sender: Arc::clone(&self.sender) }
    }
}

impl<B> Line<B>
where
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    /// Speaks HTTP/2 on a connection that the server has taken. `settings` are those of HTTP/2 that the line has beside hyper's own.
    ///
    /// The second part is the line's work, for a task of its own: it ends when the line is closed, with an error if the connection
    /// broke. Who drops it cuts the line.
    ///
    /// # Errors
    /// The connection is broken.
    pub async fn open<S>(
        stream: S,
        settings: impl FnOnce(&mut Builder<StreamSpawner>),
    ) -> hyper::Result<(Self, BoxFuture<'static, hyper::Result<()>>)>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (begun, held) = (StreamSpawner::default(), WriteBuffer::new(stream));
        let mut builder = http2::Builder::new(begun.clone());
        builder.timer(TokioTimer::new());
        settings(&mut builder);
        let (sender, connection) = builder.handshake(TokioIo::new(held.clone())).await?;
        let sender = Arc::new(SharedSender(RwLock::new(Some(sender))));
        let closes = Closes(Arc::downgrade(&sender));
        let runs = run(connection, Streams::new(begun), held, closes).boxed();
        Ok((Self { sender }, runs))
    }

    /// Sends a request.
    ///
    /// # Errors
    /// There is no answer: [`Unsent`] says how far the request came.
    pub async fn send(&self, request: Request<B>) -> Result<Response<Incoming>, Unsent<B>> {
        let put = match &*self.sender.read() {
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

/// Runs a line until it is closed.
async fn run<S, B>(
    connection: Connection<TokioIo<WriteBuffer<S>>, B, StreamSpawner>,
    mut streams: Streams,
    held: WriteBuffer<S>,
    closes: Closes<B>,
) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    {
        let mut connection = pin!(connection);
        // Dropped before it, also where the task is.
        let _closes = closes;
        let turn = |cx: &mut Context<'_>| {
            let ended = streams.poll(connection.as_mut(), cx);
            held.send(cx);
            ended
        };
        poll_fn(turn).await?;
    }
    // What was begun is answered before the line closes; what was not has been given back.
    let rest = |cx: &mut Context<'_>| {
        let ended = streams.poll_rest(cx);
        held.send(cx);
        ended
    };
    poll_fn(rest).await;
    Ok(())
}

/// HTTP/2 says for some streams that the other end did not look at them: RFC 9113, sections 6.8 and 8.7.
fn unanswered<B>(error: hyper::Error) -> Unsent<B> {
    let h2 = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<h2::Error>());
    let untouched = h2.is_some_and(|h2| {
        let refused = h2.is_reset() && h2.reason() == Some(h2::Reason::REFUSED_STREAM);
        let above_the_last = h2.is_go_away();
        h2.is_remote() && (refused || above_the_last)
    });
    if untouched { Unsent::Refused(error) } else { Unsent::Unknown(error) }
}
