//! Timers in order of time, and the detection of pauses of this process.
//!
//! Only monotonic time is used; wall clocks may jump.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    time::{Duration, Instant},
};

use foca::Timer;

use super::node::Node;

/// A timer of foca's and the time at which it is due.
struct Due {
    at: Instant,
    /// Of two at one time the first set comes first.
    number: u64,
    timer: Timer<Node>,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// Timers that foca asked for.
#[derive(Default)]
pub(super) struct Timers {
    due: BinaryHeap<Reverse<Due>>,
    set: u64,
}

impl Timers {
    pub(super) fn set(&mut self, at: Instant, timer: Timer<Node>) {
        self.set += 1;
        self.due.push(Reverse(Due { at, number: self.set, timer }));
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.due.peek().map(|Reverse(due)| due.at)
    }

    /// The next that is due by `now`.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Timer<Node>> {
        if self.next()? > now {
            return None;
        }
        self.due.pop().map(|Reverse(due)| due.timer)
    }

    /// Forgets them all: they were another foca's.
    pub(super) fn clear(&mut self) {
        self.due.clear();
    }

    /// Gives everybody the time again in which this process was away and could not listen.
    pub(super) fn postpone(&mut self, by: Duration) {
        let postponed = self.due.drain().map(|Reverse(due)| Reverse(Due { at: due.at + by, ..due })).collect();
        self.due = postponed;
    }
}
