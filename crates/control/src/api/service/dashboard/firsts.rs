//! The first of many by an order, as a page shows them, without a sort of all and without a copy of all.

use std::cmp::Ordering;

/// Keeps the first `limit` of what is pushed. It holds twice as many at most, and looks at each a few times: whatever number is
/// pushed, a page costs one pass over them.
#[derive(Debug)]
pub(super) struct Firsts<T, F> {
    limit: usize,
    order: F,
    held: Vec<T>,
}

impl<T, F: Fn(&T, &T) -> Ordering> Firsts<T, F> {
    /// `order` is total: of two different ones, one is first.
    pub(super) fn new(limit: usize, order: F) -> Self {
        Self { limit, order, held: Vec::new() }
    }

    pub(super) fn push(&mut self, one: T) {
        self.held.push(one);
        if self.held.len() >= self.limit.saturating_mul(2) {
            self.cut(self.limit);
        }
    }

    /// Those from number `from` on, in order.
    pub(super) fn page(mut self, from: usize) -> Vec<T> {
        self.cut(self.limit);
        if from >= self.held.len() {
            return Vec::new();
        }
        self.held.select_nth_unstable_by(from, &self.order);
        let mut page = self.held.split_off(from);
        page.sort_unstable_by(&self.order);
        page
    }

    fn cut(&mut self, limit: usize) {
        if limit > 0 && limit < self.held.len() {
            self.held.select_nth_unstable_by(limit - 1, &self.order);
        }
        self.held.truncate(limit);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_page_is_that_of_a_sort(
            all in proptest::collection::vec(0_u16..50, 0..400), from in 0_usize..60, limit in 0_usize..60,
        ) {
            let all: Vec<(u16, usize)> = all.into_iter().zip(0..).collect();
            let mut firsts = Firsts::new(from + limit, |a: &(u16, usize), b: &(u16, usize)| a.cmp(b));
            for one in all.clone() {
                firsts.push(one);
                prop_assert!(firsts.held.len() <= 2 * (from + limit), "{} are held", firsts.held.len());
            }
            let mut sorted = all;
            sorted.sort_unstable();
            let expected: Vec<_> = sorted.into_iter().skip(from).take(limit).collect();
            prop_assert_eq!(firsts.page(from), expected);
        }
    }
}
