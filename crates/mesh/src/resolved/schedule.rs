//! The order in which requests go to revisions that share traffic: smooth, so that 90 to 10 is every tenth request and
//! never 90 in a row.
//!
//! A schedule is made when a route changes, by Tijdeman's solution of the chairman assignment problem (1980): of those
//! that are due, the one with the earliest deadline is next. After any number of picks each revision is less than one pick
//! away from its share; in any window of picks, less than two.

/// The most picks after which a schedule repeats: shares are kept to a thousandth, and a schedule takes 2 KB at most.
const MAX_PICKS: u64 = 1_000;

/// Picks in order, as indices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Schedule(Box<[u16]>);

impl Schedule {
    /// The schedule of these weights. `None` where there is nothing to choose from.
    pub(crate) fn of(weights: &[u32]) -> Option<Self> {
        let weights = scaled(weights);
        let (total, count) = (weights.iter().sum::<u64>(), weights.iter().filter(|weight| **weight > 0).count() as u64);
        if count == 0 || weights.len() > usize::from(u16::MAX) {
            return None;
        }
        // The slack is 1 / (2 · count − 2) picks; everything is in units of it.
        let slack = (2 * count).saturating_sub(2).max(1);
        let mut picked = vec![0_u64; weights.len()];
        let order = (1..=total).map(|at| {
            let due = |index: &usize| weights[*index] * at * slack >= picked[*index] * total * slack + total;
            let sooner = |a: &usize, b: &usize| {
                let deadline = |index: usize| (picked[index] + 1) * slack - 1;
                (deadline(*a) * weights[*b]).cmp(&(deadline(*b) * weights[*a]))
            };
            let open = || (0..weights.len()).filter(|index| picked[*index] < weights[*index]);
            let next = open().filter(due).min_by(sooner).or_else(|| open().min_by(sooner)).unwrap_or(0);
            picked[next] += 1;
            u16::try_from(next).unwrap_or(0)
        });
        Some(Self(order.collect()))
    }

    /// The position of the target that gets the request with this number; repeats after the last pick.
    pub(crate) fn at(&self, number: u32) -> usize {
        usize::from(self.0[number as usize % self.0.len()])
    }
}

/// The smallest whole numbers with the same ratios, or nearly so where those are too large.
fn scaled(weights: &[u32]) -> Vec<u64> {
    let gcd = weights.iter().copied().map(u64::from).fold(0, gcd).max(1);
    let reduced: Vec<u64> = weights.iter().map(|weight| u64::from(*weight) / gcd).collect();
    let total: u64 = reduced.iter().sum();
    if total <= MAX_PICKS {
        return reduced;
    }
    let share = |weight: &u64| if *weight == 0 { 0 } else { (weight * MAX_PICKS).div_ceil(total) };
    reduced.iter().map(share).collect()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ninety_to_ten_is_every_tenth() {
        let schedule = Schedule::of(&[90, 10]).expect("two");
        for start in 0..10 {
            assert_eq!((start..start + 10).filter(|at| schedule.at(*at) == 1).count(), 1, "{schedule:?}");
        }
    }

    #[test]
    fn nothing_has_no_schedule() {
        assert_eq!(Schedule::of(&[]), None);
        assert_eq!(Schedule::of(&[0, 0]), None);
        assert!((0..9).all(|at| Schedule::of(&[0, 7]).expect("one").at(at) == 1));
    }

    proptest! {
        /// In any window each has its share, give or take less than two picks.
        #[test]
        fn windows_are_fair(
            weights in proptest::collection::vec(0_u32..=100, 1..6),
            start in 0_u32..10_000,
            length in 1_u32..2_000,
        ) {
            prop_assume!(weights.iter().any(|weight| *weight > 0));
            let schedule = Schedule::of(&weights).expect("some weigh");
            let total: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
            let mut picked = vec![0_u32; weights.len()];
            (start..start + length).for_each(|at| picked[schedule.at(at)] += 1);
            for (weight, picked) in weights.iter().zip(&picked) {
                let share = f64::from(*weight) / total * f64::from(length);
                prop_assert!((share - f64::from(*picked)).abs() < 2.0, "{weights:?}: {picked} of {share}");
            }
        }

        /// Large weights make no large schedule, and everybody who weighs is picked.
        #[test]
        fn large_weights_are_scaled(weights in proptest::collection::vec(1_u32.., 2..6)) {
            let schedule = Schedule::of(&weights).expect("all weigh");
            prop_assert!(schedule.0.len() <= 1_010);
            for index in 0..weights.len() {
                prop_assert!(schedule.0.iter().any(|pick| usize::from(*pick) == index));
            }
        }
    }
}
