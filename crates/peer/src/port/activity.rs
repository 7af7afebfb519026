//! The requests of one connection, and its silences.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hyper::rt::Executor;
use hyper_util::rt::TokioExecutor;
use prometheus_client::metrics::counter::Counter;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::unread::ReadWatch;

/// The longest that an answer may be left unread, where a port says nothing else.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(60);

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
    /// Leaves the end of an answer unread: let it end in good order, for others may share the connection behind a proxy. End it when
    /// [`Activity::unread_still`] resolves.
    Unread,
}

/// The requests of one connection, counted. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Activity(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    requests: AtomicU64,
    streams: AtomicUsize,
    had_streams: AtomicBool,
    /// The longest that an answer may be left unread.
    unread: Duration,
    /// Answers that were cut for it.
    cut: Counter,
    unsent: UnsentEnds,
}

/// The ends of answers that HTTP/2 had not sent when their streams were over, from the oldest.
#[derive(Debug, Default)]
struct UnsentEnds {
    ends: Mutex<VecDeque<(Instant, Weak<Bytes>)>>,
    more: Notify,
}

impl UnsentEnds {
    fn add(&self, end: Weak<Bytes>) {
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        if ends.len() == ends.capacity() {
            ends.retain(|(_, end)| end.strong_count() > 0);
        }
        ends.push_back((Instant::now(), end));
        drop(ends);
        self.more.notify_one();
    }

    /// The time since which the oldest one is not sent.
    fn oldest(&self) -> Option<Instant> {
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.retain(|(_, end)| end.strong_count() > 0);
        if ends.is_empty() {
            // A connection that rests holds no memory for it.
            *ends = VecDeque::new();
        }
        ends.front().map(|(since, _)| *since)
    }
}

/// An HTTP/2 stream that is open.
#[derive(Debug)]
pub struct OpenStream(Activity);

impl Default for Activity {
    fn default() -> Self {
        Self::new(UNREAD_TIMEOUT, Counter::default())
    }
}

impl Activity {
    /// Of a connection whose client may leave answers unread for so long; `cut` counts those that are cut for it.
    #[must_use]
    pub fn new(unread: Duration, cut: Counter) -> Self {
        Self(Arc::new(Counts {
            requests: AtomicU64::new(0),
            streams: AtomicUsize::new(0),
            had_streams: AtomicBool::new(false),
            unread,
            cut,
            unsent: UnsentEnds::default(),
        }))
    }

    /// The watch over one of its streams.
    #[must_use]
    pub fn read_watch(&self) -> ReadWatch {
        ReadWatch::new(self.clone())
    }

    pub(super) fn unread(&self) -> Duration {
        self.0.unread
    }

    pub(super) fn cut(&self) {
        self.0.cut.inc();
    }

    /// A stream is over, and HTTP/2 has this end of its answer still.
    pub(super) fn ended_unsent(&self, end: Weak<Bytes>) {
        self.0.unsent.add(end);
    }

    /// Counts a request: the connection is not silent.
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

    /// Resolves when the connection has been silent for too long, or its client leaves the end of an answer unread.
    pub async fn silence(self, patience: Patience) -> Inactivity {
        tokio::select! {
            inactivity = self.rested(patience) => inactivity,
            () = self.left_unread(self.0.unread) => Inactivity::Unread,
        }
    }

    /// Resolves when the client has left the end of an answer unread for twice the time that it has: end the connection now. For one
    /// that is to end in good order.
    pub async fn unread_still(self) {
        self.left_unread(self.0.unread * 2).await;
        self.cut();
    }

    async fn left_unread(&self, time: Duration) {
        loop {
            while let Some(since) = self.0.unsent.oldest() {
                let end = since + time;
                if Instant::now() >= end {
                    return;
                }
                sleep_until(end).await;
            }
            self.0.unsent.more.notified().await;
        }
    }

    async fn rested(&self, patience: Patience) -> Inactivity {
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

/// Runs the streams of a connection on the runtime, and counts those that are open. Drops those whose clients leave their answers
/// unread, where these are [`Paced`](super::Paced).
#[derive(Debug, Clone)]
pub struct Counting(pub Activity);

impl<F> Executor<F> for Counting
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let Self(activity) = self;
        let (reading, open) = (activity.read_watch(), activity.stream());
        TokioExecutor::new().execute(Counted { stream: Box::pin(stream), reading, _open: open });
    }
}

/// A stream with its guard.
struct Counted<F> {
    stream: Pin<Box<F>>,
    reading: ReadWatch,
    _open: OpenStream,
}

impl<F: Future<Output = ()>> Future for Counted<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { stream, reading, .. } = &mut *self;
        reading.poll(cx, |cx| stream.as_mut().poll(cx)).map(|_over| ())
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
