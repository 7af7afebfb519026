//! Bodies on their way: one that is kept while it passes, so that it can be sent once more, and one that holds something
//! until its end.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use berth_mesh::exchange::{self, BoxError};
use berth_peer::port::KeptPieces;
use berth_wire::bounded_status;
use bytes::Bytes;
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Incoming;
use tokio::sync::OwnedSemaphorePermit;

use super::outage::CallUnderWay;

/// The bytes of all requests of a runtime together that are kept, unless one alone may have more.
const COPIES_TOGETHER: usize = 256 << 20;

/// The bytes of requests that the models of a runtime keep until the answers begin, so that they can be repeated if a model was lost;
/// what does not fit is left to the callers.
pub(super) struct CopyBudget {
    used: AtomicUsize,
    /// Bytes of one request.
    of_one: usize,
    /// Bytes of all together.
    most: usize,
}

impl CopyBudget {
    /// A budget in which each request has at most `of_one` bytes.
    pub(super) fn new(of_one: usize) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), of_one, most: of_one.max(COPIES_TOGETHER) })
    }

    fn take(&self, bytes: usize) -> bool {
        if self.used.fetch_add(bytes, Relaxed).saturating_add(bytes) <= self.most {
            return true;
        }
        self.used.fetch_sub(bytes, Relaxed);
        false
    }
}

/// The part of a body that has passed.
#[derive(Clone)]
pub(super) struct BodyCopy(Arc<Mutex<State>>);

struct State {
    /// `None`: it was too long, or its answer has begun.
    pieces: Option<Pieces>,
    /// All of it has passed.
    whole: bool,
}

/// The pieces of one body, which count against the budget as long as they are there.
struct Pieces {
    kept: KeptPieces,
    budget: Arc<CopyBudget>,
}

impl Pieces {
    /// Keeps one more; false: there is no room for it.
    fn add(&mut self, piece: &Bytes) -> bool {
        let fits = self.kept.length() + piece.len() <= self.budget.of_one && self.budget.take(piece.len());
        if fits {
            self.kept.add(piece);
        }
        fits
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.kept.length(), Relaxed);
    }
}

impl BodyCopy {
    /// Keeps `body` while it passes.
    pub(super) fn of(body: exchange::Body, budget: &Arc<CopyBudget>) -> (Self, exchange::Body) {
        let pieces = Pieces { kept: KeptPieces::default(), budget: Arc::clone(budget) };
        let state = State { pieces: Some(pieces), whole: body.is_end_stream() };
        let kept = Self(Arc::new(Mutex::new(state)));
        let passing = Passing { inner: body, kept: kept.clone() };
        (kept, passing.boxed_unsync())
    }

    /// The body again; `None`: not all of it is here.
    pub(super) fn again(&self) -> Option<exchange::Body> {
        let mut state = self.locked();
        let whole = state.whole;
        let kept = state.pieces.as_mut().filter(|_| whole)?;
        let pieces = kept.kept.pieces().iter().map(|piece| Ok(Frame::data(piece.clone())));
        let pieces: Vec<Result<_, BoxError>> = pieces.collect();
        Some(StreamBody::new(futures::stream::iter(pieces)).boxed_unsync())
    }

    /// Frees the kept pieces: the request will not be repeated.
    pub(super) fn forget(&self) {
        self.locked().pieces = None;
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Passing {
    inner: exchange::Body,
    kept: BodyCopy,
}

impl Body for Passing {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        let mut state = self.kept.locked();
        match &frame {
            Some(Ok(frame)) => {
                let room = match (&mut state.pieces, frame.data_ref()) {
                    (Some(pieces), Some(piece)) => pieces.add(piece),
                    _ => true,
                };
                if !room {
                    state.pieces = None;
                }
                state.whole = self.inner.is_end_stream();
            }
            None => state.whole = true,
            Some(Err(_)) => {}
        }
        drop(state);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }
}

/// The guards of a call, held until its answer has ended.
pub(super) type CallGuards = (CallUnderWay, Option<OwnedSemaphorePermit>);

/// A body that holds until its last byte what its call holds.
pub(super) struct Guarded {
    inner: Incoming,
    held: Option<CallGuards>,
}

impl Guarded {
    pub(super) fn boxed(inner: Incoming, held: CallGuards) -> exchange::Body {
        Self { inner, held: Some(held) }.boxed_unsync()
    }
}

impl Body for Guarded {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            let Poll::Ready(mut frame) = Pin::new(&mut self.inner).poll_frame(cx) else {
                if let Some((call, _)) = &mut self.held {
                    call.awaits();
                }
                return Poll::Pending;
            };
            // A connection of HTTP/2 on which many empty pieces come is ended, and those between nodes are shared.
            let empty = matches!(&frame, Some(Ok(frame)) if frame.data_ref().is_some_and(Bytes::is_empty));
            if empty && !self.inner.is_end_stream() {
                continue;
            }
            if let Some(Ok(frame)) = &mut frame
                && let Some(trailers) = frame.trailers_mut()
            {
                bounded_status::bound(trailers);
            }
            if !matches!(frame, Some(Ok(_))) {
                self.held = None;
            } else if let Some((call, _)) = &mut self.held {
                call.heard();
                call.rests();
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

#[cfg(test)]
mod tests {
    use super::*;

    async fn passed(bytes: &'static [u8], budget: &Arc<CopyBudget>) -> BodyCopy {
        let (kept, body) = BodyCopy::of(full(Bytes::from_static(bytes)), budget);
        body.collect().await.expect("it passes");
        kept
    }

    #[tokio::test]
    async fn what_is_kept_is_bounded_for_one_request_and_for_all() {
        let budget = Arc::new(CopyBudget { used: AtomicUsize::new(0), of_one: 8, most: 12 });
        let first = passed(b"12345678", &budget).await;
        let again = first.again().expect("all of it is here").collect().await.expect("it passes");
        assert_eq!(again.to_bytes(), &b"12345678"[..]);
        assert!(passed(b"123456789", &budget).await.again().is_none(), "it is too long");
        assert!(passed(b"12345", &budget).await.again().is_none(), "there is no room beside the first");
        first.forget();
        assert!(first.again().is_none(), "its answer has begun");
        assert!(passed(b"12345", &budget).await.again().is_some(), "there is room again");
        assert_eq!(budget.used.load(Relaxed), 0);
    }
}
