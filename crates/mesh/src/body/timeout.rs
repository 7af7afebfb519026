//! A request body that must not pause: the bound that [`body`](crate::body::read) sets for REST, where another library reads
//! the body.

use std::{
    error::Error,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Sleep, sleep};

/// A body whose reader fails when the next piece takes longer than `pause`.
pub(crate) struct BodyTimeout {
    body: Incoming,
    /// The longest time between two pieces.
    pause: Duration,
    /// Runs while a piece is waited for; made only then.
    timer: Option<Pin<Box<Sleep>>>,
}

impl BodyTimeout {
    pub(crate) fn new(body: Incoming, pause: Duration) -> Self {
        Self { body, pause, timer: None }
    }
}

impl Body for BodyTimeout {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.timer = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let pause = self.pause;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(pause)));
        timer.as_mut().poll(cx).map(|()| {
            let message = "the request's body paused for too long";
            Some(Err(tonic::Status::deadline_exceeded(message).into()))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
