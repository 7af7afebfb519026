//! Keeps the map of deployments dense.
//!
//! A B-tree that grows in the order of its keys, as numbered names do, leaves its nodes little more than half full: 45 of
//! some 600 bytes that a cold deployment takes. One that is built from a sorted sequence has full nodes.

use std::mem;

use super::World;

/// Deployments before the map is packed first: fewer take little in any case.
const MIN_DEPLOYMENTS: usize = 4096;

/// The growth after which it is packed again, as a part of its size. Less keeps it denser and costs more: with an eighth
/// each deployment is moved nine times in all, which takes less time than to declare it.
const GROWTH: usize = 8;

impl World {
    /// Packs the map if it has grown enough since the last time.
    pub(super) fn pack(&mut self) {
        let now = self.entries.len();
        self.packed = self.packed.min(now);
        if now >= self.packed + self.packed / GROWTH + MIN_DEPLOYMENTS {
            self.entries = mem::take(&mut self.entries).into_iter().collect();
            self.packed = now;
        }
    }
}
