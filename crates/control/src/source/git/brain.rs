//! What the Git source does next. One thing at a time; what comes in meanwhile is remembered, not queued.
//!
//! ```text
//!            first good commit known                 tip is new                   good
//! Restoring ─────────────────────────▶ Waiting ──▶ Looking ──▶ Checking ──────────────▶ Applying ──▶ Waiting
//!                                         ▲  ▲        │            │ refused: the last good one stays     │
//!                                         │  └────────┴────────────┘                                     │
//!                                         └───────────────── failed: later, more and more ───────────────┘
//! ```
//! A commit that was refused is looked at again when something that it depends on may have changed: a repository could
//! not be reached, or a person asks. What is wrong with its own files does not change, so it is not.

use std::time::Duration;

use berth_git::Oid;
use berth_spec::{Time, worker::BreakerState};

/// First pause after a failure; it doubles. Halved, a host that restarts is asked more often; doubled, a short fault
/// delays a commit by that much more.
const PAUSE: Duration = Duration::from_secs(2);

/// Longest pause after failures that may pass. Halved, a dead host is asked twice as often; doubled, its return is noticed
/// that much later.
const LONGEST_PAUSE: Duration = Duration::from_secs(5 * 60);

/// Failures in a row that open the breaker.
const THRESHOLD: u32 = 5;

/// How long an open breaker keeps everybody, webhooks too, from asking.
const OPEN_FOR: Duration = Duration::from_secs(60);

/// How often what is declared is compared with the last good commit though nothing was pushed. Halved, it costs twice the
/// reads; doubled, what somebody took away by hand comes back that much later.
const AGAIN: Duration = Duration::from_secs(10 * 60);

/// How long after a refusal that may pass the same commit is validated again; it doubles up to [`LONGEST_PAUSE`].
const VALIDATE_AGAIN: Duration = Duration::from_secs(15);

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// Time has passed.
    Tick,
    /// Something may have been pushed.
    Nudged,
    /// A person asks: whatever was refused is validated again.
    Asked,
    /// The last good commit was read again, or could not be.
    Restored(Result<(), Fault>),
    /// Where the branch is; `None`: it is not there.
    Looked(Result<Oid, Fault>),
    /// What became of the validation.
    Checked(Verdict),
    /// What became of the declarations.
    Applied(Result<(), Fault>),
}

/// What validation makes of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It passes.
    Good,
    /// It differs from the last one only in what controllers write.
    OwnOnly,
    /// It is refused; `passing`: what is wrong may pass.
    Refused {
        /// It may.
        passing: bool,
    },
    /// It could not be validated.
    Failed(Fault),
}

/// Why something did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    /// For people.
    pub(super) message: String,
    /// It may succeed later without anybody acting.
    pub(super) passing: bool,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    /// Read the settings and secrets of the last good commit again: this process knows none.
    Restore(Oid),
    /// Ask where the branch is.
    Look,
    /// Fetch and validate a commit.
    Check(Oid),
    /// Declare what it wants; `was_checked` a moment ago, or earlier.
    Apply(Oid),
    /// The branch is where the last good commit is: nothing is wrong any more.
    Settled,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Doing {
    Restoring,
    /// `insists`: a person asks.
    Looking {
        insists: bool,
    },
    Checking(Oid),
    Applying(Oid),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wish {
    None,
    Look,
    Insist,
}

/// A commit that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Refused {
    commit: Oid,
    /// How often, and when it is validated again; `None`: not before something changes.
    again: Option<(u32, Time)>,
}

/// How the source stands, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nothing is known yet.
    Starting,
    /// The newest commit is in force.
    Synced,
    /// A newer commit is on its way.
    Progressing,
    /// The newest commit is refused; the last good one is in force.
    Refused,
    /// Something failed and is tried again.
    Retrying,
    /// Nothing changes until a person acts.
    Stalled,
}

impl Standing {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "Starting",
            Self::Synced => "Synced",
            Self::Progressing => "Progressing",
            Self::Refused => "Refused",
            Self::Retrying => "Retrying",
            Self::Stalled => "Stalled",
        }
    }
}

