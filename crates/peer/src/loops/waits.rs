//! Waits of loops for events, seen by other loops: a wait that does not end is one for a core.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Wait of a busy loop from which on it seems to have events, and no core.
const STALLED: Duration = Duration::from_micros(200);

/// Loops that each loop looks at: on a machine with many cores there are enough that look.
const SEEN: usize = 4;

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

    /// True if one of the loops after this one waits for a core as it seems: longer than a busy loop waits for events. One that waits for more than
    /// a tick of the kernel has no events.
    pub(super) fn is_another_stalled(&self, index: usize, now: Instant, tick: Duration) -> bool {
        let now = self.nanoseconds(now);
        let longest = (tick + tick / 4).as_nanos() as u64;
        let others = (index + 1..index + self.since.len()).map(|other| other % self.since.len()).take(SEEN);
        others.map(|other| self.since[other].0.load(Relaxed)).any(|since| {
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
    fn a_loop_looks_at_a_few_others() {
        let waits = Waits::of(8);
        let now = waits.start + TICK;
        waits.begin(1, waits.start);
        let seen = (0..8).filter(|index| waits.is_another_stalled(*index, now, TICK)).collect::<Vec<_>>();
        assert_eq!(seen, [0, 5, 6, 7]);
        assert!(!Waits::of(1).is_another_stalled(0, now, TICK), "one loop has no other");
    }
}
