//! The meter of one owner of limits: requests at once, and two buckets, of requests and of bytes.
//!
//! A bucket is one number, the moment at which all that was taken is paid for (the generic cell rate algorithm). It needs
//! no timer and no lock, and does not know the limits: they are given with each call, so that changed ones hold at once.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::{UseLimit, UseLimits};

/// Nanoseconds of a second: the unit of time here.
const SECOND: u64 = 1_000_000_000;

/// Bytes may be taken ahead of time for this long: the rate is one of seconds, and bodies come whole.
const BYTES_AHEAD: u64 = SECOND;

/// A guess of when one of the requests at once has ended.
const RETRY_IN_FLIGHT: Duration = Duration::from_secs(1);

/// A limit that was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exceeded {
    /// The limit that was met.
    pub limit: UseLimit,
    /// Time after which the next one may be let in.
    pub retry_in: Duration,
}

/// Counts of one owner. Points in time are nanoseconds since some start.
#[derive(Debug, Default)]
pub struct Meter {
    requests: Bucket,
    bytes: Bucket,
    in_flight: AtomicU32,
}

impl Meter {
    /// Counts a request of which `bytes` of the body are announced, or says which limit it meets. Counted requests
    /// [`leave`](Self::leave).
    ///
    /// # Errors
    /// The limit.
    pub fn enter(&self, limits: &UseLimits, now: u64, bytes: u64) -> Result<(), Exceeded> {
        let inside = self.in_flight.fetch_add(1, Relaxed);
        let checked = self.check(limits, now, inside);
        match checked {
            Ok(()) => self.spend(limits, now, bytes),
            Err(_) => self.leave(),
        }
        checked
    }

    fn check(&self, limits: &UseLimits, now: u64, inside: u32) -> Result<(), Exceeded> {
        if limits.in_flight.is_some_and(|most| inside >= most) {
            return Err(Exceeded { limit: UseLimit::InFlight, retry_in: RETRY_IN_FLIGHT });
        }
        if limits.bytes_per_second.is_some() {
            let owed = self.bytes.owed(now).saturating_sub(BYTES_AHEAD);
            if owed > 0 {
                return Err(Exceeded { limit: UseLimit::Bytes, retry_in: Duration::from_nanos(owed) });
            }
        }
        if let Some(rate) = limits.rate {
            let each = SECOND / u64::from(rate.max(1));
            let ahead = u64::from(limits.burst.unwrap_or(rate).saturating_sub(1)).saturating_mul(each);
            let taken = self.requests.take(now, each, ahead);
            taken.map_err(|retry_in| Exceeded { limit: UseLimit::Rate, retry_in })?;
        }
        Ok(())
    }

    /// Counts bytes of a body that was let in. They may go beyond the limit; the next request then waits for it.
    pub fn spend(&self, limits: &UseLimits, now: u64, bytes: u64) {
        if let Some(per_second) = limits.bytes_per_second.filter(|_| bytes > 0) {
            let cost = u128::from(bytes) * u128::from(SECOND) / u128::from(per_second.0.max(1));
            self.bytes.owe(now, u64::try_from(cost).unwrap_or(u64::MAX));
        }
    }

    /// Ends a request that was counted.
    pub fn leave(&self) {
        self.in_flight.fetch_sub(1, Relaxed);
    }

    /// True if nothing is inside, and nothing is owed: a new meter would do the same.
    #[must_use]
    pub fn is_idle(&self, now: u64) -> bool {
        self.in_flight.load(Relaxed) == 0 && self.requests.owed(now) == 0 && self.bytes.owed(now) == 0
    }
}

/// The moment at which all that was taken is paid for.
#[derive(Debug, Default)]
struct Bucket(AtomicU64);

impl Bucket {
    /// Time until all is paid for.
    fn owed(&self, now: u64) -> u64 {
        self.0.load(Relaxed).saturating_sub(now)
    }

    /// Takes `cost` if at most `ahead` was taken ahead of time, else says when it may be.
    fn take(&self, now: u64, cost: u64, ahead: u64) -> Result<(), Duration> {
        let taken = self.0.fetch_update(Relaxed, Relaxed, |paid| {
            let from = paid.max(now);
            (from - now <= ahead).then(|| from.saturating_add(cost))
        });
        taken.map(drop).map_err(|paid| Duration::from_nanos(paid.saturating_sub(now).saturating_sub(ahead)))
    }

