//! Bounds the requests that are sent a second time after a line broke.
//!
//! Each forwarded request pays a fifth of a token in, time pays some more, and a retry takes one out. In the long run
//! retries add at most a fifth to the load, however much fails; what has been saved up covers the moment in which a node
//! dies with all that it was doing.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::endpoint::tick::{Tick, micros};

/// The price of a retry. Tokens are counted in thousandths.
const TOKEN: u64 = 1_000;
/// The share of a token that a request pays in: a fifth of all requests may be sent again in the long run, and the
/// nodes that are left get a fifth more to do.
const PER_REQUEST: u64 = TOKEN / 5;
/// The tokens that a second pays in: 10, so that a quiet gateway can retry, too.
const PER_SECOND: u64 = 10 * TOKEN;
/// One gateway's budget. Takes no lock.
pub(crate) struct Budget {
    tokens: AtomicU64,
    /// Until when time has paid.
    paid: AtomicU64,
    /// The most that is saved up.
    most: u64,
}

impl Budget {
    /// One that saves up as many retries as `most`, and has them at first.
    pub(crate) fn new(most: u32) -> Self {
        let most = u64::from(most) * TOKEN;
        Self { tokens: AtomicU64::new(most), paid: AtomicU64::new(0), most }
    }

    /// A request is forwarded for the first time.
    pub(crate) fn request(&self) {
        // Full is the common case, and then nothing is written.
        if self.tokens.load(Relaxed) < self.most {
            self.tokens.fetch_add(PER_REQUEST, Relaxed);
        }
    }

    /// Takes a token for a retry, if there is one.
    pub(crate) fn take(&self, now: Tick) -> bool {
        self.refill(now);
        let taken = |tokens: u64| tokens.checked_sub(TOKEN);
        self.tokens.fetch_update(Relaxed, Relaxed, taken).is_ok()
    }

    fn refill(&self, now: Tick) {
        let paid = self.paid.load(Relaxed);
        let due = now.since(paid).min(micros(Duration::from_secs(3_600))) * PER_SECOND / 1_000_000;
        if due >= TOKEN && self.paid.compare_exchange(paid, now.0, Relaxed, Relaxed).is_ok() {
            let _ =
                self.tokens.fetch_update(Relaxed, Relaxed, |tokens| Some(tokens.saturating_add(due).min(self.most)));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_node_may_die_with_thousands_in_flight_and_a_storm_ends() {
        let budget = Budget::new(8_192);
        let now = Tick(1);
        let spent = (0..100_000).filter(|_| budget.take(now)).count();
        assert_eq!(spent, 8_192);
        assert!(budget.take(now.after(Duration::from_millis(200))), "time pays");
        let again = (0..100).filter(|_| budget.take(now.after(Duration::from_millis(200)))).count();
        assert_eq!(again, 1);
    }

    proptest! {
        /// In the long run a fifth of the requests and ten a second, whatever the order.
        #[test]
        fn retries_are_bounded(steps in proptest::collection::vec((0_u64..20_000, any::<bool>()), 1..2_000)) {
            let budget = Budget::new(1_000);
            budget.tokens.store(0, Relaxed);
            budget.paid.store(1, Relaxed);
            let (mut now, mut requests, mut retries) = (1, 0_u64, 0_u64);
            for (pause, retry) in steps {
                now += pause;
                if retry {
                    retries += u64::from(budget.take(Tick(now)));
                } else {
                    budget.request();
                    requests += 1;
                }
            }
            prop_assert!(retries * 1_000 <= requests * 200 + (now - 1) / 100);
        }
    }
}
