//! The body of an answer that is passed on as it comes: from another node, or from a model's own exchange.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use berth_peer::BoxError;
use berth_wire::header_list;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use http_body::{Body as _, Frame};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::Status;

use crate::{body::overdue, exchange};

/// The origin of pieces that are still to come.
pub(crate) enum Source {
    Node(Incoming),
    Model(exchange::Body),
}

impl Source {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match self {
            Self::Node(body) => {
                let cut = |error: hyper::Error| Status::unavailable(format!("the answer was cut off: {error}"));
                Pin::new(body).poll_frame(cx).map_err(cut)
            }
            Self::Model(body) => {
                let frame = Pin::new(body).poll_frame(cx);
                frame.map(|frame| frame.map(|frame| frame.map_err(status_of).and_then(bounded)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Node(body) => body.is_end_stream(),
            Self::Model(body) => body.is_end_stream(),
        }
    }
}

/// A body that is passed on: pieces that are here, then those that come, then the trailers.
pub(crate) struct RelayedBody {
    pieces: std::vec::IntoIter<Bytes>,
    coming: Option<Arc<HeldSource>>,
    trailers: Option<HeaderMap>,
    deadline: Option<Pin<Box<Sleep>>>,
    /// Errors are told as trailers, which gRPC clients read; others see the body cut off.
    grpc: bool,
}

/// Pieces that are still to come, and whatever must be held until the last of them has gone; `None`: it was let go of, because nobody
/// read the answer in its time.
pub(super) struct HeldSource(Mutex<Option<(Source, Box<dyn Send>)>>);

impl HeldSource {
    /// Ends the source, and lets go of what is held for it.
    pub(super) fn let_go(&self) {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Not under the lock: what is held does more than nothing when it goes.
        drop(held);
    }

    /// The next piece; an error where it was let go of.
    fn poll_frame(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some((source, _)) => source.poll_frame(cx),
            None => Poll::Ready(Some(Err(overtime()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_ref().is_some_and(|(source, _)| source.is_end_stream())
    }
}

fn overtime() -> Status {
    Status::deadline_exceeded("the call's time was over before its answer was complete")
}

impl RelayedBody {
    /// Passes on what is here, and then `rest`; holds `guard` until the end of `rest`.
    pub(crate) fn new(
        pieces: Vec<Bytes>,
        trailers: Option<HeaderMap>,
        rest: Option<Source>,
        guard: impl Send + 'static,
    ) -> Self {
        let coming = rest.map(|rest| Arc::new(HeldSource(Mutex::new(Some((rest, Box::new(guard) as Box<dyn Send>))))));
        Self { pieces: pieces.into_iter(), coming, trailers, deadline: None, grpc: false }
    }

    /// Ends the stream of an answer with this head at the deadline, whether somebody reads it or not.
    pub(crate) fn until(mut self, deadline: Instant, head: &HeaderMap<HeaderValue>) -> Self {
        if let Some(coming) = &self.coming {
            overdue::begun(coming, deadline);
            self.deadline = Some(Box::pin(sleep_until(deadline)));
        }
        let kind = head.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
        self.grpc = kind.is_some_and(|kind| kind.starts_with(b"application/grpc"));
        self
    }

    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(piece) = self.pieces.next() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let Some(coming) = &self.coming else {
            return Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
        };
        let failed = match coming.poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => return Poll::Ready(Some(Ok(frame))),
            Poll::Ready(None) => {
                self.end();
                return Poll::Ready(None);
            }
            Poll::Ready(Some(Err(error))) => error,
            Poll::Pending => match self.deadline.as_mut().map(|deadline| deadline.as_mut().poll(cx)) {
                Some(Poll::Ready(())) => overtime(),
                _ => return Poll::Pending,
            },
        };
        self.end();
        if !self.grpc {
            return Poll::Ready(Some(Err(failed)));
        }
        let mut trailers = HeaderMap::new();
        Poll::Ready(Some(match failed.add_header(&mut trailers) {
            Ok(()) => Ok(Frame::trailers(trailers)),
            Err(error) => Err(error),
        }))
    }

    /// Lets go of everything: nothing more comes.
    fn end(&mut self) {
        self.coming = None;
        self.deadline = None;
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        let ended = self.coming.as_ref().is_none_or(|coming| coming.is_end_stream());
        ended && self.pieces.len() == 0 && self.trailers.is_none()
    }
}

/// A piece of a model's answer, or its trailers if they are short enough.
fn bounded(frame: Frame<Bytes>) -> Result<Frame<Bytes>, Status> {
    match frame.trailers_ref().map(header_list::check) {
        Some(Err(error)) => Err(Status::internal(format!("the trailers of the model's answer have {error}"))),
        _ => Ok(frame),
    }
}

/// The status that a model's body fails with.
fn status_of(error: BoxError) -> Status {
    match error.downcast::<Status>() {
        Ok(status) => *status,
        Err(error) => Status::internal(format!("the model's answer broke off: {error}")),
    }
}
