//! Runs the streams of a connection in the connection's own task.
//!
//! hyper gives each HTTP/2 stream to an executor. The one here does not spawn; the task of the connection runs what it
//! was given, each caught if it panics. A request then crosses one task fewer, and answers leave in one write.

use std::{
    future::Future,
    mem,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};

/// The executor that hyper is given: it keeps what is begun for [`Streams`].
#[derive(Clone, Default)]
pub struct StreamSpawner(Arc<Mutex<Vec<BoxFuture<'static, ()>>>>);

impl<F> hyper::rt::Executor<F> for StreamSpawner
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        // A panic ends its own stream, which the other end sees reset, and not the connection with all the others.
        let stream = Box::pin(AssertUnwindSafe(stream).catch_unwind().map(|ended| {
            if ended.is_err() {
                tracing::error!(event = "stream_broke", "a stream panicked");
            }
        }));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
    }
}

impl StreamSpawner {
    fn take(&self) -> Vec<BoxFuture<'static, ()>> {
        mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The streams that run.
pub struct Streams {
    begun: StreamSpawner,
    running: FuturesUnordered<BoxFuture<'static, ()>>,
}

impl Streams {
    /// Runs what is begun by `begun` from now on.
    #[must_use]
    pub fn new(begun: StreamSpawner) -> Self {
        Self { begun, running: FuturesUnordered::new() }
    }

    /// Polls `connection`, then what it has begun, until neither can go on. Ready when the connection is.
    pub fn poll<C: Future>(&mut self, mut connection: Pin<&mut C>, cx: &mut Context<'_>) -> Poll<C::Output> {
        loop {
            if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                return Poll::Ready(ended);
            }
            let begun = self.begun.take();
            let nothing_new = begun.is_empty();
            self.running.extend(begun);
            while let Poll::Ready(Some(())) = self.running.poll_next_unpin(cx) {}
            if nothing_new {
                return Poll::Pending;
            }
        }
    }

    /// Polls what is left of the streams after the connection is done. Ready when all have ended.
    pub fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            self.running.extend(self.begun.take());
            match self.running.poll_next_unpin(cx) {
                Poll::Ready(Some(())) => {}
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use hyper::rt::Executor as _;

    use super::*;

    #[test]
    fn a_stream_that_panics_has_ended_and_nothing_else_has() {
        let begun = StreamSpawner::default();
        begun.execute(async { panic!("in the body of an answer") });
        begun.execute(async {});
        let mut streams = Streams::new(begun);
        let mut connection = pin!(std::future::pending::<()>());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(streams.poll(connection.as_mut(), &mut cx).is_pending());
        assert!(streams.poll_rest(&mut cx).is_ready());
    }
}
