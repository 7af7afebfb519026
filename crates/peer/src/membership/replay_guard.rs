//! Refuses datagrams that were heard before: who records one cannot play it again to have a node that lives taken for dead.
//!
//! Each process numbers what it sends, under a name that it draws when it starts. A receiver remembers of each sender the highest
//! number and which of those just below it came. No clock is compared: one that is wrong does no harm. A receiver that
//! was started anew knows no senders: recorded words of a process that has ended are believed once, until the node refutes
//! them, as any late word is.

use std::collections::HashMap;

use crate::pki::Seal;

/// Numbers below the highest one that may still come: datagrams overtake each other by a few.
const WINDOW: u64 = 1_024;

/// Senders of one generation. Restarts of a large cluster in months are fewer.
const MAX_SENDERS: usize = 4_096;

/// The numbers that came of one sender.
#[derive(Debug, Clone)]
struct Heard {
    highest: u64,
    /// One bit for each number of the window, by its remainder.
    came: [u64; (WINDOW / 64) as usize],
}

/// The numbers that came, by sender: those of this generation and of the one before.
#[derive(Debug, Default)]
pub(super) struct ReplayGuard {
    now: HashMap<u64, Heard>,
    before: HashMap<u64, Heard>,
}

impl ReplayGuard {
    /// Takes in a datagram that opened. False: it came before, or is too old to be known.
    pub(super) fn admit(&mut self, seal: &Seal) -> bool {
        if self.now.len() >= MAX_SENDERS && !self.now.contains_key(&seal.sender) {
            self.before = std::mem::take(&mut self.now);
        }
        let before = &mut self.before;
        let heard = self.now.entry(seal.sender).or_insert_with(|| {
            before.remove(&seal.sender).unwrap_or(Heard { highest: seal.number, came: [0; (WINDOW / 64) as usize] })
        });
        heard.admit(seal.number)
    }
}

impl Heard {
    fn admit(&mut self, number: u64) -> bool {
        if number.saturating_add(WINDOW) <= self.highest {
            return false;
        }
        if number > self.highest {
            // The bits of numbers that have left the window are for new ones.
            for new in (self.highest + 1..=number).take(WINDOW as usize) {
                self.came[Self::word(new)] &= !Self::bit(new);
            }
            self.highest = number;
        }
        let (word, bit) = (Self::word(number), Self::bit(number));
        let first = self.came[word] & bit == 0;
        self.came[word] |= bit;
        first
    }

    const fn word(number: u64) -> usize {
        (number % WINDOW / 64) as usize
    }

    const fn bit(number: u64) -> u64 {
        1 << (number % 64)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Beside a set that forgets nothing.
        #[test]
        fn each_number_is_heard_once(numbers in proptest::collection::vec((0_u64..3, 0_u64..3_000), 0..400)) {
            let (mut guard, mut all, mut highest) = (ReplayGuard::default(), std::collections::HashSet::new(), [None::<u64>; 3]);
            for (sender, number) in numbers {
                let top = &mut highest[sender as usize];
                let known = top.is_none_or(|top| number + WINDOW > top);
                let expected = known && all.insert((sender, number));
                prop_assert_eq!(guard.admit(&Seal { sender, number }), expected, "{} of {}", number, sender);
                *top = Some(top.map_or(number, |top| top.max(number)));
            }
        }
    }

    #[test]
    fn many_senders_are_forgotten_the_quiet_ones_first() {
        let mut guard = ReplayGuard::default();
        let busy = Seal { sender: u64::MAX, number: 7 };
        assert!(guard.admit(&busy));
        for sender in 0..3 * MAX_SENDERS as u64 {
            assert!(guard.admit(&Seal { sender, number: 1 }));
            assert!(!guard.admit(&busy));
        }
        assert!(guard.now.len() + guard.before.len() <= 2 * MAX_SENDERS);
    }
}
