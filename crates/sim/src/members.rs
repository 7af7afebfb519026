//! Membership as a model of SWIM: a node that cannot be reached, neither directly nor through others, is suspected and
//! then failed; a node that comes back refutes it.
//!
//! ```text
//! Alive ──SUSPECT──▶ Suspect ──FAILED──▶ Failed
//!   ▲                   │                   │
//!   └──────heard of, after GOSSIP───────────┘
//! ```

use std::{collections::BTreeMap, time::Duration};

use berth_spec::{Health, WorkerId};

/// The shortest and longest time until a node that does not answer is suspected.
pub(crate) const SUSPECT: (Duration, Duration) = (Duration::from_millis(300), Duration::from_millis(900));

/// The shortest and longest time until it counts as failed.
pub(crate) const FAILED: (Duration, Duration) = (Duration::from_millis(1_000), Duration::from_millis(2_000));

/// The shortest and longest time until all have heard that a node is back.
pub(crate) const GOSSIP: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(400));

/// A belief about a node, and the earliest and latest time from now at which it is formed.
pub(crate) type Thought = (Health, (Duration, Duration));

/// The beliefs of all members about each other.
#[derive(Debug, Default)]
pub(crate) struct Members {
    seen: BTreeMap<(WorkerId, WorkerId), LastReach>,
}

#[derive(Debug, Clone, Copy)]
struct LastReach {
    reached: Reach,
    /// Numbers the changes: word of an earlier one is no news.
    news: u64,
}

/// The truth about a node, seen from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    Answers,
    /// Does not answer.
    Silent,
    /// Announced its leaving, and left.
    Left,
}

impl Members {
    /// Takes in what is true now of `of`, seen from `observer`. Returns the next belief, with the number of this
    /// change.
    pub(crate) fn look(&mut self, observer: &WorkerId, of: &WorkerId, reached: Reach) -> Option<(u64, Vec<Thought>)> {
        let seen =
            self.seen.entry((observer.clone(), of.clone())).or_insert(LastReach { reached: Reach::Left, news: 0 });
        if seen.reached == reached {
            return None;
        }
        *seen = LastReach { reached, news: seen.news + 1 };
        let next = match reached {
            Reach::Answers => vec![(Health::Alive, GOSSIP)],
            Reach::Silent => vec![(Health::Suspect, SUSPECT), (Health::Failed, FAILED)],
            Reach::Left => vec![(Health::Left, GOSSIP)],
        };
        Some((seen.news, next))
    }

    /// True if a change is still the last one.
    pub(crate) fn is_news(&self, observer: &WorkerId, of: &WorkerId, news: u64) -> bool {
        self.seen.get(&(observer.clone(), of.clone())).is_some_and(|seen| seen.news == news)
    }

    /// The number of the last change.
    pub(crate) fn news(&self, observer: &WorkerId, of: &WorkerId) -> u64 {
        self.seen.get(&(observer.clone(), of.clone())).map_or(0, |seen| seen.news)
    }

    /// Forgets what an observer thought: it started anew.
    pub(crate) fn forget(&mut self, observer: &WorkerId) {
        self.seen.retain(|(by, _), _| by != observer);
    }
}
