//! Bodies on their way: one that is kept while it passes, so that it can be sent once more, and one that holds something
//! until its end.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use berth_mesh::exchange::{self, BoxError};
use bytes::Bytes;
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Incoming;

/// The bytes of one request that are kept until its answer begins, so that it can be repeated if the model was lost;
/// larger ones are left to their callers.
const KEPT: usize = 4 << 20;

/// The part of a body that has passed.
#[derive(Clone)]
pub(super) struct Kept(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    pieces: Vec<Bytes>,
    bytes: usize,
    /// All of it has passed, and is here.
    whole: bool,
    /// True if it was too long, or its answer has begun.
    over: bool,
}

impl Kept {
    /// Keeps `body` while it passes.
    pub(super) fn of(body: exchange::Body) -> (Self, exchange::Body) {
        let kept = Self(Arc::default());
        let passing = Passing { inner: body, kept: kept.clone() };
        if passing.inner.is_end_stream() {
            kept.locked().whole = true;
        }
        (kept, passing.boxed_unsync())
    }

    /// The body again; `None`: not all of it is here.
    pub(super) fn again(&self) -> Option<exchange::Body> {
        let state = self.locked();
        if !state.whole || state.over {
            return None;
        }
        let pieces: Vec<Result<_, BoxError>> =
            state.pieces.iter().map(|piece| Ok(Frame::data(piece.clone()))).collect();
        Some(StreamBody::new(futures::stream::iter(pieces)).boxed_unsync())
    }

    /// Lets go of it.
    pub(super) fn forget(&self) {
        *self.locked() = State { over: true, ..State::default() };
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Passing {
    inner: exchange::Body,
    kept: Kept,
}

impl Body for Passing {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        let mut state = self.kept.locked();
        match &frame {
            Some(Ok(frame)) if !state.over => {
                if let Some(data) = frame.data_ref() {
                    state.bytes += data.len();
                    state.pieces.push(data.clone());
                }
                if state.bytes > KEPT {
                    *state = State { over: true, ..State::default() };
                }
                state.whole = self.inner.is_end_stream();
            }
            None => state.whole = true,
            _ => {}
        }
        drop(state);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }
}

/// A body that holds `guard` until its last byte.
pub(super) struct Guarded<G> {
    inner: Incoming,
    guard: Option<G>,
}

impl<G: Send + Unpin + 'static> Guarded<G> {
    pub(super) fn boxed(inner: Incoming, guard: G) -> exchange::Body {
        Self { inner, guard: Some(guard) }.boxed_unsync()
    }
}

impl<G: Unpin> Body for Guarded<G> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
            // A connection of HTTP/2 on which many empty pieces come is ended, and those between nodes are shared.
            let empty = matches!(&frame, Some(Ok(frame)) if frame.data_ref().is_some_and(Bytes::is_empty));
            if empty && !self.inner.is_end_stream() {
                continue;
            }
            if !matches!(frame, Some(Ok(_))) {
                self.guard = None;
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }
}

/// A body of one piece.
pub(super) fn full(bytes: Bytes) -> exchange::Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}
