//! The engine's lock: sessions are made and freed one at a time, so that what the heap grows by is that session's.
//!
//! ```text
//! waiting ──nobody holds it──▶ held ─────────────▶ released
//!    │ given up                  │ its load was given up and does not end
//!    ▼                           ▼
//!  leaves                    overtaken by the next one; sizes are estimates until the stuck load has ended
//! ```
//! The library does not end a load within a step ([`load_watch`](super::load_watch)). A step that never ends would take every
//! load and unload along that comes after it, and each of them a thread.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;

/// Time between two looks of one that waits: if it was given up, and if the load before it is stuck. It is woken when the
/// lock is released.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A load that was given up and has not ended after this is stuck. By then the worker counts its thread as abandoned; a step
/// that is only long has ended.
const STUCK_AFTER: Duration = Duration::from_secs(30);

/// The lock under which sessions are made and freed. A load that is given up does not wait for it, and a stuck one does not keep it.
#[derive(Debug)]
pub(super) struct EngineLock {
    state: Mutex<State>,
    released: Condvar,
    stuck_after: Duration,
}

#[derive(Debug, Default)]
struct State {
    holder: Option<Holder>,
    /// Loads that were overtaken and have not ended.
    stuck: usize,
    /// Threads that wait, so that a release without any costs no system call.
    waiting: usize,
    /// Guards that there ever were.
    guards: u64,
}

/// The load or unload that holds the lock.
#[derive(Debug)]
struct Holder {
    guard: u64,
    /// `None`: a session is freed, which nobody gives up.
    given_up: Option<CancellationToken>,
    /// The time since which somebody knows that it was given up.
    known_since: Option<Instant>,
}

/// Holds the lock until it is dropped, or overtaken.
#[derive(Debug)]
#[must_use]
pub(super) struct EngineGuard<'a> {
    lock: &'a EngineLock,
    id: u64,
    alone: bool,
}

impl Default for EngineLock {
    fn default() -> Self {
        Self { state: Mutex::default(), released: Condvar::new(), stuck_after: STUCK_AFTER }
    }
}

impl EngineLock {
    /// Waits for the lock to load a model; `None`: the load was given up first.
    pub(super) fn for_load(&self, given_up: &CancellationToken) -> Option<EngineGuard<'_>> {
        let mut state = self.state();
        loop {
            if given_up.is_cancelled() {
                // It may be the one that was woken.
                self.wake(&state);
                return None;
            }
            if let Some(guard) = self.try_lock(&mut state, Some(given_up)) {
                return Some(guard);
            }
            state = self.wait(state);
        }
    }

    /// Waits for the lock to free a session.
    pub(super) fn for_unload(&self) -> EngineGuard<'_> {
        let mut state = self.state();
        loop {
            if let Some(guard) = self.try_lock(&mut state, None) {
                return guard;
            }
            state = self.wait(state);
        }
    }

    /// Does the work unless a session is being made or freed. A load that is stuck does not count.
    pub(super) fn if_idle(&self, work: impl FnOnce()) {
        let mut state = self.state();
        if state.holder.as_mut().is_none_or(|holder| holder.is_stuck(self.stuck_after)) {
            work();
        }
    }

    fn try_lock(&self, state: &mut State, given_up: Option<&CancellationToken>) -> Option<EngineGuard<'_>> {
        if let Some(holder) = &mut state.holder {
            if !holder.is_stuck(self.stuck_after) {
                return None;
            }
            state.stuck += 1;
            tracing::warn!(
                event = "load_overtaken",
                stuck = state.stuck,
                "a load does not end: others go on beside it"
            );
        }
        state.guards += 1;
        let id = state.guards;
        state.holder = Some(Holder { guard: id, given_up: given_up.cloned(), known_since: None });
        Some(EngineGuard { lock: self, id, alone: state.stuck == 0 })
    }

    fn wait<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.waiting += 1;
        let woken = self.released.wait_timeout(state, LOOK_EVERY);
        let (mut state, _) = woken.unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        state
    }

    fn wake(&self, state: &State) {
        if state.waiting > 0 {
            self.released.notify_one();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Holder {
    fn is_stuck(&mut self, after: Duration) -> bool {
        let given_up = self.given_up.as_ref().is_some_and(CancellationToken::is_cancelled);
        given_up && self.known_since.get_or_insert_with(Instant::now).elapsed() >= after
    }
}

impl EngineGuard<'_> {
    /// True if no stuck load takes or gives back memory beside it.
    pub(super) fn is_alone(&self) -> bool {
        self.alone
    }
}

impl Drop for EngineGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.lock.state();
        match state.holder.take_if(|holder| holder.guard == self.id) {
            Some(_) => self.lock.wake(&state),
            None => state.stuck = state.stuck.saturating_sub(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn until_one_waits(lock: &EngineLock) {
        while lock.state().waiting == 0 {
            thread::yield_now();
        }
    }

    #[test]
    fn a_load_that_is_given_up_while_it_waits_leaves() {
        let (lock, wanted, given_up) = (EngineLock::default(), CancellationToken::new(), CancellationToken::new());
        let held = lock.for_load(&wanted).expect("nobody holds it");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| lock.for_load(&given_up).is_none());
            until_one_waits(&lock);
            given_up.cancel();
            assert!(waiting.join().expect("it ends"), "it was not to load");
        });
        drop(held);
        assert!(lock.for_load(&given_up).is_none(), "also where nobody holds it");
        assert!(lock.for_load(&wanted).is_some_and(|guard| guard.is_alone()));
    }

    #[test]
    fn one_that_waits_is_next() {
        let (lock, wanted) = (EngineLock::default(), CancellationToken::new());
        let held = lock.for_load(&wanted).expect("nobody holds it");
        thread::scope(|scope| {
            let unload = scope.spawn(|| drop(lock.for_unload()));
            until_one_waits(&lock);
            drop(held);
            unload.join().expect("it ends");
        });
        let mut idle = false;
        lock.if_idle(|| idle = true);
        assert!(idle, "nobody holds it");
    }

    #[test]
    fn a_load_that_is_stuck_is_overtaken_and_sizes_are_estimates_until_it_ends() {
        let lock = EngineLock { stuck_after: Duration::ZERO, ..EngineLock::default() };
        let (wanted, given_up) = (CancellationToken::new(), CancellationToken::new());
        let is_idle = || {
            let mut idle = false;
            lock.if_idle(|| idle = true);
            idle
        };
        let stuck = lock.for_load(&given_up).expect("nobody holds it");
        assert!(stuck.is_alone() && !is_idle());
        given_up.cancel();
        assert!(is_idle(), "its memory is the process's");
        drop(lock.for_unload());
        let next = lock.for_load(&wanted).expect("overtaken once");
        assert!(!next.is_alone() && !is_idle());
        drop(stuck);
        assert!(!is_idle(), "the end of the one is not that of the other");
        drop(next);
        assert!(lock.for_load(&wanted).is_some_and(|guard| guard.is_alone()), "it has ended");
    }
}
