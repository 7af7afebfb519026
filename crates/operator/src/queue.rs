//! The work queue: which object is looked at next.
//!
//! ```text
//!  add ──▶ due ──take──▶ running ──done──▶ (gone, or due at once if something happened meanwhile)
//!                            └────failed──▶ due later, twice as late after each failure; soon if something happened meanwhile
//! ```
//! One attempt at a time per object. Bounded by the number of objects: an object that is added twice is in it once.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// The wait after the first failure: longer than a conflict lasts, shorter than people notice.
const FIRST_BACKOFF: Duration = Duration::from_millis(500);

/// The longest wait: a cluster that comes back is used within minutes.
const MAX_BACKOFF: Duration = Duration::from_mins(5);

/// Keys with the time when each is due.
#[derive(Debug)]
pub struct Queue<K> {
    due: BTreeSet<(Instant, K)>,
    entries: BTreeMap<K, KeyState>,
}

#[derive(Debug, Default)]
struct KeyState {
    due: Option<Instant>,
    running: bool,
    /// Something happened while it ran.
    dirty: bool,
    failures: u32,
}

impl<K: Ord + Clone> Default for Queue<K> {
    fn default() -> Self {
        Self { due: BTreeSet::new(), entries: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> Queue<K> {
    /// Something happened to `key`: it is due now, also if it was waiting after a failure.
    pub fn add(&mut self, key: K, now: Instant) {
        let entry = self.entries.entry(key.clone()).or_default();
        if entry.running {
            entry.dirty = true;
            return;
        }
        self.schedule(key, now);
    }

    /// The next key that is due; it is running until [`done`](Self::done) or [`failed`](Self::failed).
    pub fn take(&mut self, now: Instant) -> Option<K> {
        let first = self.due.first().filter(|(due, _)| *due <= now)?.clone();
        self.due.remove(&first);
        let entry = self.entries.entry(first.1.clone()).or_default();
        entry.due = None;
        entry.running = true;
        Some(first.1)
    }

    /// An attempt ended well.
    pub fn done(&mut self, key: &K, now: Instant) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let again = entry.dirty;
        *entry = KeyState::default();
        match again {
            true => self.schedule(key.clone(), now),
            false => drop(self.entries.remove(key)),
        }
    }

    /// An attempt failed. Returns the wait before the next.
    pub fn failed(&mut self, key: &K, now: Instant) -> Duration {
        let entry = self.entries.entry(key.clone()).or_default();
        let wait = match entry.dirty {
            true => FIRST_BACKOFF,
            false => FIRST_BACKOFF.saturating_mul(1 << entry.failures.min(16)).min(MAX_BACKOFF),
        };
        entry.failures = entry.failures.saturating_add(1);
        entry.running = false;
        entry.dirty = false;
        self.schedule(key.clone(), now + wait);
        wait
    }

    /// When the next key is due.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Keys that are due or run.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if nothing is due and nothing runs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn schedule(&mut self, key: K, at: Instant) {
        let entry = self.entries.entry(key.clone()).or_default();
        if let Some(before) = entry.due {
            if before <= at {
                return;
            }
            self.due.remove(&(before, key.clone()));
        }
        entry.due = Some(at);
        self.due.insert((at, key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_attempt_at_a_time_and_none_is_forgotten() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add("a", now);
        queue.add("a", now);
        assert_eq!(queue.take(now), Some("a"));
        queue.add("a", now);
        assert_eq!(queue.take(now), None, "it runs");
        queue.done(&"a", now);
        assert_eq!(queue.take(now), Some("a"), "something happened meanwhile");
        queue.done(&"a", now);
        assert_eq!((queue.take(now), queue.wake_at()), (None, None));
    }

    #[test]
    fn failures_wait_longer_and_news_wait_for_nothing() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.add("a", now);
        let waits: Vec<_> = (0..12)
            .map(|_| {
                let due = queue.wake_at().expect("it is tried again");
                queue.take(due);
                queue.failed(&"a", due).as_millis()
            })
            .collect();
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 128_000, 256_000, 300_000, 300_000]);
        queue.add("a", now);
        assert_eq!(queue.take(now), Some("a"));
        queue.add("a", now);
        assert_eq!(queue.failed(&"a", now), FIRST_BACKOFF, "it was repaired while the attempt failed");
    }
}
