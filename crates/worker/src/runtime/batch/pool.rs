//! Threads for runs that are too long for the threads of connections. One pool for all models of a process: a model
//! with work holds a place in line, gets one run, and goes to the back, so that no model starves another.

use std::{
    collections::VecDeque,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use super::batcher::LeaderToken;

/// Owns the threads; dropping it lets them finish what is in line, and waits for that.
pub struct Pool {
    line: Arc<Line>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Pool {
    /// Starts `threads` threads, at least one.
    pub fn start(threads: usize) -> io::Result<Self> {
        let line = Arc::new(Line::default());
        let mut pool = Self { line: Arc::clone(&line), threads: Vec::new() };
        for number in 0..threads.max(1) {
            let line = Arc::clone(&line);
            let thread = thread::Builder::new().name(format!("berth-run-{number}"));
            pool.threads.push(thread.spawn(move || work(&line))?);
        }
        Ok(pool)
    }

    /// The number of threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Where batchers put themselves in line.
    #[must_use]
    pub fn line(&self) -> Arc<Line> {
        Arc::clone(&self.line)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.line.locked().stopped = true;
        self.line.wake.notify_all();
        for thread in self.threads.drain(..) {
            // A thread cannot have panicked: `work` catches what a turn throws.
            let _ = thread.join();
        }
    }
}

/// The models that wait for a thread. Its length is bounded by the number of models times their lanes.
#[derive(Default)]
pub struct Line {
    slots: Mutex<RunSlots>,
    wake: Condvar,
}

#[derive(Default)]
struct RunSlots {
    waiting: VecDeque<LeaderToken>,
    stopped: bool,
}

impl Line {
    /// Queues the model for one run; gives the token back once the pool has stopped.
    pub(super) fn join(&self, token: LeaderToken) -> Result<(), LeaderToken> {
        let mut slots = self.locked();
        if slots.stopped {
            return Err(token);
        }
        slots.waiting.push_back(token);
        drop(slots);
        self.wake.notify_one();
        Ok(())
    }

    fn next(&self) -> Option<LeaderToken> {
        let slots = self.wake.wait_while(self.locked(), |slots| slots.waiting.is_empty() && !slots.stopped);
        slots.unwrap_or_else(PoisonError::into_inner).waiting.pop_front()
    }

    fn locked(&self) -> MutexGuard<'_, RunSlots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn work(line: &Line) {
    while let Some(token) = line.next() {
        // A panic drops the token, which passes the lead on; the requests of the run get an internal error.
        if catch_unwind(AssertUnwindSafe(|| token.turn_on_pool())).is_err() {
            tracing::error!("a run panicked");
        }
    }
}
