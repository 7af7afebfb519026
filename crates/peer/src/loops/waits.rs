//! Waits of loops for events, seen by other loops: where a busy loop waits for long, it has events and waits for a core.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Wait of a busy loop from which on it seems to have events, and no core.
pub(super) const STALLED: Duration = Duration::from_micros(500);

/// The most loops of which one looks at all others. Where there are more, nobody waits for the core of a client for long, or one loop that
/// sleeps leaves the client with enough to do.
const MOST: usize = 4;

/// Begin of the wait of each busy loop.
#[derive(Debug)]
pub(super) struct Waits {
    start: Instant,
    since: Box<[Since]>,
}

/// Nanoseconds from the start; 0: it does not wait, or is not busy. Each loop writes its own, in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Since(AtomicU64);

impl Waits {
    pub(super) fn of(count: usize) -> Self {
        Self { start: Instant::now(), since: (0..count).map(|_| Since::default()).collect() }
    }

    /// Notes that the busy loop of that index waits.
    pub(super) fn begin(&self, index: usize, now: Instant) {
        self.since[index].0.store(self.nanoseconds(now).max(1), Relaxed);
    }

    /// Notes that the loop of that index does not wait any more.
    pub(super) fn end(&self, index: usize) {
        self.since[index].0.store(0, Relaxed);
    }

    /// True if another busy loop seems to wait for a core. One that has waited for more than a tick has had its turn, and has no events.
    pub(super) fn is_another_stalled(&self, index: usize, now: Instant, tick: Duration) -> bool {
        if self.since.len() > MOST {
            return false;
        }
        let now = self.nanoseconds(now);
        let longest = (tick + tick / 4).as_nanos() as u64;
        self.since.iter().enumerate().filter(|(other, _)| *other != index).any(|(_, since)| {
            let since = since.0.load(Relaxed);
            let wait = now.saturating_sub(since);
            since != 0 && wait >= STALLED.as_nanos() as u64 && wait <= longest
        })
    }

    fn nanoseconds(&self, now: Instant) -> u64 {
        now.duration_since(self.start).as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(4);

    #[test]
    fn a_loop_sees_that_another_waits_for_a_core() {
        let waits = Waits::of(2);
        let at = |time: Duration| waits.start + time;
        let is_stalled = |index, time| waits.is_another_stalled(index, at(time), TICK);
        assert!(!is_stalled(0, TICK), "nobody waits");
        waits.begin(1, at(TICK));
        assert!(!is_stalled(0, TICK + STALLED / 2));
        assert!(is_stalled(0, TICK + STALLED));
        assert!(!is_stalled(1, TICK + STALLED), "its own wait is none of another");
        assert!(!is_stalled(0, TICK * 3), "it has nothing to do");
        waits.end(1);
        assert!(!is_stalled(0, TICK + STALLED));
    }

    #[test]
    fn a_few_loops_look_at_all_others_and_many_at_none() {
        for count in [1, 2, MOST, MOST + 1] {
            let waits = Waits::of(count);
            waits.begin(0, waits.start);
            let seen = (0..count).filter(|index| waits.is_another_stalled(*index, waits.start + TICK, TICK)).count();
            assert_eq!(seen, if count > MOST { 0 } else { count - 1 });
        }
    }
}
