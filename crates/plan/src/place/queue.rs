//! Wanted replicas that have not been tried yet, in the order in which they get their places.
//!
//! Nearly all are known at the beginning and sorted once. Those that are wanted again, since something was evicted or has
//! changed what is lacking, are few: they wait beside them.

use std::{collections::BTreeSet, iter::Peekable, vec};

use super::Want;
use crate::draft::WorkIndex;

/// Wants with the numbers of their deployments, each once.
pub(super) type WantQueue = TwoQueues<(Want, WorkIndex)>;

/// A sorted list of what was known at the beginning, beside a tree of what came later.
pub(super) struct TwoQueues<T> {
    first: Peekable<vec::IntoIter<T>>,
    again: BTreeSet<T>,
}

impl<T: Ord> TwoQueues<T> {
    /// A queue of these, each of which is there once.
    pub(super) fn of(mut all: Vec<T>) -> Self {
        all.sort_unstable();
        Self { first: all.into_iter().peekable(), again: BTreeSet::new() }
    }

    /// The number of those that were known at the beginning and have not been tried.
    pub(super) fn len(&self) -> usize {
        self.first.len()
    }

    /// Adds some, as far as they are not waiting already.
    pub(super) fn extend(&mut self, again: impl IntoIterator<Item = T>) {
        self.again.extend(again);
    }

    /// Takes the one out that is next in order.
    pub(super) fn pop(&mut self) -> Option<T> {
        let Some(again) = self.again.first() else { return self.first.next() };
        // What waits on both sides is tried once.
        let next = self.first.next_if(|first| first <= again);
        if next.as_ref().is_none_or(|next| next == again) { self.again.pop_first() } else { next }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A queue over numbers, which stand for wants.
    fn drained(first: &BTreeSet<u8>, again: &[(u8, u8)]) -> (Vec<u8>, Vec<u8>) {
        let (mut queue, mut set) = (TwoQueues::of(first.iter().copied().rev().collect()), first.clone());
        let (mut popped, mut wanted) = (Vec::new(), Vec::new());
        let mut again = again.iter().cycle().take(3 * again.len());
        while let Some(next) = set.pop_first() {
            wanted.push(next);
            popped.extend(queue.pop());
            if let Some((one, other)) = again.next() {
                queue.again.extend([*one, *other]);
                set.extend([*one, *other]);
            }
        }
        popped.extend(queue.pop());
        (popped, wanted)
    }

    proptest! {
        #[test]
        fn it_gives_what_one_sorted_set_would_give(first: BTreeSet<u8>, again: Vec<(u8, u8)>) {
            let (popped, wanted) = drained(&first, &again);
            prop_assert_eq!(popped, wanted);
        }
    }
}
