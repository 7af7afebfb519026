//! What the Git source does next. One thing at a time; what comes in meanwhile is remembered, not queued.
//!
//! ```text
//!            first good commit known                 tip is new                   good
//! Restoring ─────────────────────────▶ Waiting ──▶ Looking ──▶ Checking ──────────────▶ Applying ──▶ Waiting
//!                                       │ ▲  ▲        │            │ refused: the last good one stays   ▲ │ not all: later,
//!      the newest is not to be had, and │ │  └────────┴────────────┘ failed: later, more and more       │ └─▶ Waiting
//!      this process has declared nothing└─┼─▶ Renewing ─────────── the last good one still passes ──────┘
//!                                         └──────┘ it does not
//! ```
//! A commit that was refused is looked at again when something that it depends on may have changed: a repository could
//! not be reached, or a person asks. What is wrong with its own files does not change, so it is not.
//!
//! A commit that has passed is *owed* until all of it is declared. That the store does not take it says nothing of the
//! host: only what Git does counts for the breaker.

mod asking;

use std::time::Duration;

use berth_git::Oid;
use berth_spec::{Time, worker::BreakerState};

use self::asking::{Asking, LONGEST_PAUSE, pause};

/// How often what is declared is compared with the last good commit though nothing was pushed. Halved, it costs twice the
/// reads; doubled, what somebody took away by hand comes back that much later.
const AGAIN: Duration = Duration::from_secs(10 * 60);

/// How long after a refusal that may pass the same commit is validated again; it doubles up to [`LONGEST_PAUSE`].
const VALIDATE_AGAIN: Duration = Duration::from_secs(15);

/// How long after the last good commit could not be read or validated again that is tried once more. Halved, a host that is
/// away is asked twice as often; doubled, workers are without their credentials that much longer.
const RENEW_AGAIN: Duration = Duration::from_secs(60);

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
    /// What became of validating the last good commit again.
    Renewed(Result<(), Fault>),
    /// What became of the declarations.
    Applied(Result<(), Fault>),
    /// What is declared is not what is in force any more.
    Stale,
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
    /// Validate the last good commit again, and tell nobody: this process knows only which it is.
    Renew(Oid),
    /// Declare what it wants: it has passed, a moment ago or earlier.
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
    Renewing(Oid),
    Applying(Oid),
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
    asking: Asking,
    doing: Option<Doing>,
    /// Where the branch was last seen.
    tip: Option<Oid>,
    /// The last good commit, in force.
    applied: Option<Oid>,
    /// Its settings and secrets are known.
    restored: bool,
    /// This process has declared it.
    declared: bool,
    /// What has passed, and is not declared whole.
    owed: Option<Oid>,
    /// How often that failed, and why.
    undeclared: Option<(u32, Fault)>,
    refused: Option<Refused>,
    /// When something is declared, though nothing was pushed.
    again: Time,
}

