//! Election of a controller: a stand-in for the real candidate with the same rules.
//!
//! ```text
//! Following ──nobody leads──▶ Campaigning ──Won──▶ Leading ──deposed, or too long without a renewal──▶ Following
//!     ▲──────────Taken────────────┘                 │  ▲
//!     │                                             └──┘ Renewed
//! ```
//! It steps down before the store would end its lease: it counts from when it asked, by its own clock.

use std::time::Duration;

use berth_spec::{Time, WorkerId};

use crate::store::{LEASE, Stored};

/// The interval of a leader's renewals: one lost renewal does not cost the lead.
const RENEW: Duration = Duration::from_millis(1_000);

/// The time that a leader still acts after asking for the last renewal that was granted: below the lease, so that two
/// do not act at once, and enough for a slow store.
const ACTS: Duration = Duration::from_millis(2_400);

/// The interval at which followers look who leads; a dead leader is missed that much later.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The state of a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Election {
    Following { leader: Option<WorkerId>, look: Time },
    Campaigning { asked: Time },
    Leading { granted: Time, renew: Time },
}

/// An action that a candidate asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ElectionStep {
    Campaign,
    Renew,
    StepDown,
}

impl Election {
    pub(crate) fn new(now: Time) -> Self {
        Self::Following { leader: None, look: now }
    }

    /// When to ask [`tick`](Self::tick).
    pub(crate) fn wake_at(&self) -> Time {
        match self {
            Self::Following { look, .. } => *look,
            Self::Campaigning { asked } => *asked + LEASE,
            Self::Leading { granted, renew } => (*renew).min(*granted + ACTS),
        }
    }

    /// Time has passed; `leader` is who the store says leads, where it can be asked.
    pub(crate) fn tick(&mut self, now: Time, seen: Option<Option<WorkerId>>) -> Option<ElectionStep> {
        if now < self.wake_at() {
            return None;
        }
        match self {
            Self::Following { .. } => match seen {
                Some(None) => {
                    *self = Self::Campaigning { asked: now };
                    Some(ElectionStep::Campaign)
                }
                seen => {
                    *self = Self::Following { leader: seen.flatten(), look: now + POLL_INTERVAL };
                    None
                }
            },
            Self::Campaigning { .. } => {
                *self = Self::Following { leader: None, look: now + POLL_INTERVAL };
                None
            }
            Self::Leading { granted, .. } if now >= *granted + ACTS => {
                *self = Self::Following { leader: None, look: now + POLL_INTERVAL };
                Some(ElectionStep::StepDown)
            }
            Self::Leading { renew, .. } => {
                *renew = now + RENEW;
                Some(ElectionStep::Renew)
            }
        }
    }

    /// The store answered. Says whether it has just come to lead, or ceased to.
    pub(crate) fn answered(&mut self, answer: &Stored, now: Time) -> Option<ElectionStep> {
        match (&mut *self, answer) {
            (Self::Campaigning { asked }, Stored::Won { .. }) => {
                *self = Self::Leading { granted: *asked, renew: now + RENEW };
                None
            }
            (Self::Campaigning { .. }, _) => {
                *self = Self::Following { leader: None, look: now + POLL_INTERVAL };
                None
            }
            (Self::Leading { granted, .. }, Stored::Renewed { asked }) => {
                *granted = (*granted).max(*asked);
                None
            }
            (Self::Leading { .. }, Stored::Deposed) => {
                *self = Self::Following { leader: None, look: now + POLL_INTERVAL };
                Some(ElectionStep::StepDown)
            }
            _ => None,
        }
    }

    pub(crate) fn leader(&self) -> Option<&WorkerId> {
        match self {
            Self::Following { leader, .. } => leader.as_ref(),
            Self::Campaigning { .. } | Self::Leading { .. } => None,
        }
    }
}