    /// Takes `cost` whatever was taken before.
    fn owe(&self, now: u64, cost: u64) {
        let owed = |paid: u64| Some(paid.max(now).saturating_add(cost));
        // Never refused.
        let _ = self.0.fetch_update(Relaxed, Relaxed, owed);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ByteSize;

    const NONE: UseLimits =
        UseLimits { rate: None, burst: None, in_flight: None, bytes_per_second: None, max_wait: None };

    fn limit(entered: Result<(), Exceeded>) -> Option<UseLimit> {
        entered.err().map(|exceeded| exceeded.limit)
    }

    #[test]
    fn requests_at_once() {
        let (meter, limits) = (Meter::default(), UseLimits { in_flight: Some(2), ..NONE });
        let entered: Vec<_> = (0..3).map(|_| limit(meter.enter(&limits, 0, 0))).collect();
        assert_eq!(entered, [None, None, Some(UseLimit::InFlight)]);
        meter.leave();
        assert_eq!(limit(meter.enter(&limits, 0, 0)), None);
    }

    #[test]
    fn a_refusal_says_when_the_next_one_is_let_in() {
        let (meter, limits) = (Meter::default(), UseLimits { rate: Some(10), burst: Some(2), ..NONE });
        assert_eq!(meter.enter(&limits, 0, 0), Ok(()));
        assert_eq!(meter.enter(&limits, 0, 0), Ok(()));
        let refused = meter.enter(&limits, 0, 0).expect_err("two at once");
        assert_eq!(refused, Exceeded { limit: UseLimit::Rate, retry_in: Duration::from_millis(100) });
        assert_eq!(meter.enter(&limits, SECOND / 10, 0), Ok(()));
        assert!(meter.enter(&limits, SECOND / 10, 0).is_err());
        assert_eq!(meter.in_flight.load(Relaxed), 3, "what is refused is not counted");
    }

    #[test]
    fn a_large_body_is_let_in_and_paid_for_afterwards() {
        let (meter, limits) = (Meter::default(), UseLimits { bytes_per_second: Some(ByteSize(1_000)), ..NONE });
        assert_eq!(meter.enter(&limits, 0, 5_000), Ok(()));
        let refused = meter.enter(&limits, 0, 1).expect_err("five seconds' worth were taken");
        assert_eq!(refused, Exceeded { limit: UseLimit::Bytes, retry_in: Duration::from_secs(4) });
        assert_eq!(meter.enter(&limits, 4 * SECOND, 1), Ok(()));
        assert!(!meter.is_idle(4 * SECOND));
    }

    #[test]
    fn limits_that_change_hold_at_once() {
        let (meter, few, many) =
            (Meter::default(), UseLimits { rate: Some(1), ..NONE }, UseLimits { rate: Some(1_000), ..NONE });
        assert_eq!(limit(meter.enter(&few, 0, 0)), None);
        assert_eq!(limit(meter.enter(&few, 0, 0)), Some(UseLimit::Rate));
        assert_eq!(limit(meter.enter(&many, SECOND / 2, 0)), None);
    }

    proptest! {
        /// In any stretch of time no more are let in than the burst and what the rate gives for it; and whoever comes when
        /// told to is let in.
        #[test]
        fn the_rate_is_held_and_the_time_to_come_again_is_true(
            rate in 1_u32..1_000,
            burst in 1_u32..50,
            pauses in prop::collection::vec(0_u64..50_000_000, 1..200),
        ) {
            let (meter, limits) = (Meter::default(), UseLimits { rate: Some(rate), burst: Some(burst), ..NONE });
            let (mut now, mut let_in) = (7 * SECOND, Vec::new());
            for pause in pauses {
                now += pause;
                match meter.enter(&limits, now, 0) {
                    Ok(()) => let_in.push(now),
                    Err(exceeded) => {
                        now += u64::try_from(exceeded.retry_in.as_nanos()).expect("short");
                        prop_assert_eq!(meter.enter(&limits, now, 0), Ok(()));
                        let_in.push(now);
                    }
                }
            }
            let each = SECOND / u64::from(rate);
            for (at, from) in let_in.iter().enumerate() {
                for (count, until) in let_in[at..].iter().enumerate() {
                    prop_assert!(count as u64 <= u64::from(burst) + (until - from) / each);
                }
            }
        }
    }
}
