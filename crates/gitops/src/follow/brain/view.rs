//! The state of the brain, for the driver and for people.

use berth_control::source::SourceState;
use berth_git::Oid;
use berth_spec::{Time, worker::BreakerState};

use super::{Brain, Doing};
use crate::{
    follow::{
        verdict::{Candidate, FollowError},
        watcher::EmergencyStop,
    },
    refusal::Refusal,
};

impl Brain {
    /// The last good commit.
    pub(crate) const fn applied(&self) -> Option<&Oid> {
        self.applied.as_ref()
    }

    /// The tip of the branch when it was last seen.
    pub(crate) const fn tip(&self) -> Option<&Oid> {
        self.tip.as_ref()
    }

    /// The commit that is being validated.
    pub(crate) const fn checking(&self) -> Option<&Oid> {
        match &self.doing {
            Some(Doing::Validating(commit)) => Some(commit),
            _ => None,
        }
    }

    /// The last valid commit: pending, or in force.
    pub(crate) const fn candidate(&self) -> Option<&Candidate> {
        self.candidate.as_ref()
    }

    /// The last commit that was validated, or differs from it only in what controllers write.
    pub(crate) const fn examined(&self) -> Option<&Oid> {
        self.examined.as_ref()
    }

    /// The refusal of the newest commit.
    pub(crate) fn refusal(&self) -> Option<&Refusal> {
        self.refused.as_ref().map(|refused| &refused.refusal)
    }

    /// The emergency stop of a commit other than `commit`, which is declared.
    pub(crate) fn stop_beside(&self, commit: &Oid) -> Option<&EmergencyStop> {
        self.stop.as_ref().filter(|stop| stop.commit != *commit)
    }

    /// Failed polls since the last success.
    pub(crate) const fn failures(&self) -> u32 {
        self.schedule.failures()
    }

    /// When the branch is asked next.
    pub(crate) const fn next(&self) -> Time {
        self.schedule.next()
    }

    /// When the refused commit is validated again.
    pub(crate) fn validated_again(&self) -> Option<Time> {
        self.refused.as_ref().and_then(|refused| refused.again).map(|(_, at)| at)
    }

    pub(crate) fn breaker(&self) -> BreakerState {
        match (self.schedule.is_broken(), &self.doing) {
            (false, _) => BreakerState::Closed,
            (true, Some(Doing::Polling { .. } | Doing::Validating(_))) => BreakerState::HalfOpen,
            (true, _) => BreakerState::Open,
        }
    }

    pub(crate) fn state(&self) -> SourceState {
        match (self.fault(), &self.refused, &self.applied) {
            (Some(fault), ..) if fault.passing => SourceState::Retrying,
            (Some(_), ..) => SourceState::Stalled,
            (None, Some(_), _) => SourceState::Refused,
            (None, None, Some(applied)) if self.declared && self.tip.as_ref() == Some(applied) => SourceState::Synced,
            (None, None, _) if matches!(self.doing, Some(Doing::Validating(_) | Doing::Applying(_))) => {
                SourceState::Progressing
            }
            // What controllers wrote lies on top of it.
            (None, None, Some(_)) if self.declared => SourceState::Synced,
            (None, None, _) => SourceState::Starting,
        }
    }

    /// The fault that keeps it from following the branch, or from declaring a validated commit.
    pub(crate) fn fault(&self) -> Option<&FollowError> {
        self.schedule.fault().or(self.undeclared.as_ref().map(|(_, fault)| fault))
    }
}
