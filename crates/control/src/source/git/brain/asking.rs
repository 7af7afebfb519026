//! When the branch is asked for.
//!
//! ```text
//! the interval, a little more or less ─┐
//! webhooks, a second apart ────────────┼──▶ asked ──▶ an answer: rests ──▶ all is well
//! a person, at once ───────────────────┘       └────▶ it failed: a pause, longer each time; after a few the breaker is
//!                                                     open, and only a person gets through it before that is over
//! ```

use std::time::Duration;

use berth_spec::Time;

use super::Fault;

/// First pause after a failure; it doubles. Halved, a host that restarts is asked more often; doubled, a short fault
/// delays a commit by that much more.
const PAUSE: Duration = Duration::from_secs(2);

/// Longest pause after failures that may pass. Halved, a dead host is asked twice as often; doubled, its return is noticed
/// that much later.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(5 * 60);

/// Failures in a row that open the breaker.
const THRESHOLD: u32 = 5;

/// How long an open breaker keeps everybody, webhooks too, from asking.
const OPEN_FOR: Duration = Duration::from_secs(60);

/// How long webhooks wait after a look. Halved, whoever may send them has the host asked twice as often; doubled, the second
/// of two commits in a row is followed that much later.
const APART: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wish {
    None,
    Look,
    Insist,
}

/// When, and how that went.
#[derive(Debug)]
pub(super) struct Asking {
    interval: Duration,
    /// For the spread of polls: two clusters do not ask together for ever.
    dice: u64,
    wish: Wish,
    /// A person has asked, and nothing has come of it yet.
    unanswered: bool,
    /// What is wrong with Git, since how many attempts.
    fault: Option<Fault>,
    failures: u32,
    /// When the clock asks.
    next: Time,
    /// Until when webhooks wait.
    quiet: Time,
}

impl Asking {
    /// At once for the first time.
    pub(super) fn new(interval: Duration, seed: u64, now: Time) -> Self {
        Self {
            interval,
            dice: seed | 1,
            wish: Wish::Look,
            unanswered: false,
            fault: None,
            failures: 0,
            next: now,
            quiet: now,
        }
    }

    /// When [`Asking::begin`] may give something.
    pub(super) fn wake_at(&self) -> Time {
        let heard = self.wish == Wish::Look && !self.is_broken();
        if heard { self.next.min(self.quiet) } else { self.next }
    }

    /// Something may have been pushed.
    pub(super) fn nudged(&mut self) {
        self.wish = self.wish.max(Wish::Look);
    }

    /// A person asks.
    pub(super) fn insisted(&mut self) {
        self.wish = Wish::Insist;
    }

    /// Whether to ask now, and if so whether a person insists: as long as nothing comes of it. [`Asking::rest`] or [`Asking::failed`] must follow.
    pub(super) fn begin(&mut self, now: Time) -> Option<bool> {
        // Nobody asks through an open breaker; a person may.
        let shut = self.is_broken() && now < self.next;
        let heard = self.wish == Wish::Look && !shut && now >= self.quiet;
        if self.wish != Wish::Insist && !heard && now < self.next {
            return None;
        }
        self.quiet = now + APART;
        // Cleared now: what is pushed while the answer is on its way may not be in it.
        self.unanswered |= std::mem::replace(&mut self.wish, Wish::None) == Wish::Insist;
        Some(self.unanswered)
    }

    /// The next poll: the interval with 5 % more or less.
    pub(super) fn rest(&mut self, now: Time) {
        // xorshift64: any spread will do.
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        let spread = (self.dice % 1_001) as f64 / 1_000.0;
        self.next = now + self.interval.mul_f64(0.95 + 0.1 * spread);
    }

    /// Git does what it should.
    pub(super) fn well(&mut self) {
        (self.failures, self.fault, self.unanswered) = (0, None, false);
    }

    /// Asking failed, or reading what was found.
    pub(super) fn failed(&mut self, fault: Fault, now: Time) {
        // Whoever asks while that is under way is not answered by it.
        if self.wish == Wish::Look {
            self.wish = Wish::None;
        }
        let pause = pause(self.failures);
        self.failures = self.failures.saturating_add(1);
        let least = if self.is_broken() { OPEN_FOR } else { Duration::ZERO };
        // What needs a person is not worth many questions, but a person may mend it elsewhere and say nothing.
        let slow = if fault.passing { Duration::ZERO } else { self.interval };
        self.next = now + pause.max(least).max(slow);
        self.fault = Some(fault);
    }

    /// Something else of Git failed: told, and no reason to ask less often.
    pub(super) fn hindered(&mut self, fault: Fault) {
        self.fault = Some(fault);
    }

    /// What is wrong.
    pub(super) const fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    /// Failures in a row.
    pub(super) const fn failures(&self) -> u32 {
        self.failures
    }

    /// When the clock asks next.
    pub(super) const fn next(&self) -> Time {
        self.next
    }

    /// So many failures that nobody should ask for a while.
    pub(super) const fn is_broken(&self) -> bool {
        self.failures >= THRESHOLD
    }
}

/// After so many failures before this one.
pub(super) fn pause(failures: u32) -> Duration {
    PAUSE.saturating_mul(1 << failures.min(10)).min(LONGEST_PAUSE)
}
