//! Threads for runs that are too long for the threads of connections. One pool for all models of a process: a model
//! with work holds a place in the queue, gets one run, and goes to the back, so that no model starves another.
//!
//! Models whose run time depends on the values of their inputs have as many threads of their own: a run that lasts until
//! its deadline holds up only models of that kind.

use std::{
    collections::VecDeque,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use super::batcher::LeaderToken;

/// The longest that the end of the pool waits for its threads: a run that cannot be interrupted ends with the process.
const JOINED_WITHIN: Duration = Duration::from_secs(5);

/// Owns the threads; dropping it lets them finish what is queued, and waits a while for that.
pub struct Pool {
    run_queue: Arc<RunQueue>,
    threads: Vec<thread::JoinHandle<()>>,
    of_each_kind: usize,
}

impl Pool {
    /// Starts `threads` threads for each kind of model, at least one.
    pub fn start(threads: usize) -> io::Result<Self> {
        Self::of(&[Kind::Bounded, Kind::Unbounded], threads)
    }

    /// Starts `threads` threads for one model whose runs wait for somebody else.
    pub fn waiting(threads: usize) -> io::Result<Self> {
        Self::of(&[Kind::Unbounded], threads)
    }

    fn of(kinds: &[Kind], threads: usize) -> io::Result<Self> {
        let run_queue = Arc::new(RunQueue::default());
        let of_each_kind = threads.max(1);
        let mut pool = Self { run_queue: Arc::clone(&run_queue), threads: Vec::new(), of_each_kind };
        for &kind in kinds {
            for number in 0..of_each_kind {
                let run_queue = Arc::clone(&run_queue);
                let thread = thread::Builder::new().name(format!("{}-{number}", kind.thread()));
                pool.threads.push(thread.spawn(move || work(&run_queue, kind))?);
            }
        }
        Ok(pool)
    }

    /// The number of threads for each kind of model.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.of_each_kind
    }

    /// The queue in which batchers wait.
    #[must_use]
    pub fn run_queue(&self) -> Arc<RunQueue> {
        Arc::clone(&self.run_queue)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.run_queue.locked().stopped = true;
        for kind in [Kind::Bounded, Kind::Unbounded] {
            self.run_queue.wake[kind as usize].notify_all();
        }
        let until = Instant::now() + JOINED_WITHIN;
        for thread in self.threads.drain(..) {
            while !thread.is_finished() && Instant::now() < until {
                thread::sleep(Duration::from_millis(1));
            }
            if thread.is_finished() {
                // A thread cannot have panicked: `work` catches what a turn throws.
                let _ = thread.join();
            } else {
                tracing::warn!(event = "run_abandoned", "a run does not end and is left behind");
            }
        }
    }
}

/// The kinds of models that have threads of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The sizes of the inputs decide how long a run takes.
    Bounded,
    /// Their values do.
    Unbounded,
}

impl Kind {
    /// The name of its threads.
    fn thread(self) -> &'static str {
        match self {
            Self::Bounded => "berth-run",
            Self::Unbounded => "berth-long",
        }
    }
}

/// The models that wait for a thread. Its length is bounded by the number of models times their lanes.
#[derive(Default)]
pub struct RunQueue {
    slots: Mutex<RunSlots>,
    wake: [Condvar; 2],
}

#[derive(Default)]
struct RunSlots {
    waiting: [VecDeque<LeaderToken>; 2],
    stopped: bool,
}

impl RunQueue {
    /// Queues the model for one run; gives the token back once the pool has stopped.
    pub(super) fn join(&self, token: LeaderToken) -> Result<(), LeaderToken> {
        let mut slots = self.locked();
        if slots.stopped {
            return Err(token);
        }
        let kind = token.kind() as usize;
        slots.waiting[kind].push_back(token);
        drop(slots);
        self.wake[kind].notify_one();
        Ok(())
    }

    fn next(&self, kind: Kind) -> Option<LeaderToken> {
        let kind = kind as usize;
        let wait = |slots: &mut RunSlots| slots.waiting[kind].is_empty() && !slots.stopped;
        let slots = self.wake[kind].wait_while(self.locked(), wait);
        slots.unwrap_or_else(PoisonError::into_inner).waiting[kind].pop_front()
    }

    fn locked(&self) -> MutexGuard<'_, RunSlots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn work(run_queue: &RunQueue, kind: Kind) {
    while let Some(token) = run_queue.next(kind) {
        // A panic drops the token, which passes the lead on; the requests of the run get an internal error.
        if catch_unwind(AssertUnwindSafe(|| token.turn_on_pool())).is_err() {
            tracing::error!("a run panicked");
        }
    }
}
