//! Cards (what nodes say of themselves), requested until they arrive.
//!
//! ```text
//! a member without a card ─→ asked itself, and somebody else in turn ─→ card of its start ─→ in the table
//!                               ↑______ no answer: again ______|
//! ```

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use berth_spec::WorkerId;

use super::packet::Card;

/// Interval between requests for one card. At 150 ms a lost packet delays a member only slightly.
const REQUEST_INTERVAL: Duration = Duration::from_millis(150);

/// Cards requested at once. 16 fill a large cluster in a few rounds without a burst that loses its own packets.
const AT_ONCE: usize = 16;

/// Cards that are here, and those that are wanted.
pub(super) struct Cards {
    own: Card,
    known: BTreeMap<WorkerId, Card>,
    wanted: BTreeMap<WorkerId, Instant>,
}

impl Cards {
    pub(super) fn new(own: Card) -> Self {
        let known = BTreeMap::from([(own.name.clone(), own.clone())]);
        Self { own, known, wanted: BTreeMap::new() }
    }

    pub(super) const fn own(&self) -> &Card {
        &self.own
    }

    /// Counts this node's start otherwise from now on.
    pub(super) fn set_own_start(&mut self, start: u64) {
        self.own.start = start;
        self.known.insert(self.own.name.clone(), self.own.clone());
    }

    pub(super) fn get(&self, name: &WorkerId) -> Option<&Card> {
        self.known.get(name)
    }

    /// Wants the card of a member unless it is here.
    pub(super) fn want(&mut self, name: &WorkerId, start: u64, now: Instant) {
        if self.known.get(name).is_none_or(|card| card.start < start) {
            self.wanted.entry(name.clone()).or_insert(now);
        } else {
            self.wanted.remove(name);
        }
    }

    /// A card has come. Says whether it is news.
    pub(super) fn learn(&mut self, card: Card) -> bool {
        if card.name == self.own.name || self.known.get(&card.name).is_some_and(|known| known.start >= card.start) {
            return false;
        }
        self.wanted.remove(&card.name);
        self.known.insert(card.name.clone(), card);
        true
    }

    pub(super) fn forget(&mut self, name: &WorkerId) {
        self.known.remove(name);
        self.wanted.remove(name);
    }

    /// A member is gone: its card is of no use now.
    pub(super) fn stop_wanting(&mut self, name: &WorkerId) {
        self.wanted.remove(name);
    }

    /// Members to request a card from now. Each is due again after [`REQUEST_INTERVAL`].
    pub(super) fn due(&mut self, now: Instant) -> Vec<WorkerId> {
        let due = self.wanted.iter_mut().filter(|(_, at)| **at <= now).take(AT_ONCE);
        due.map(|(name, at)| {
            *at = now + REQUEST_INTERVAL;
            name.clone()
        })
        .collect()
    }

    /// Cards of these names that are here.
    pub(super) fn of<'a>(&'a self, names: &'a [WorkerId]) -> impl Iterator<Item = &'a Card> {
        names.iter().filter_map(|name| self.known.get(name))
    }
}
