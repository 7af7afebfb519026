//! Writes of one status: their state, and the damping where somebody else writes the same status.

use std::time::Duration;

use berth_spec::Time;

use crate::deployment::Identity;

/// Times that a status which somebody overwrites is written again at once: people do that by hand.
const MAX_REWRITES: u32 = 3;

/// Pause between two such writes after that: two controllers that follow the same objects would write without end.
pub(super) const CONTENDED: Duration = Duration::from_secs(60);

/// State of the status in the object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Writing {
    /// The newest status was not written yet.
    Due,
    /// A write is on its way, into an object with this desired state.
    Underway(Box<Identity>),
    /// The newest status was written.
    Done,
}

/// Overwrites of a status by somebody else. A status that has stood for two pauses is not contended: the count begins again.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Overwrites {
    times: u32,
    last: Option<Time>,
}

impl Overwrites {
    /// Counts one.
    pub(super) fn count(&mut self, now: Time) {
        if self.last.is_some_and(|last| now.since(last) >= CONTENDED * 2) {
            self.times = 0;
        }
        (self.times, self.last) = (self.times.saturating_add(1), Some(now));
    }

    /// True while it may be a person.
    pub(super) const fn are_few(self) -> bool {
        self.times <= MAX_REWRITES
    }

    /// True at the first one that is too many.
    pub(super) const fn are_news(self) -> bool {
        self.times == MAX_REWRITES + 1
    }
}
