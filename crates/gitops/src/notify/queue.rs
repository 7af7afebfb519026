//! The queue of one target: messages go in order, one at a time, and are tried again until they are too old. Pure.
//!
//! ```text
//! put ──▶ waiting ── next ──▶ under way ── Yes ──────────────▶ gone
//!            ▲                    ├── Never, or too old ──────▶ given up
//!            └── a pause ◀─ Later ┘
//! ```

use std::{collections::VecDeque, time::Duration};

use berth_spec::{Time, worker::BreakerState};

/// The most messages that wait for one target: enough for an outage of a chat, and few enough to be read at once
/// afterwards.
const MAX_QUEUED_MESSAGES: usize = 64;

/// Pauses between attempts; the last one from then on. A chat that restarts hears within seconds, and one that is down is asked
/// once a minute.
const PAUSES: [Duration; 3] = [Duration::from_secs(2), Duration::from_secs(10), Duration::from_secs(60)];

/// The age at which a message is dropped: an outage of half an hour loses none, and nobody reads about what was hours
/// ago.
const MAX_AGE: Duration = Duration::from_secs(60 * 60);

/// Failures in a row after which the breaker is shown as open: one or two happen on any network.
pub(crate) const THRESHOLD: u32 = 5;

/// The outcome of one attempt, which decides about the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// The target accepted it.
    Taken,
    /// The target may accept it later.
    Later,
    /// The target will never accept it.
    Never,
}

/// Messages of one target in order, with the pause after failures.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    waiting: VecDeque<(T, Time)>,
    under_way: bool,
    failures: u32,
    next: Time,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), under_way: false, failures: 0, next: Time::ZERO }
    }
}

impl<T: Clone> Queue<T> {
    /// Adds one; gives how many had to go for it.
    pub(crate) fn put(&mut self, what: T, now: Time) -> u64 {
        self.waiting.push_back((what, now));
        let first = usize::from(self.under_way);
        if self.waiting.len() > MAX_QUEUED_MESSAGES && self.waiting.remove(first).is_some() { 1 } else { 0 }
    }

    /// Takes out what waits and is not under way.
    pub(crate) fn withdraw(&mut self, is: impl Fn(&T) -> bool) -> Vec<T> {
        let (under_way, mut at, mut withdrawn) = (self.under_way, 0, Vec::new());
        self.waiting.retain(|(what, _)| {
            at += 1;
            let stays = (under_way && at == 1) || !is(what);
            if !stays {
                withdrawn.push(what.clone());
            }
            stays
        });
        withdrawn
    }

    /// All that is here, what is under way too.
    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        self.waiting.iter().map(|(what, _)| what)
    }

    /// When [`Queue::next`] gives something.
    pub(crate) fn wake_at(&self) -> Option<Time> {
        (!self.under_way && !self.waiting.is_empty()).then_some(self.next)
    }

    /// The next message to send. [`Queue::done`] must follow.
    pub(crate) fn next(&mut self, now: Time) -> Option<T> {
        self.wake_at().filter(|at| *at <= now)?;
        self.under_way = true;
        self.waiting.front().map(|(what, _)| what.clone())
    }

    /// Records the outcome of an attempt; `true` if the message was given up.
    pub(crate) fn done(&mut self, attempt: Attempt, now: Time) -> bool {
        self.under_way = false;
        if attempt == Attempt::Taken {
            (self.failures, self.next) = (0, now);
            self.waiting.pop_front();
            return false;
        }
        let pause = PAUSES[PAUSES.len().min(self.failures as usize + 1) - 1];
        self.failures = self.failures.saturating_add(1);
        let old = self.waiting.front().is_some_and(|(_, since)| now.since(*since) >= MAX_AGE);
        let given_up = attempt == Attempt::Never || old;
        if given_up {
            self.waiting.pop_front();
        }
        // The next message may be taken though this one was not.
        let soon = attempt == Attempt::Never && self.failures < THRESHOLD;
        self.next = if soon { now } else { now + pause };
        given_up
    }

    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    pub(crate) fn breaker(&self) -> BreakerState {
        match (self.failures >= THRESHOLD, self.under_way) {
            (false, _) => BreakerState::Closed,
            (true, true) => BreakerState::HalfOpen,
            (true, false) => BreakerState::Open,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn one_goes_at_a_time_in_order_and_comes_again_until_it_is_old() {
        let mut queue = Queue::default();
        queue.put("a", at(0));
        queue.put("b", at(0));
        assert_eq!((queue.next(at(0)), queue.next(at(0))), (Some("a"), None), "one at a time");
        let mut pauses = Vec::new();
        let mut now = at(0);
        loop {
            let given_up = queue.done(Attempt::Later, now);
            if given_up {
                break;
            }
            let then = queue.wake_at().expect("again");
            pauses.push(then.since(now).as_secs());
            now = then;
            assert_eq!((queue.next(now), queue.breaker() == BreakerState::HalfOpen), (Some("a"), pauses.len() >= 5));
        }
        assert_eq!((&pauses[..4], now.since(at(0)) >= MAX_AGE), (&[2, 10, 60, 60][..], true));
        assert_eq!(queue.breaker(), BreakerState::Open);
        now = queue.wake_at().expect("the other one");
        assert_eq!(queue.next(now), Some("b"));
        assert!(!queue.done(Attempt::Taken, now));
        assert_eq!((queue.wake_at(), queue.breaker()), (None, BreakerState::Closed));
    }

    #[test]
    fn what_is_never_taken_holds_nothing_up_until_it_is_the_rule() {
        let mut queue = Queue::default();
        assert_eq!((0..10).map(|n| queue.put(n, at(0))).sum::<u64>(), 0);
        for n in 0..5 {
            assert_eq!(queue.next(at(0)), Some(n));
            assert!(queue.done(Attempt::Never, at(0)));
        }
        assert_eq!((queue.next(at(0)), queue.wake_at()), (None, Some(at(60))));
    }

    #[test]
    fn it_is_bounded_and_what_is_under_way_stays() {
        let mut queue = Queue::default();
        assert_eq!(queue.put(0, at(0)), 0);
        assert_eq!(queue.next(at(0)), Some(0));
        let lost: u64 = (1..MAX_QUEUED_MESSAGES + 10).map(|n| queue.put(n, at(0))).sum();
        assert_eq!(lost, 10, "the oldest that wait");
        assert_eq!(queue.withdraw(|n| *n % 2 == 0).len(), 31, "but not what is under way");
        queue.done(Attempt::Taken, at(0));
        assert_eq!(queue.next(at(0)), Some(11));
    }
}
