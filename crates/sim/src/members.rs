//! What the members think of each other, as a model of SWIM: who cannot be reached, neither directly nor through others,
//! is suspected and then failed; who comes back refutes it.
//!
//! ```text
//! Alive ──SUSPECT──▶ Suspect ──FAILED──▶ Failed
//!   ▲                   │                   │
//!   └──────heard of, after GOSSIP───────────┘
//! ```

use std::{collections::BTreeMap, time::Duration};

use berth_spec::{Health, WorkerId};

/// How long until a node that does not answer is suspected: between these.
pub(crate) const SUSPECT: (Duration, Duration) = (Duration::from_millis(300), Duration::from_millis(900));

/// How long until it counts as failed: between these.
pub(crate) const FAILED: (Duration, Duration) = (Duration::from_millis(1_000), Duration::from_millis(2_000));

/// How long until word of a node that is back has gone round: between these.
pub(crate) const GOSSIP: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(400));

/// What is thought of a node, and between when and when from now.
pub(crate) type Thought = (Health, (Duration, Duration));

/// What each thinks of each.
#[derive(Debug, Default)]
pub(crate) struct Members {
    seen: BTreeMap<(WorkerId, WorkerId), Seen>,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    reached: Reach,
    /// Numbers the changes: word of an earlier one is no news.
    news: u64,
}

/// What is true of a node, seen from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It answers.
    Answers,
    /// It does not.
    Silent,
    /// It said that it goes, and went.
    Left,
}

impl Members {
    /// What is true now of `of`, seen from `observer`. Says what is thought next, with the number of this change.
    pub(crate) fn look(&mut self, observer: &WorkerId, of: &WorkerId, reached: Reach) -> Option<(u64, Vec<Thought>)> {
        let seen = self.seen.entry((observer.clone(), of.clone())).or_insert(Seen { reached: Reach::Left, news: 0 });
        if seen.reached == reached {
            return None;
        }
        *seen = Seen { reached, news: seen.news + 1 };
        let next = match reached {
            Reach::Answers => vec![(Health::Alive, GOSSIP)],
            Reach::Silent => vec![(Health::Suspect, SUSPECT), (Health::Failed, FAILED)],
            Reach::Left => vec![(Health::Left, GOSSIP)],
        };
        Some((seen.news, next))
    }

    /// Whether a change is still the last one.
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
