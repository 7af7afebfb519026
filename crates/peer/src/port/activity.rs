//! The requests of one connection, and its silences.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use hyper::rt::Executor;
use hyper_util::rt::TokioExecutor;

/// The longest silences of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Until the first request has come.
    pub first: Duration,
    /// Without a request on a connection of HTTP/2.
    pub idle: Duration,
}

/// The reason to end a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inactivity {
    /// Never made a request: end it now.
    NoRequest,
    /// Rested for long: let it end in good order.
    Idle,
}

/// The requests of one connection, counted. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct Activity(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    requests: AtomicU64,
    streams: AtomicUsize,
    had_streams: AtomicBool,
}

/// An HTTP/2 stream that is open.
#[derive(Debug)]
pub struct OpenStream(Activity);

impl Activity {
    /// A request came.
    pub fn request(&self) {
        self.0.requests.fetch_add(1, Relaxed);
    }

    /// A stream was opened; it is over when the guard is dropped.
    #[must_use]
    pub fn stream(&self) -> OpenStream {
        self.0.had_streams.store(true, Relaxed);
        self.0.streams.fetch_add(1, Relaxed);
        OpenStream(self.clone())
    }

    /// Resolves when the connection has been silent for too long.
    pub async fn silence(self, patience: Patience) -> Inactivity {
        tokio::time::sleep(patience.first).await;
        if self.0.requests.load(Relaxed) == 0 {
            return Inactivity::NoRequest;
        }
        loop {
            let seen = self.0.requests.load(Relaxed);
            tokio::time::sleep(patience.idle).await;
            let (requests, streams) = (self.0.requests.load(Relaxed), self.0.streams.load(Relaxed));
            if requests == seen && streams == 0 && self.0.had_streams.load(Relaxed) {
                return Inactivity::Idle;
            }
        }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.0.streams.fetch_sub(1, Relaxed);
    }
}

/// Runs the streams of a connection on the runtime, and counts those that are open.
#[derive(Debug, Clone)]
pub struct Counting(pub Activity);

impl<F> Executor<F> for Counting
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        TokioExecutor::new().execute(Counted { stream: Box::pin(stream), _open: self.0.stream() });
    }
}

/// A stream with its guard.
struct Counted<F> {
    stream: Pin<Box<F>>,
    _open: OpenStream,
}

impl<F: Future<Output = ()>> Future for Counted<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.stream.as_mut().poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience { first: Duration::from_secs(10), idle: Duration::from_secs(100) };

    #[tokio::test(start_paused = true)]
    async fn silence_ends_a_connection_and_a_stream_that_lasts_does_not() {
        assert_eq!(Activity::default().silence(PATIENCE).await, Inactivity::NoRequest);
        let rests = Activity::default();
        rests.request();
        drop(rests.stream());
        assert_eq!(rests.silence(PATIENCE).await, Inactivity::Idle);
        let (watches, http1) = (Activity::default(), Activity::default());
        watches.request();
        http1.request();
        let _stream = watches.stream();
        for lasts in [watches.clone(), http1] {
            assert!(tokio::time::timeout(PATIENCE.idle * 50, lasts.silence(PATIENCE)).await.is_err());
        }
    }
}