/// The brain.
#[derive(Debug)]
pub(super) struct Brain {
    interval: Duration,
    /// For the spread of polls: two clusters do not ask together for ever.
    dice: u64,
    doing: Option<Doing>,
    wish: Wish,
    /// Where the branch was last seen.
    tip: Option<Oid>,
    /// The last good commit, in force.
    applied: Option<Oid>,
    /// This process has declared it.
    declared: bool,
    refused: Option<Refused>,
    fault: Option<Fault>,
    failures: u32,
    next: Time,
    again: Time,
}

impl Brain {
    /// `applied` is what the store remembers.
    pub(super) fn new(interval: Duration, applied: Option<Oid>, seed: u64, now: Time) -> (Self, Vec<Effect>) {
        let restore = applied.clone();
        let mut brain = Self {
            interval,
            dice: seed | 1,
            doing: None,
            wish: Wish::Look,
            tip: None,
            applied,
            declared: false,
            refused: None,
            fault: None,
            failures: 0,
            next: now,
            again: now + AGAIN,
        };
        let effects = match restore {
            Some(commit) => {
                brain.doing = Some(Doing::Restoring);
                vec![Effect::Restore(commit)]
            }
            None => brain.start(now),
        };
        (brain, effects)
    }

    /// When [`Event::Tick`] is due.
    pub(super) fn wake_at(&self) -> Option<Time> {
        if self.doing.is_some() {
            return None;
        }
        let validated = self.validated_again().unwrap_or(self.next);
        // Nothing is declared again before it was declared once.
        let declared = if self.declared { self.again } else { self.next };
        Some(self.next.min(validated).min(declared))
    }

    /// The last good commit.
    pub(super) const fn applied(&self) -> Option<&Oid> {
        self.applied.as_ref()
    }

    /// Where the branch was last seen.
    pub(super) const fn tip(&self) -> Option<&Oid> {
        self.tip.as_ref()
    }

    /// Failures in a row.
    pub(super) const fn failures(&self) -> u32 {
        self.failures
    }

    /// When the branch is asked next.
    pub(super) const fn next(&self) -> Time {
        self.next
    }

    /// When the refused commit is validated again.
    pub(super) fn validated_again(&self) -> Option<Time> {
        self.refused.as_ref().and_then(|refused| refused.again).map(|(_, at)| at)
    }

    pub(super) fn breaker(&self) -> BreakerState {
        match (self.failures >= THRESHOLD, &self.doing) {
            (false, _) => BreakerState::Closed,
            (true, Some(_)) => BreakerState::HalfOpen,
            (true, None) => BreakerState::Open,
        }
    }

    pub(super) fn standing(&self) -> Standing {
        match (&self.fault, &self.refused, &self.applied) {
            (Some(fault), ..) if fault.passing => Standing::Retrying,
            (Some(_), ..) => Standing::Stalled,
            (None, Some(_), _) => Standing::Refused,
            (None, None, Some(applied)) if self.declared && self.tip.as_ref() == Some(applied) => Standing::Synced,
            (None, None, _) if matches!(self.doing, Some(Doing::Checking(_) | Doing::Applying(_))) => {
                Standing::Progressing
            }
            // What controllers wrote lies on top of it.
            (None, None, Some(_)) if self.declared => Standing::Synced,
            (None, None, _) => Standing::Starting,
        }
    }

    pub(super) const fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    pub(super) fn on(&mut self, event: Event, now: Time) -> Vec<Effect> {
        match event {
            Event::Tick => {}
            Event::Nudged => self.wish = self.wish.max(Wish::Look),
            Event::Asked => self.wish = Wish::Insist,
            Event::Restored(result) => {
                self.doing = None;
                self.next = now;
                // Told, and no reason to stop: what is in the store stays in force.
                if let Err(fault) = result {
                    self.fault = Some(fault);
                }
            }
            Event::Looked(Ok(tip)) => return self.looked(tip, now),
            Event::Looked(Err(fault)) => self.failed(fault, now),
            Event::Checked(verdict) => return self.checked(verdict, now),
            Event::Applied(Ok(())) => {
                if let Some(Doing::Applying(commit)) = self.doing.take() {
                    self.applied = Some(commit);
                }
                (self.declared, self.fault) = (true, None);
                self.again = now + AGAIN;
                self.rest(now);
            }
            Event::Applied(Err(fault)) => {
                self.again = now + AGAIN;
                self.failed(fault, now);
            }
        }
        self.start(now)
    }

