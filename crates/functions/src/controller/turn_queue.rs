//! The queue of functions that wait for their turn. Changes go before repetitions, but for one turn in four; sources of changes take
//! turns, so that a registry with hundreds of functions does not hold up the one that a person puts.
//!
//! ```text
//! changes by source   git ▷ a b c ┐ round and round ──3 turns──┐
//!                     api ▷ d     ┘                            ├──▶ a turn
//! repetitions         e f g ─────────────────────────1 turn────┘
//! ```

use std::collections::VecDeque;

use berth_spec::Origin;

/// Changes that have a turn before a repetition has one: few enough that what is to be tried again is tried.
const CHANGES: u32 = 3;

/// Functions that wait, each once.
#[derive(Debug, Default)]
pub(super) struct TurnQueue {
    changes: VecDeque<(Origin, VecDeque<String>)>,
    /// Further attempts, and looks at what serves.
    repetitions: VecDeque<String>,
    /// Changes that had a turn since the last repetition.
    ahead: u32,
}

impl TurnQueue {
    /// Lets a function wait whose object is new or changed.
    pub(super) fn change(&mut self, origin: &Origin, key: String) {
        match self.changes.iter_mut().find(|(of, _)| of == origin) {
            Some((_, waiting)) => waiting.push_back(key),
            None => self.changes.push_back((origin.clone(), VecDeque::from([key]))),
        }
    }

    /// Lets a function wait that is tried or looked at again.
    pub(super) fn repetition(&mut self, key: String) {
        self.repetitions.push_back(key);
    }

    /// Takes a function out.
    pub(super) fn remove(&mut self, key: &str) {
        self.repetitions.retain(|waiting| waiting != key);
        for (_, waiting) in &mut self.changes {
            waiting.retain(|waiting| waiting != key);
        }
        self.changes.retain(|(_, waiting)| !waiting.is_empty());
    }

    /// The next in turn.
    pub(super) fn next(&mut self) -> Option<String> {
        if self.changes.is_empty() || (self.ahead >= CHANGES && !self.repetitions.is_empty()) {
            self.ahead = 0;
            return self.repetitions.pop_front();
        }
        self.ahead += 1;
        let (origin, mut waiting) = self.changes.pop_front()?;
        let next = waiting.pop_front();
        if !waiting.is_empty() {
            self.changes.push_back((origin, waiting));
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut queue: TurnQueue) -> String {
        std::iter::from_fn(|| queue.next()).collect()
    }

    #[test]
    fn sources_take_turns_and_repetitions_have_one_in_four() {
        let git = Origin::new("git", "registry");
        let mut queue = TurnQueue::default();
        "abcdef".chars().for_each(|key| queue.change(&git, key.to_string()));
        "12".chars().for_each(|key| queue.repetition(key.to_string()));
        queue.change(&Origin::API, "X".to_owned());
        queue.remove("c");
        assert_eq!(all(queue), "aXb1def2");

        let mut queue = TurnQueue::default();
        queue.repetition("1".to_owned());
        assert_eq!((queue.next().as_deref(), queue.next()), (Some("1"), None), "nobody is before it");
    }
}
