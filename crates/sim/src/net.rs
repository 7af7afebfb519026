//! The network: which node reaches which, and the time that a message takes.
//!
//! A cut keeps what one group of nodes sends from another group; a partition is a cut in both directions. The store is
//! a node like others here. What is sent over a cut is not lost at once: see [`stream`](crate::stream).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use berth_spec::WorkerId;

use crate::rng::Rng;

/// The time of a message between two nodes when nothing is wrong.
pub const HOP: Duration = Duration::from_millis(1);

/// The time of a request to the store; its answer takes as long.
pub const TO_STORE: Duration = Duration::from_micros(500);

/// The time until one end of a silent connection gives it up: a hiccup breaks no stream, and those behind a cut soon
/// look for another way.
pub const KEEPALIVE: Duration = Duration::from_secs(2);

/// The ways in which a cut keeps messages from going.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ways {
    /// Neither group hears the other.
    Both,
    /// The second group does not hear the first; the first hears the second.
    OneWay,
}

/// A cut between two groups of nodes.
#[derive(Debug, Clone)]
pub struct Cut {
    /// These …
    pub from: BTreeSet<WorkerId>,
    /// … are not heard by these.
    pub to: BTreeSet<WorkerId>,
    /// One direction, or both.
    pub ways: Ways,
}

/// The network: a delay for each message, and the cuts that hold between nodes.
#[derive(Debug, Default)]
pub struct Net {
    /// A message takes up to this much longer.
    pub jitter: Duration,
    cuts: BTreeMap<String, Cut>,
}

impl Net {
    /// Cuts; the name heals it.
    pub fn cut(&mut self, name: &str, cut: Cut) {
        self.cuts.insert(name.to_owned(), cut);
    }

    /// Mends a cut. Says whether there was one.
    pub fn heal(&mut self, name: &str) -> bool {
        self.cuts.remove(name).is_some()
    }

    /// True if nothing is cut.
    #[must_use]
    pub fn whole(&self) -> bool {
        self.cuts.is_empty()
    }

    /// True if `to` hears `from`.
    #[must_use]
    pub fn passes(&self, from: &WorkerId, to: &WorkerId) -> bool {
        let stops = |cut: &Cut| {
            (cut.from.contains(from) && cut.to.contains(to))
                || (cut.ways == Ways::Both && cut.from.contains(to) && cut.to.contains(from))
        };
        !self.cuts.values().any(stops)
    }

    /// True if both hear each other.
    #[must_use]
    pub fn joined(&self, one: &WorkerId, other: &WorkerId) -> bool {
        self.passes(one, other) && self.passes(other, one)
    }

    /// The time that this message takes.
    pub(crate) fn delay(&self, least: Duration, rng: &mut Rng) -> Duration {
        least + rng.up_to(self.jitter)
    }
}

#[cfg(test)]
mod tests {
    use berth_plan::fixture::worker_id;

    use super::*;

    #[test]
    fn cuts_have_directions() {
        let group = |names: &[&str]| names.iter().map(|name| worker_id(name)).collect::<BTreeSet<_>>();
        let (a, b, c) = (worker_id("a"), worker_id("b"), worker_id("c"));
        let mut net = Net::default();
        net.cut("x", Cut { from: group(&["a"]), to: group(&["b"]), ways: Ways::OneWay });
        assert!(!net.passes(&a, &b) && net.passes(&b, &a) && !net.joined(&a, &b) && net.joined(&a, &c));
        net.cut("y", Cut { from: group(&["a"]), to: group(&["c"]), ways: Ways::Both });
        assert!(!net.passes(&a, &c) && !net.passes(&c, &a));
        assert!(net.heal("x") && net.heal("y") && !net.heal("y") && net.whole() && net.joined(&a, &b));
    }
}