    /// Begins what is due.
    fn start(&mut self, now: Time) -> Vec<Effect> {
        if self.doing.is_some() {
            return Vec::new();
        }
        // Nobody asks through an open breaker; a person may.
        let shut = self.failures >= THRESHOLD && now < self.next;
        let asked = self.wish == Wish::Insist || (self.wish == Wish::Look && !shut);
        if asked || now >= self.next {
            // Cleared now: what is pushed while the answer is on its way may not be in it.
            let insists = std::mem::replace(&mut self.wish, Wish::None) == Wish::Insist;
            self.doing = Some(Doing::Looking { insists });
            return vec![Effect::Look];
        }
        let due = self.refused.as_ref().filter(|refused| refused.again.is_some_and(|(_, at)| now >= at));
        if let Some(commit) = due.map(|refused| refused.commit.clone()) {
            return self.check(commit);
        }
        if now >= self.again
            && self.declared
            && let Some(applied) = self.applied.clone()
        {
            self.doing = Some(Doing::Applying(applied.clone()));
            return vec![Effect::Apply(applied)];
        }
        Vec::new()
    }

    fn looked(&mut self, tip: Oid, now: Time) -> Vec<Effect> {
        let insisted = matches!(self.doing, Some(Doing::Looking { insists: true }));
        (self.doing, self.failures, self.fault) = (None, 0, None);
        self.rest(now);
        let moved = self.tip.as_ref() != Some(&tip);
        self.tip = Some(tip.clone());
        let is_refused = self.refused.as_ref().is_some_and(|refused| refused.commit == tip);
        if self.declared && self.applied.as_ref() == Some(&tip) && !insisted {
            self.refused = None;
            return vec![Effect::Settled];
        }
        if is_refused && !insisted {
            return self.start(now);
        }
        // What is known to differ from the last good commit only in what controllers wrote is not looked at twice.
        if !moved && self.declared && self.refused.is_none() && !insisted {
            return self.start(now);
        }
        self.check(tip)
    }

    fn check(&mut self, commit: Oid) -> Vec<Effect> {
        self.doing = Some(Doing::Checking(commit.clone()));
        vec![Effect::Check(commit)]
    }

    fn checked(&mut self, verdict: Verdict, now: Time) -> Vec<Effect> {
        let Some(Doing::Checking(commit)) = self.doing.take() else { return self.start(now) };
        match verdict {
            Verdict::Good => {
                self.refused = None;
                self.doing = Some(Doing::Applying(commit.clone()));
                return vec![Effect::Apply(commit)];
            }
            Verdict::OwnOnly => {
                self.refused = None;
                return vec![Effect::Settled];
            }
            Verdict::Refused { passing } => {
                let times = match &self.refused {
                    Some(Refused { commit: same, again: Some((times, _)) }) if *same == commit => *times + 1,
                    _ => 0,
                };
                let pause = VALIDATE_AGAIN.saturating_mul(1 << times.min(10)).min(LONGEST_PAUSE);
                self.refused = Some(Refused { commit, again: passing.then(|| (times, now + pause)) });
            }
            Verdict::Failed(fault) => self.failed(fault, now),
        }
        self.start(now)
    }

    fn failed(&mut self, fault: Fault, now: Time) {
        self.doing = None;
        self.wish = Wish::None;
        // So that it is looked at again, though the branch may not have moved.
        self.tip = None;
        let pause = PAUSE.saturating_mul(1 << self.failures.min(10)).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        let least = if self.failures >= THRESHOLD { OPEN_FOR } else { Duration::ZERO };
        // What needs a person is not worth many questions, but a person may mend it elsewhere and say nothing.
        let slow = if fault.passing { Duration::ZERO } else { self.interval };
        self.next = now + pause.max(least).max(slow);
        self.fault = Some(fault);
    }

    /// The next poll: the interval with 5 % more or less.
    fn rest(&mut self, now: Time) {
        // xorshift64: any spread will do.
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        let spread = (self.dice % 1_001) as f64 / 1_000.0;
        self.next = now + self.interval.mul_f64(0.95 + 0.1 * spread);
    }
}

#[cfg(test)]
mod tests;
