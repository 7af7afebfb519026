//! Bodies on their way: counted, bounded, and an end that is noticed.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::body::Incoming;

use crate::{BoxError, log::Captured};

/// A body of any origin.
pub(crate) type Body = UnsyncBoxBody<Bytes, BoxError>;

/// A body of these bytes.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Counts of a request's body, which is read while the answer may be on its way already.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    bytes: AtomicU64,
    too_large: AtomicBool,
    broke_off: AtomicBool,
    awaited: AtomicBool,
    /// Begin of the body, where the request is logged.
    captured: OnceLock<Mutex<Captured>>,
}

impl Sent {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Keeps the begin of what comes from now on. Set once.
    pub(crate) fn capture(&self, captured: Mutex<Captured>) {
        let _ = self.captured.set(captured);
    }

    pub(crate) fn captured(&self) -> Option<&Mutex<Captured>> {
        self.captured.get()
    }

    /// Counts data of the body.
    pub(crate) fn data(&self, data: &[u8]) {
        self.add(data.len());
        if let Some(captured) = self.captured.get() {
            captured.lock().unwrap_or_else(PoisonError::into_inner).add(data);
        }
    }

    pub(crate) fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// True if the client did not send all of the body.
    pub(crate) fn broke_off(&self) -> bool {
        self.broke_off.load(Relaxed)
    }

    /// True while more of the body is wanted and the client sends none. False also while the server takes none.
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited.load(Relaxed)
    }

    /// True if the body had more than it may.
    pub(crate) fn is_too_large(&self) -> bool {
        self.too_large.load(Relaxed)
    }
}

/// The body of a request, which may have so many bytes.
pub(crate) struct Bounded {
    pub(crate) inner: Incoming,
    pub(crate) most: u64,
    pub(crate) sent: Arc<Sent>,
}

impl http_body::Body for Bounded {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = poll_said(&mut self.inner, cx);
        self.sent.awaited.store(polled.is_pending(), Relaxed);
        let frame = ready!(polled);
        if matches!(frame, Some(Err(_))) {
            self.sent.broke_off.store(true, Relaxed);
        }
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.sent.data(data);
            if self.sent.bytes() > self.most {
                self.sent.too_large.store(true, Relaxed);
                return Poll::Ready(Some(Err("the body is larger than the executor lets through".into())));
            }
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The next frame that says something. Empty ones are left out: servers and clients of HTTP/2 end a connection on which they get many, and
/// that to a server is shared by all clients.
fn poll_said(body: &mut Incoming, cx: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
    loop {
        let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
        let empty = matches!(&frame, Some(Ok(frame)) if frame.data_ref().is_some_and(Bytes::is_empty));
        if !empty {
            return Poll::Ready(frame);
        }
        if body.is_end_stream() {
            return Poll::Ready(None);
        }
    }
}

/// Something that is told how an answer's body went. Dropped before the end: the client has gone, or the server broke off.
pub(crate) trait Watcher: Send + Unpin + 'static {
    fn data(&mut self, data: &[u8]);

    /// The status of gRPC, in the trailers.
    fn grpc_status(&mut self, status: &http::HeaderValue);

    /// The body is whole.
    fn end(&mut self);
}

/// The body of an answer, watched.
pub(crate) struct Watched<W> {
    pub(crate) inner: Incoming,
    pub(crate) watcher: W,
}

impl<W: Watcher> http_body::Body for Watched<W> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(poll_said(&mut self.inner, cx));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.watcher.data(data);
                } else if let Some(status) = frame.trailers_ref().and_then(|trailers| trailers.get("grpc-status")) {
                    let status = status.clone();
                    self.watcher.grpc_status(&status);
                }
                // hyper asks no more when it knows that nothing comes.
                if self.inner.is_end_stream() {
                    self.watcher.end();
                }
            }
            Some(Err(_)) => {}
            None => self.watcher.end(),
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
