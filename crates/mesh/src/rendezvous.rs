//! The choice that keeps equal requests together: weighted rendezvous hashing (Schindelhauer and Schomaker, 2005).
//!
//! Each candidate gets a score from the hash of the request's key with its own name, and the highest score wins. A candidate
//! wins a share of the keys in proportion to its weight. Where a weight changes, keys move from or to that candidate alone;
//! where a candidate goes, its keys alone move. All gateways choose the same, since nothing but key, names and weights counts.

/// A hash of some bytes that is the same on every machine and in every version: FNV-1a, mixed.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    mix(bytes.iter().fold(BASIS, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME)))
}

/// The index of the winner among candidates with their hashes and weights. `None` where none has a weight.
pub(crate) fn winner(key: u64, candidates: impl Iterator<Item = (u64, u32)>) -> Option<usize> {
    let scored = candidates.enumerate().filter(|(_, (_, weight))| *weight > 0);
    let scored = scored.map(|(index, (name, weight))| (index, score(key, name, weight)));
    scored.max_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(index, _)| index)
}

fn score(key: u64, name: u64, weight: u32) -> f64 {
    // The upper 53 bits as a number above 0 and below 1.
    let uniform = ((mix(key ^ name.rotate_left(32)) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    f64::from(weight) / -uniform.ln()
}

/// Spreads a difference of one bit over all bits: the last steps of SplitMix64.
fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(count: usize) -> Vec<u64> {
        (0..count).map(|index| hash(format!("target-{index}").as_bytes())).collect()
    }

    fn winners(weights: &[u32], keys: u32) -> Vec<usize> {
        let names = names(weights.len());
        let candidates = || names.iter().copied().zip(weights.iter().copied());
        let winner = |key: u32| winner(hash(format!("user {key}").as_bytes()), candidates()).expect("some weigh");
        (0..keys).map(winner).collect()
    }

    #[test]
    fn nothing_to_choose_from_has_no_winner() {
        assert_eq!(winner(1, [].into_iter()), None);
        assert_eq!(winner(1, [(7, 0), (8, 0)].into_iter()), None);
    }

    #[test]
    fn the_hash_is_part_of_the_format_between_nodes() {
        assert_eq!(hash(b""), 0xf52a_15e9_a9b5_e89b);
        assert_eq!(hash(b"alice"), hash(b"alice"));
        assert_ne!(hash(b"alice"), hash(b"alicf"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Each candidate has its share of many keys.
        #[test]
        fn shares_follow_weights(weights in proptest::collection::vec(0_u32..=100, 1..6)) {
            prop_assume!(weights.iter().any(|weight| *weight > 0));
            let (won, total) = (winners(&weights, 4_000), weights.iter().sum::<u32>());
            for (index, weight) in weights.iter().enumerate() {
                let share = f64::from(*weight) / f64::from(total);
                let found = won.iter().filter(|winner| **winner == index).count() as f64 / 4_000.0;
                // Five standard deviations of a binomial distribution, and never less than a handful.
                let near = 5.0 * (share * (1.0 - share) / 4_000.0).sqrt() + 0.002;
                prop_assert!((share - found).abs() <= near, "{weights:?}: {found} of {share}");
            }
        }

        /// A larger weight takes keys from others and moves none between them.
        #[test]
        fn a_change_of_one_weight_moves_keys_to_it_or_from_it(
            weights in proptest::collection::vec(1_u32..=100, 2..6),
            more in 1_u32..=100,
        ) {
            let mut changed = weights.clone();
            changed[0] += more;
            for (before, after) in winners(&weights, 1_000).into_iter().zip(winners(&changed, 1_000)) {
                prop_assert!(before == after || after == 0, "{weights:?} + {more}: {before} to {after}");
            }
        }

        /// Only the keys of a candidate that goes move.
        #[test]
        fn a_candidate_that_goes_moves_its_own_keys(weights in proptest::collection::vec(1_u32..=100, 2..6)) {
            let mut without = weights.clone();
            without[0] = 0;
            for (before, after) in winners(&weights, 1_000).into_iter().zip(winners(&without, 1_000)) {
                prop_assert!(before == after || before == 0, "{weights:?}: {before} to {after}");
            }
        }
    }
}
