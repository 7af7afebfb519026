//! When who has something to do: the earliest first, without asking everybody.

use std::collections::{BTreeMap, BTreeSet};

use berth_spec::{Time, WorkerId};

/// The next wake-up of each node; at the same time controllers go before gateways and those before workers.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    at: BTreeMap<WorkerId, (Time, u8)>,
    order: BTreeSet<(Time, u8, WorkerId)>,
}

impl Wakes {
    /// A node wakes then, or not at all.
    pub(crate) fn set(&mut self, node: &WorkerId, rank: u8, at: Option<Time>) {
        if self.at.get(node).map(|(at, _)| *at) == at {
            return;
        }
        if let Some((before, rank)) = self.at.remove(node) {
            self.order.remove(&(before, rank, node.clone()));
        }
        if let Some(at) = at {
            self.at.insert(node.clone(), (at, rank));
            self.order.insert((at, rank, node.clone()));
        }
    }

    /// The first node to wake.
    pub(crate) fn first(&self) -> Option<(Time, &WorkerId)> {
        self.order.first().map(|(at, _, node)| (*at, node))
    }
}
