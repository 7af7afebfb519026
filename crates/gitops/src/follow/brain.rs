//! The brain of the Git source: one thing at a time; what comes in meanwhile is remembered, not queued.
//!
//! ```text
//!            last good commit known                  tip is new                     good
//! Restoring ─────────────────────────▶ Waiting ──▶ Polling ──▶ Validating ──────────────▶ Applying ──▶ Waiting
//!                                       │ ▲  ▲        │            │ refused: the last good one stays   ▲ │ failed: later,
//!      the newest cannot be read, and   │ │  └────────┴────────────┘ failed: later, more and more       │ └─▶ Waiting
//!      this process has declared nothing└─┼─▶ Revalidating ────── the last good one is still valid ─────┘
//!                                         └──────┘ it is not
//! ```
//! A refused commit is validated again when something that it depends on may have changed: a repository could not be
//! reached, or a person asks. An error in its own files does not change, so it is not.
//!
//! A validated commit stays *pending* until it is stored. Store errors do not trip the Git breaker.
//!
//! While the source is paused nothing begins, but for reading the last good commit: workers need its credentials.

mod schedule;
mod view;

use std::{collections::BTreeSet, time::Duration};

use berth_git::{CommitInfo, Oid};
use berth_registry::write_back;
use berth_spec::Time;

use self::schedule::{LONGEST_PAUSE, PollSchedule, pause};
use super::{
    verdict::{Candidate, FollowError, RefusedCommit, Verdict},
    watcher::{EmergencyStop, HeadReport},
};
use crate::refusal::Refusal;

/// The interval at which the last good commit is declared again though nothing was pushed: what somebody took away by hand
/// comes back within it.
const REDECLARE_INTERVAL: Duration = Duration::from_secs(10 * 60);

/// The pause before a commit is validated again whose refusal may pass; it doubles up to [`LONGEST_PAUSE`].
const VALIDATE_AGAIN: Duration = Duration::from_secs(15);

/// The pause before the last good commit is read or validated once more after a failure: workers may be without their
/// credentials so long.
const REVALIDATE_AGAIN: Duration = Duration::from_secs(60);

/// An event for the brain: time, results of effects, requests of people.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Event {
    /// Time has passed.
    Tick,
    /// Something may have been pushed.
    Webhook,
    /// A person asks: whatever was refused is validated again.
    Sync,
    /// The last good commit was read again, or could not be.
    Restored(Result<(), FollowError>),
    /// The tip of the branch; `None`: it is not there.
    Polled(Result<Oid, FollowError>),
    /// The verdict on the commit of the last [`Effect::Validate`].
    Validated(Verdict),
    /// The result of validating the last good commit again.
    Revalidated(Result<Box<Candidate>, FollowError>),
    /// The own files of a newer commit, read while one is being validated.
    HeadRead(HeadReport),
    /// The result of declaring a commit.
    Applied(Result<(), FollowError>),
    /// An emergency stop could not be stored: the last good commit is declared again, with it.
    NotDisabled,
    /// A person pauses the source.
    Pause,
    /// A person resumes the source.
    Resume,
}

/// An effect that the driver carries out.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Effect {
    /// Read the settings and secrets of the last good commit again: this process knows none.
    Restore(Oid),
    /// Resolve the tip of the branch.
    PollTip,
    /// Fetch and validate a commit.
    Validate(Oid),
    /// Validate the last good commit again, and tell nobody: this process knows only which it is.
    Revalidate(Oid),
    /// Declare a commit: it was valid, a moment ago or earlier.
    Apply(Oid),
    /// Disable at once what a commit wants without a replica that is not in force.
    Disable(Box<CommitInfo>, BTreeSet<String>),
    /// The tip is the last good commit: nothing is wrong any more.
    Settled,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Doing {
    Restoring,
    /// `insists`: a person asks.
    Polling {
        insists: bool,
    },
    Validating(Oid),
    Revalidating(Oid),
    Applying(Oid),
}

/// The newest commit, which is refused.
#[derive(Debug, Clone, PartialEq)]
struct Refused {
    commit: Oid,
    /// The refusal; where only controllers wrote since, it is of the commit before.
    refusal: Refusal,
    /// The failed validations so far, and the time of the next; `None`: not before something changes.
    again: Option<(u32, Time)>,
}

/// State of one Git source during a term, and the decisions on what to do next.
#[derive(Debug)]
pub(crate) struct Brain {
    schedule: PollSchedule,
    doing: Option<Doing>,
    /// The tip of the branch when it was last seen.
    tip: Option<Oid>,
    /// The last good commit, in force.
    applied: Option<Oid>,
    /// Its settings and secrets are known.
    restored: bool,
    /// True once this process has declared `applied`: a leader before it may have declared only a part.
    declared: bool,
    /// The validated commit that is not stored whole.
    pending: Option<Oid>,
    /// Failures to store it, and the last one's reason.
    undeclared: Option<(u32, FollowError)>,
    refused: Option<Refused>,
    /// The last valid commit: pending, or in force.
    candidate: Option<Candidate>,
    /// The last commit that was validated, or differs from it only in what controllers write.
    examined: Option<Oid>,
    /// The deployments that a commit disables which is not in force.
    stop: Option<EmergencyStop>,
    /// When something is declared, though nothing was pushed.
    again: Time,
    /// A person has paused the source.
    paused: bool,
}

