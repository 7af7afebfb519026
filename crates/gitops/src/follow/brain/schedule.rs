//! The schedule of polls.
//!
//! ```text
//! the interval, a little more or less ─┐
//! webhooks, a second apart ────────────┼──▶ asked ──▶ an answer: rests ──▶ all is well
//! a person, at once ───────────────────┘       └────▶ it failed: a pause, longer each time; after a few the breaker is
//!                                                     open, and only a person gets through it before that is over
//! ```

use std::time::Duration;

use berth_spec::Time;

use crate::follow::verdict::FollowError;

/// The first pause after a failure, which doubles: a short fault delays a commit by little.
const FIRST_PAUSE: Duration = Duration::from_secs(2);

/// The longest pause after failures that may pass: the return of a host is noticed within it.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(5 * 60);

/// Failures in a row that open the breaker: half a minute of outage, and not one lost connection.
const THRESHOLD: u32 = 5;

/// The time for which an open breaker stops all polls, also those that webhooks ask for.
const OPEN_FOR: Duration = Duration::from_secs(60);

/// The pause between a poll and one for a webhook: senders cause at most one poll a second.
const APART: Duration = Duration::from_secs(1);

/// The reason for the next poll, besides the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Trigger {
    None,
    /// Something may have been pushed.
    Poll,
    /// A person asks.
    Insist,
}

/// The schedule of polls, and the failures so far.
#[derive(Debug)]
pub(crate) struct PollSchedule {
    interval: Duration,
    /// For the spread of polls: two clusters do not ask together for ever.
    dice: u64,
    trigger: Trigger,
    /// A person has asked, and nothing has come of it yet.
    unanswered: bool,
    /// The failure of Git, and the attempts since then.
    fault: Option<FollowError>,
    failures: u32,
    /// When the clock asks.
    next: Time,
    /// Until when webhooks wait.
    quiet: Time,
}

impl PollSchedule {
    /// At once for the first time.
    pub(crate) fn new(interval: Duration, seed: u64, now: Time) -> Self {
        Self {
            interval,
            dice: seed | 1,
            trigger: Trigger::Poll,
            unanswered: false,
            fault: None,
            failures: 0,
            next: now,
            quiet: now,
        }
    }

    /// When [`PollSchedule::begin`] may give something.
    pub(crate) fn wake_at(&self) -> Time {
        let heard = self.trigger == Trigger::Poll && !self.is_broken();
        if heard { self.next.min(self.quiet) } else { self.next }
    }

    /// Something may have been pushed.
    pub(crate) fn on_webhook(&mut self) {
        self.trigger = self.trigger.max(Trigger::Poll);
    }

    /// A person asks.
    pub(crate) fn on_sync(&mut self) {
        self.trigger = Trigger::Insist;
    }

    /// Begins a poll if one is due; true if a person has asked and has had no answer yet. [`PollSchedule::rest`] or
    /// [`PollSchedule::failed`] must follow.
    pub(crate) fn begin(&mut self, now: Time) -> Option<bool> {
        // Nobody asks through an open breaker; a person may.
        let shut = self.is_broken() && now < self.next;
        let heard = self.trigger == Trigger::Poll && !shut && now >= self.quiet;
        if self.trigger != Trigger::Insist && !heard && now < self.next {
            return None;
        }
        self.quiet = now + APART;
        // Cleared now: what is pushed while the answer is on its way may not be in it.
        self.unanswered |= std::mem::replace(&mut self.trigger, Trigger::None) == Trigger::Insist;
        Some(self.unanswered)
    }

    /// The next poll: the interval with 5 % more or less.
    pub(crate) fn rest(&mut self, now: Time) {
        // xorshift64: any spread will do.
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        let spread = (self.dice % 1_001) as f64 / 1_000.0;
        self.next = now + self.interval.mul_f64(0.95 + 0.1 * spread);
    }

    /// Git does what it should.
    pub(crate) fn on_success(&mut self) {
        (self.failures, self.fault, self.unanswered) = (0, None, false);
    }

    /// PollSchedule failed, or reading what was found.
    pub(crate) fn failed(&mut self, fault: FollowError, now: Time) {
        // Whoever asks while that is under way is not answered by it.
        if self.trigger == Trigger::Poll {
            self.trigger = Trigger::None;
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
    pub(crate) fn record_error(&mut self, fault: FollowError) {
        self.fault = Some(fault);
    }

    /// The failure of Git, if there is one.
    pub(crate) const fn fault(&self) -> Option<&FollowError> {
        self.fault.as_ref()
    }

    /// Failures since the last success.
    pub(crate) const fn failures(&self) -> u32 {
        self.failures
    }

    /// When the clock asks next.
    pub(crate) const fn next(&self) -> Time {
        self.next
    }

    /// So many failures that nobody should ask for a while.
    pub(crate) const fn is_broken(&self) -> bool {
        self.failures >= THRESHOLD
    }
}

/// After so many failures before this one.
pub(crate) fn pause(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << failures.min(10)).min(LONGEST_PAUSE)
}
