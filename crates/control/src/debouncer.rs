//! A window that the first change opens: what comes while it is open is decided together with it.
//!
//! ```text
//! Quiet ──change──▶ Open{until} ──until──▶ due          (any state) ──hurry──▶ due at once
//! ```
//! The window does not move, so that a steady stream of changes cannot put a decision off for ever.

use std::time::Duration;

use berth_spec::Time;

/// Deadline of an action that later changes may join.
#[derive(Debug, Clone)]
pub(crate) struct Debouncer {
    window: Duration,
    due: Option<Time>,
}

impl Debouncer {
    pub(crate) fn new(window: Duration) -> Self {
        Self { window, due: None }
    }

    /// Something changed that can wait for others.
    pub(crate) fn change(&mut self, now: Time) {
        self.at(now + self.window);
    }

    /// Something changed that cannot wait.
    pub(crate) fn hurry(&mut self, now: Time) {
        self.at(now);
    }

    /// Schedules the action for `at`, unless it is due earlier.
    pub(crate) fn at(&mut self, at: Time) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Time at which the action is due; `None`: nothing has asked for it.
    pub(crate) fn due(&self) -> Option<Time> {
        self.due
    }

    /// True if the action is due; closes the window then.
    pub(crate) fn take(&mut self, now: Time) -> bool {
        let due = self.due.is_some_and(|due| due <= now);
        if due {
            self.due = None;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_change_sets_the_time_and_hurry_beats_it() {
        let (t, window) = (Time(1_000_000_000), Duration::from_millis(10));
        let mut debouncer = Debouncer::new(window);
        assert!(!debouncer.take(t));
        debouncer.change(t);
        debouncer.change(t + window / 2);
        assert_eq!(debouncer.due(), Some(t + window));
        assert!(!debouncer.take(t + window / 2));
        debouncer.hurry(t + window / 2);
        assert!(debouncer.take(t + window / 2));
        assert!(!debouncer.take(t + window), "taken once");
    }
}