impl Brain {
    /// `applied` is what the store remembers.
    pub(super) fn new(interval: Duration, applied: Option<Oid>, seed: u64, now: Time) -> (Self, Vec<Effect>) {
        let restore = applied.clone();
        let mut brain = Self {
            asking: Asking::new(interval, seed, now),
            doing: None,
            tip: None,
            applied,
            restored: false,
            declared: false,
            owed: None,
            undeclared: None,
            refused: None,
            again: now,
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
        let declared = self.declares().map(|_| self.again);
        [Some(self.asking.wake_at()), self.validated_again(), declared].into_iter().flatten().min()
    }

    /// The last good commit.
    pub(super) const fn applied(&self) -> Option<&Oid> {
        self.applied.as_ref()
    }

    /// Where the branch was last seen.
    pub(super) const fn tip(&self) -> Option<&Oid> {
        self.tip.as_ref()
    }

    /// The commit that is being validated.
    pub(super) const fn checking(&self) -> Option<&Oid> {
        match &self.doing {
            Some(Doing::Checking(commit)) => Some(commit),
            _ => None,
        }
    }

    /// Failures in a row.
    pub(super) const fn failures(&self) -> u32 {
        self.asking.failures()
    }

    /// When the branch is asked next.
    pub(super) const fn next(&self) -> Time {
        self.asking.next()
    }

    /// When the refused commit is validated again.
    pub(super) fn validated_again(&self) -> Option<Time> {
        self.refused.as_ref().and_then(|refused| refused.again).map(|(_, at)| at)
    }

    pub(super) fn breaker(&self) -> BreakerState {
        match (self.asking.is_broken(), &self.doing) {
            (false, _) => BreakerState::Closed,
            (true, Some(Doing::Looking { .. } | Doing::Checking(_))) => BreakerState::HalfOpen,
            (true, _) => BreakerState::Open,
        }
    }

    pub(super) fn standing(&self) -> Standing {
        match (self.fault(), &self.refused, &self.applied) {
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

    /// What keeps it from following the branch, or from declaring what has passed.
    pub(super) fn fault(&self) -> Option<&Fault> {
        self.asking.fault().or(self.undeclared.as_ref().map(|(_, fault)| fault))
    }

    pub(super) fn on(&mut self, event: Event, now: Time) -> Vec<Effect> {
        match event {
            Event::Tick => {}
            Event::Nudged => self.asking.nudged(),
            Event::Asked => self.asking.insisted(),
            Event::Stale => self.again = now,
            Event::Restored(result) => {
                self.doing = None;
                self.restored = result.is_ok();
                // Told, and no reason to stop: what is in the store stays in force.
                if let Err(fault) = result {
                    self.asking.hindered(fault);
                    self.again = now + RENEW_AGAIN;
                }
            }
            Event::Looked(Ok(tip)) => return self.looked(tip, now),
            Event::Looked(Err(fault)) => self.failed(fault, now),
            Event::Checked(verdict) => return self.checked(verdict, now),
            Event::Renewed(result) => match (self.doing.take(), result) {
                (Some(Doing::Renewing(commit)), Ok(())) => return self.apply(commit),
                _ => self.again = now + RENEW_AGAIN,
            },
            Event::Applied(Ok(())) => {
                if let Some(Doing::Applying(commit)) = self.doing.take() {
                    self.applied = Some(commit);
                }
                (self.restored, self.declared, self.owed, self.undeclared) = (true, true, None, None);
                self.again = now + AGAIN;
            }
            Event::Applied(Err(fault)) => {
                self.doing = None;
                let failures = self.undeclared.as_ref().map_or(0, |(failures, _)| *failures);
                self.again = now + pause(failures);
                self.undeclared = Some((failures.saturating_add(1), fault));
            }
        }
        self.start(now)
    }

    /// Begins what is due.
    fn start(&mut self, now: Time) -> Vec<Effect> {
        if self.doing.is_some() {
            return Vec::new();
        }
        if let Some(insists) = self.asking.begin(now) {
            self.doing = Some(Doing::Looking { insists });
            return vec![Effect::Look];
        }
        let due = self.refused.as_ref().filter(|refused| refused.again.is_some_and(|(_, at)| now >= at));
        if let Some(commit) = due.map(|refused| refused.commit.clone()) {
            return self.check(commit);
        }
        if now < self.again {
            return Vec::new();
        }
        let Some(effect) = self.declares() else { return Vec::new() };
        self.doing = match &effect {
            Effect::Restore(_) => Some(Doing::Restoring),
            Effect::Renew(commit) => Some(Doing::Renewing(commit.clone())),
            Effect::Apply(commit) => return self.apply(commit.clone()),
            Effect::Look | Effect::Check(_) | Effect::Settled => return Vec::new(),
        };
        vec![effect]
    }

    /// What is to be declared though nothing was pushed: what is owed; what is in force, since somebody may have taken a
    /// part of it away. A process that has declared nothing first validates what is in force, if the newest commit is not
    /// to be had: whoever led before may have declared it, or a commit after it, by halves.
    fn declares(&self) -> Option<Effect> {
        match (&self.owed, &self.applied) {
            (Some(commit), _) => Some(Effect::Apply(commit.clone())),
            (None, Some(commit)) if self.declared => Some(Effect::Apply(commit.clone())),
            (None, Some(commit)) if self.refused.is_some() || self.asking.fault().is_some() => {
                let commit = commit.clone();
                Some(if self.restored { Effect::Renew(commit) } else { Effect::Restore(commit) })
            }
            _ => None,
        }
    }

    fn looked(&mut self, tip: Oid, now: Time) -> Vec<Effect> {
        let insisted = matches!(self.doing, Some(Doing::Looking { insists: true }));
        self.doing = None;
        self.asking.rest(now);
        let moved = self.tip.as_ref() != Some(&tip);
        self.tip = Some(tip.clone());
        let in_force = self.applied.as_ref().filter(|_| self.declared);
        let has_passed = self.owed.as_ref().or(in_force) == Some(&tip);
        let is_refused = self.refused.as_ref().is_some_and(|refused| refused.commit == tip);
        // What is known to differ from the last good commit only in what controllers wrote is not looked at twice.
        let is_known = is_refused || (!moved && self.declared && self.refused.is_none());
        if insisted || !(has_passed || is_known) {
            // Whether Git is well is not known before the commit was read.
            return self.check(tip);
        }
        self.asking.well();
        let mut effects = Vec::new();
        if has_passed {
            self.refused = None;
            effects.push(Effect::Settled);
        }
        effects.extend(self.start(now));
        effects
    }

    fn check(&mut self, commit: Oid) -> Vec<Effect> {
        self.doing = Some(Doing::Checking(commit.clone()));
        vec![Effect::Check(commit)]
    }

    fn apply(&mut self, commit: Oid) -> Vec<Effect> {
        (self.owed, self.doing) = (Some(commit.clone()), Some(Doing::Applying(commit.clone())));
        vec![Effect::Apply(commit)]
    }

    fn checked(&mut self, verdict: Verdict, now: Time) -> Vec<Effect> {
        let Some(Doing::Checking(commit)) = self.doing.take() else { return self.start(now) };
        if !matches!(verdict, Verdict::Failed(_)) {
            self.asking.well();
        }
        match verdict {
            Verdict::Good => {
                self.refused = None;
                return self.apply(commit);
            }
            Verdict::OwnOnly => {
                self.refused = None;
                let mut effects = vec![Effect::Settled];
                effects.extend(self.start(now));
                return effects;
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
        // So that it is looked at again, though the branch may not have moved.
        self.tip = None;
        self.asking.failed(fault, now);
    }
}

#[cfg(test)]
mod tests;
