//! Runs the streams of a connection in the connection's own task.
//!
//! hyper gives each HTTP/2 stream to an executor. The one here does not spawn; the task of the connection runs what it
//! was given, each caught if it panics. A request then crosses one task fewer, and answers leave in one write.
//!
//! Connection and streams wake each other, which is the task itself, while it runs. The runtime puts such a task at the end of its
//! queue and wakes another thread to take it from there: that costs more than the work. So they are polled again in the same turn.

use std::{
    future::Future,
    mem,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
};

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered, task::AtomicWaker};

/// Rounds of one turn, then other tasks have the thread: as many as hyper takes for a connection of HTTP/1.
const ROUNDS: usize = 16;

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

/// The waker that the connection and its streams get: it wakes the task between turns, and only notes it during one.
#[derive(Default)]
struct TurnWaker {
    task: AtomicWaker,
    /// True during a turn of the task.
    runs: AtomicBool,
    woken: AtomicBool,
}

impl TurnWaker {
    fn begin(&self, task: &Waker) {
        self.task.register(task);
        self.runs.store(true, SeqCst);
    }

    /// Ends the turn. True if somebody was woken in it who has not been polled since.
    fn end(&self) -> bool {
        self.runs.store(false, SeqCst);
        self.woken.load(SeqCst)
    }
}

impl Wake for TurnWaker {
    fn wake(self: Arc<Self>) {
        Self::wake_by_ref(&self);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, SeqCst);
        if !self.runs.load(SeqCst) {
            self.task.wake();
        }
    }
}

/// The streams of one connection, polled with it in one task.
pub struct Streams {
    begun: StreamSpawner,
    running: FuturesUnordered<BoxFuture<'static, ()>>,
    turn: Arc<TurnWaker>,
}

impl Streams {
    /// Runs what is begun by `begun` from now on.
    #[must_use]
    pub fn new(begun: StreamSpawner) -> Self {
        Self { begun, running: FuturesUnordered::new(), turn: Arc::default() }
    }

    /// Polls `connection`, then what it has begun, until neither can go on. Ready when the connection is.
    pub fn poll<C: Future>(&mut self, connection: Pin<&mut C>, cx: &mut Context<'_>) -> Poll<C::Output> {
        self.turn.begin(cx.waker());
        let polled = self.rounds(connection);
        if self.turn.end() && polled.is_pending() {
            cx.waker().wake_by_ref();
        }
        polled
    }

    fn rounds<C: Future>(&mut self, mut connection: Pin<&mut C>) -> Poll<C::Output> {
        let waker = Waker::from(Arc::clone(&self.turn));
        let mut cx = Context::from_waker(&waker);
        for _ in 0..ROUNDS {
            self.turn.woken.store(false, SeqCst);
            if let Poll::Ready(ended) = connection.as_mut().poll(&mut cx) {
                return Poll::Ready(ended);
            }
            let begun = self.begun.take();
            let nothing_new = begun.is_empty();
            self.running.extend(begun);
            while let Poll::Ready(Some(())) = self.running.poll_next_unpin(&mut cx) {}
            if nothing_new && !self.turn.woken.load(SeqCst) {
                return Poll::Pending;
            }
        }
        self.turn.woken.store(true, SeqCst);
        Poll::Pending
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
    use std::{future::poll_fn, pin::pin, sync::atomic::AtomicUsize};

    use hyper::rt::Executor as _;

    use super::*;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

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
    #[test]
    fn who_is_woken_in_a_turn_has_another_round_of_it() {
        for (self_wakes, polls, wakes) in [(0, 1, 0), (3, 4, 0), (usize::MAX, ROUNDS, 1)] {
            let (task, polled) = (Arc::new(Wakes::default()), Arc::new(AtomicUsize::new(0)));
            let waker = Waker::from(Arc::clone(&task));
            let mut streams = Streams::new(StreamSpawner::default());
            let counted = Arc::clone(&polled);
            let mut connection = pin!(poll_fn(move |cx| {
                if counted.fetch_add(1, SeqCst) < self_wakes {
                    cx.waker().wake_by_ref();
                }
                Poll::<()>::Pending
            }));
            assert!(streams.poll(connection.as_mut(), &mut Context::from_waker(&waker)).is_pending());
            assert_eq!((polled.load(SeqCst), task.0.load(SeqCst)), (polls, wakes));
            // Between turns a wake is the task's.
            Waker::from(Arc::clone(&streams.turn)).wake();
            assert_eq!(task.0.load(SeqCst), wakes + 1);
        }
    }
}
