//! Hits of rules that know every request, over the same requests: models of one size in two servers, each for every other model.

use std::collections::{BTreeSet, HashMap};

/// Whom a full server lets go of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Belady's: whoever is needed last. Nobody can do better without knowing the future.
    Belady,
    /// Whoever was used the longest ago.
    LongestUnused,
}

/// The share of hits among the requests after the first `skipped`, where each server holds so many models.
pub(crate) fn hits(order: &[usize], skipped: usize, held: usize, rule: Rule) -> f64 {
    let mut next = vec![usize::MAX; order.len()];
    let mut upcoming: HashMap<usize, usize> = HashMap::new();
    for (at, model) in order.iter().enumerate().rev() {
        next[at] = upcoming.insert(*model, at).unwrap_or(usize::MAX);
    }
    let mut servers = [Held::default(), Held::default()];
    let mut hits = 0;
    for (at, model) in order.iter().enumerate() {
        // The model with the largest rank leaves.
        let rank = match rule {
            Rule::Belady => next[at],
            Rule::LongestUnused => usize::MAX - at,
        };
        let hit = servers[model % 2].ask(*model, rank, held);
        hits += usize::from(hit && at >= skipped);
    }
    hits as f64 / (order.len() - skipped).max(1) as f64
}

#[derive(Default)]
struct Held {
    ranks: HashMap<usize, usize>,
    order: BTreeSet<(usize, usize)>,
}

impl Held {
    fn ask(&mut self, model: usize, rank: usize, most: usize) -> bool {
        let before = self.ranks.insert(model, rank);
        if let Some(before) = before {
            self.order.remove(&(before, model));
        } else if self.ranks.len() > most
            && let Some((_, other)) = self.order.pop_last()
        {
            self.ranks.remove(&other);
        }
        self.order.insert((rank, model));
        before.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_knows_the_future_has_more_hits() {
        let order = [0, 2, 4, 0, 2, 4, 0, 2, 4];
        assert_eq!(hits(&order, 0, 2, Rule::LongestUnused), 0.0);
        // 4 takes the place of 2, then 2 that of 0, …: every other request after the second is a hit.
        assert_eq!((hits(&order, 0, 2, Rule::Belady) * 9.0).round(), 3.0);
        assert_eq!((hits(&order, 0, 3, Rule::Belady) * 9.0).round(), 6.0);
        assert_eq!(hits(&[1, 1, 0, 1], 1, 1, Rule::Belady), 2.0 / 3.0);
    }
}