impl Brain {
    /// Begins with the last good commit and the emergency stop of the checkpoint.
    pub(crate) fn new(
        interval: Duration,
        applied: Option<Oid>,
        stop: Option<EmergencyStop>,
        paused: bool,
        seed: u64,
        now: Time,
    ) -> (Self, Vec<Effect>) {
        let restore = applied.clone();
        let mut brain = Self {
            schedule: PollSchedule::new(interval, seed, now),
            doing: None,
            tip: None,
            applied,
            restored: false,
            declared: false,
            pending: None,
            undeclared: None,
            refused: None,
            candidate: None,
            examined: None,
            stop,
            again: now,
            paused,
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
    pub(crate) fn wake_at(&self) -> Option<Time> {
        if self.doing.is_some() {
            return None;
        }
        if self.paused {
            return self.restores().map(|_| self.again);
        }
        let declared = self.declares().map(|_| self.again);
        [Some(self.schedule.wake_at()), self.validated_again(), declared].into_iter().flatten().min()
    }

    pub(crate) fn on(&mut self, event: Event, now: Time) -> Vec<Effect> {
        match event {
            Event::Tick => {}
            Event::Webhook => self.schedule.on_webhook(),
            Event::Pause => self.paused = true,
            Event::Resume => {
                self.paused = false;
                self.schedule.on_sync();
            }
            Event::Sync => self.schedule.on_sync(),
            Event::NotDisabled => self.again = now,
            // Else it comes late: the newest commit is polled anyway.
            Event::HeadRead(HeadReport { info, behind, idle }) if self.checking() == Some(&behind) => {
                return vec![self.disable(*info, idle, Some(behind), now)];
            }
            Event::HeadRead(_) => {}
            Event::Restored(result) => {
                self.doing = None;
                self.restored = result.is_ok();
                // Shown, and no reason to stop: what is in the store stays in force.
                if let Err(fault) = result {
                    self.schedule.record_error(fault);
                    self.again = now + REVALIDATE_AGAIN;
                }
            }
            Event::Polled(Ok(tip)) => return self.polled(tip, now),
            Event::Polled(Err(fault)) => self.failed(fault, now),
            Event::Validated(verdict) => return self.checked(verdict, now),
            Event::Revalidated(result) => match (self.doing.take(), result) {
                (Some(Doing::Revalidating(commit)), Ok(candidate)) => {
                    self.candidate = Some(*candidate);
                    return self.apply(commit);
                }
                _ => self.again = now + REVALIDATE_AGAIN,
            },
            Event::Applied(Ok(())) => {
                if let Some(Doing::Applying(commit)) = self.doing.take() {
                    self.applied = Some(commit);
                }
                (self.restored, self.declared, self.pending, self.undeclared) = (true, true, None, None);
                self.again = now + REDECLARE_INTERVAL;
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
        if self.paused {
            let restores = self.restores().filter(|_| now >= self.again);
            if restores.is_some() {
                self.doing = Some(Doing::Restoring);
            }
            return restores.into_iter().collect();
        }
        if let Some(insists) = self.schedule.begin(now) {
            self.doing = Some(Doing::Polling { insists });
            return vec![Effect::PollTip];
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
            Effect::Revalidate(commit) => Some(Doing::Revalidating(commit.clone())),
            Effect::Apply(commit) => return self.apply(commit.clone()),
            Effect::PollTip | Effect::Validate(_) | Effect::Disable(..) | Effect::Settled => return Vec::new(),
        };
        vec![effect]
    }

    /// The last good commit, while this process knows neither its settings nor its secrets.
    fn restores(&self) -> Option<Effect> {
        self.applied.clone().filter(|_| !self.restored).map(Effect::Restore)
    }

    /// Finds what to declare although nothing was pushed: the pending commit; or the applied one, since somebody may
    /// have removed a part of it. A process that has declared nothing first validates the applied commit if the newest
    /// cannot be fetched: the leader before it may have declared that commit, or a later one, in part.
    fn declares(&self) -> Option<Effect> {
        match (&self.pending, &self.applied) {
            (Some(commit), _) => Some(Effect::Apply(commit.clone())),
            (None, Some(commit)) if self.declared => Some(Effect::Apply(commit.clone())),
            (None, Some(commit)) if self.refused.is_some() || self.schedule.fault().is_some() => {
                let commit = commit.clone();
                Some(if self.restored { Effect::Revalidate(commit) } else { Effect::Restore(commit) })
            }
            _ => None,
        }
    }

    fn polled(&mut self, tip: Oid, now: Time) -> Vec<Effect> {
        let insisted = matches!(self.doing, Some(Doing::Polling { insists: true }));
        self.doing = None;
        self.schedule.rest(now);
        let moved = self.tip.as_ref() != Some(&tip);
        self.tip = Some(tip.clone());
        let in_force = self.applied.as_ref().filter(|_| self.declared);
        let has_passed = self.pending.as_ref().or(in_force) == Some(&tip);
        let is_refused = self.refused.as_ref().is_some_and(|refused| refused.commit == tip);
        // What is known to differ from the last good commit only in what controllers wrote is not looked at twice.
        let is_known = is_refused || (!moved && self.declared && self.refused.is_none());
        if insisted || !(has_passed || is_known) {
            if self.paused {
                self.tip = None;
                return self.start(now);
            }
            // Git has not succeeded before the commit was read.
            return self.check(tip);
        }
        self.schedule.on_success();
        let mut effects = Vec::new();
        if has_passed {
            effects.push(self.settle(now));
        }
        effects.extend(self.start(now));
        effects
    }

    fn check(&mut self, commit: Oid) -> Vec<Effect> {
        self.doing = Some(Doing::Validating(commit.clone()));
        vec![Effect::Validate(commit)]
    }

    fn apply(&mut self, commit: Oid) -> Vec<Effect> {
        (self.pending, self.doing) = (Some(commit.clone()), Some(Doing::Applying(commit.clone())));
        vec![Effect::Apply(commit)]
    }

    fn checked(&mut self, verdict: Verdict, now: Time) -> Vec<Effect> {
        let Some(Doing::Validating(commit)) = self.doing.take() else { return self.start(now) };
        if !matches!(verdict, Verdict::Failed(_)) {
            self.schedule.on_success();
            self.examined = Some(commit.clone());
        }
        match verdict {
            Verdict::Good(candidate) => {
                (self.candidate, self.refused) = (Some(*candidate), None);
                // It has its own say, but for what a newer one disables.
                self.stop = self.stop.take().filter(|stop| stop.outlives(&commit));
                if self.paused {
                    (self.pending, self.again) = (Some(commit), now);
                    return Vec::new();
                }
                return self.apply(commit);
            }
            Verdict::OwnOnly => match self.refused.take() {
                // What controllers wrote makes a bad commit no better.
                Some(before) => self.refuse(commit, before.refusal.clone(), Some(&before), now),
                None => {
                    let mut effects = vec![self.settle(now)];
                    effects.extend(self.start(now));
                    return effects;
                }
            },
            Verdict::Refused(refused) => {
                let RefusedCommit { info, refusal, idle } = *refused;
                let before = self.refused.take();
                let refusal = blamed(refusal, &info, before.as_ref());
                self.refuse(commit.clone(), refusal, before.as_ref(), now);
                let newer = self.stop.as_ref().is_some_and(|stop| stop.outlives(&commit));
                let disable = idle.filter(|_| !newer).map(|idle| self.disable(info, idle, None, now));
                let mut effects: Vec<Effect> = disable.into_iter().collect();
                effects.extend(self.start(now));
                return effects;
            }
            Verdict::Failed(fault) => self.failed(fault, now),
        }
        self.start(now)
    }

    fn refuse(&mut self, commit: Oid, refusal: Refusal, before: Option<&Refused>, now: Time) {
        let times = match before {
            Some(Refused { commit: same, again: Some((times, _)), .. }) if *same == commit => *times + 1,
            _ => 0,
        };
        let pause = VALIDATE_AGAIN.saturating_mul(1 << times.min(10)).min(LONGEST_PAUSE);
        let again = refusal.passing.then(|| (times, now + pause));
        let refusal = Refusal { again: again.map(|(_, at)| at), ..refusal };
        self.refused = Some(Refused { commit, refusal, again });
    }

    /// The tip is in force, or only controllers wrote since: an emergency stop is taken back.
    fn settle(&mut self, now: Time) -> Effect {
        self.refused = None;
        if self.stop.take().is_some() {
            self.again = now;
        }
        Effect::Settled
    }

    /// Disables at once what the commit `info`, which is not in force, wants without a replica. `behind`: the commit that was
    /// being validated when it was found.
    fn disable(&mut self, info: CommitInfo, idle: Vec<String>, behind: Option<Oid>, now: Time) -> Effect {
        let before = self.stop.take().map(|stop| stop.ids).unwrap_or_default();
        let ids: BTreeSet<String> = idle.into_iter().collect();
        if !before.is_subset(&ids) {
            // What this one does not disable any more is as the last good commit says.
            self.again = now;
        }
        self.stop = (!ids.is_empty()).then(|| EmergencyStop { commit: info.oid.clone(), behind, ids: ids.clone() });
        Effect::Disable(Box::new(info), ids)
    }

    fn failed(&mut self, fault: FollowError, now: Time) {
        self.doing = None;
        // So that it is looked at again, though the branch may not have moved.
        self.tip = None;
        self.schedule.failed(fault, now);
    }
}

/// The refusal of a person's commit: a controller's own commit on top of it is not to blame.
fn blamed(refusal: Refusal, info: &CommitInfo, before: Option<&Refused>) -> Refusal {
    match before.map(|before| &before.refusal) {
        Some(before) if info.trailer(write_back::WRITER).is_some() => {
            Refusal { commit: before.commit.clone(), author: before.author.clone(), at: before.at, ..refusal }
        }
        _ => refusal,
    }
}

#[cfg(test)]
mod tests;
