//! Replicas that a plan puts on one worker, in the order of eviction.
//!
//! A plan that evicts nothing never asks for that order, and comparing the names of 100,000 replicas takes longer than
//! finding their places. So they are sorted on the first call of `in_order`, and kept sorted from then on.

use std::{
    cell::{OnceCell, RefCell},
    collections::BTreeSet,
};

use crate::world::Rank;

/// Ranks of the replicas that come to a worker.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// Those that came before anybody asked for the order.
    unsorted: RefCell<Vec<Rank>>,
    sorted: OnceCell<BTreeSet<Rank>>,
}

impl Arrivals {
    pub(super) fn insert(&mut self, rank: Rank) {
        match self.sorted.get_mut() {
            Some(sorted) => drop(sorted.insert(rank)),
            None => self.unsorted.get_mut().push(rank),
        }
    }

    /// Takes one away. Returns true if it was there.
    pub(super) fn remove(&mut self, rank: &Rank) -> bool {
        if self.sorted.get().is_none() && self.unsorted.get_mut().is_empty() {
            return false; // nearly always: nothing has come yet when deployments are taken up
        }
        self.sorted();
        self.sorted.get_mut().is_some_and(|sorted| sorted.remove(rank))
    }

    /// Every rank, the first to be evicted first.
    pub(super) fn in_order(&self) -> impl Iterator<Item = &Rank> {
        self.sorted().iter()
    }

    fn sorted(&self) -> &BTreeSet<Rank> {
        self.sorted.get_or_init(|| self.unsorted.take().into_iter().collect())
    }
}
