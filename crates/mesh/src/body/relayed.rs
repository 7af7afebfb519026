//! The body of an answer that is passed on as it comes: from another node, or from a model's own exchange.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use berth_peer::BoxError;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use http_body::{Body as _, Frame};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::Status;

use crate::exchange;

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
            Self::Model(body) => Pin::new(body).poll_frame(cx).map_err(status_of),
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
pub(crate) struct Relayed {
    pieces: std::vec::IntoIter<Bytes>,
    rest: Option<Source>,
    trailers: Option<HeaderMap>,
    deadline: Option<Pin<Box<Sleep>>>,
    /// Errors are told as trailers, which gRPC clients read; others see the body cut off.
    grpc: bool,
    /// Whatever must be held until the last byte has gone.
    guard: Option<Box<dyn Send>>,
}

impl Relayed {
    /// Passes on what is here, and then `rest`; holds `guard` until the end of `rest`.
    pub(crate) fn new(
        (pieces, trailers): (Vec<Bytes>, Option<HeaderMap>),
        rest: Option<Source>,
        guard: impl Send + 'static,
    ) -> Self {
        let guard: Option<Box<dyn Send>> = rest.is_some().then(|| Box::new(guard) as Box<dyn Send>);
        Self { pieces: pieces.into_iter(), rest, trailers, deadline: None, grpc: false, guard }
    }

    /// Ends the stream of an answer with this head at the deadline.
    pub(crate) fn until(mut self, deadline: Instant, head: &HeaderMap<HeaderValue>) -> Self {
        if self.rest.is_some() {
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
        let Some(rest) = &mut self.rest else {
            return Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
        };
        let failed = match rest.poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => return Poll::Ready(Some(Ok(frame))),
            Poll::Ready(None) => {
                self.end();
                return Poll::Ready(None);
            }
            Poll::Ready(Some(Err(error))) => error,
            Poll::Pending => match self.deadline.as_mut().map(|deadline| deadline.as_mut().poll(cx)) {
                Some(Poll::Ready(())) => {
                    Status::deadline_exceeded("the call's time was over before its answer was complete")
                }
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
        self.rest = None;
        self.deadline = None;
        self.guard = None;
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        self.pieces.len() == 0 && self.trailers.is_none() && self.rest.as_ref().is_none_or(Source::is_end_stream)
    }
}

/// The status that a model's body fails with.
fn status_of(error: BoxError) -> Status {
    match error.downcast::<Status>() {
        Ok(status) => *status,
        Err(error) => Status::internal(format!("the model's answer broke off: {error}")),
    }
}
