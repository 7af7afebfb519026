//! Worth of a deployment that is on demand, in the order of eviction: who leaves first.
//!
//! ```text
//! worth = time of the last use + HALF_LIFE × (log2 of the uses that are remembered + log2 of (1 + RELOAD / size))
//! ```
//! A use counts half after each [`HALF_LIFE`]. So a model that is used for the second time within minutes stays some five
//! minutes longer than one that was used once, and one that is half as large does, where both are small. What was used once
//! and has one size leaves in the order of last uses. Least recently used alone has some 87 % of the hits that could be had
//! when models are asked for with popularities after Zipf, this order 95 %, both in a simulation of the requests of bench/paging.
//!
//! Source: LRFU (Lee et al., 2001) for the decayed count, which needs one number per model; GreedyDual-Size-Frequency
//! (Cherkasova, 1998) for the size.

use std::time::Duration;

use berth_spec::{ByteSize, Time};

/// Time after which a use counts half: long enough to tell what is used every minute from what is used once, and short
/// enough to forget yesterday's favourite within the hour.
const HALF_LIFE: Duration = Duration::from_secs(300);

/// A load costs about as much as so many bytes more of the model would: requests wait for a start as well as for bytes.
const RELOAD: f64 = 64.0 * 1024.0 * 1024.0;

/// The uses that are remembered, as of the last one; at least that. Uses within a second are one, which bounds it: a model
/// that is used all the time comes to about nine doublings, however many gateways tell of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Uses(f32);

impl Default for Uses {
    fn default() -> Self {
        Self(1.0)
    }
}

impl Uses {
    /// With a further use, at `now`; the one before was at `before`.
    pub(crate) fn with(self, before: Time, now: Time) -> Self {
        if before == Time::ZERO {
            return Self::default();
        }
        let since = now.since(before).as_secs_f64();
        let left = f64::from(self.0) * (-since / HALF_LIFE.as_secs_f64()).exp2();
        Self((left + since.min(1.0)).max(1.0) as f32)
    }

    fn doublings(self) -> f64 {
        f64::from(self.0).log2()
    }
}

/// Worth of something that takes `size` in memory. What was never used has none.
pub(crate) fn worth(last_used: Time, uses: Uses, size: ByteSize) -> Time {
    if last_used == Time::ZERO {
        return Time::ZERO;
    }
    let small = (1.0 + RELOAD / (size.0.max(1) as f64)).log2();
    last_used + HALF_LIFE.mul_f64(uses.doublings() + small)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time(1_700_000_000_000_000_000);

    fn after(seconds: f64) -> Time {
        START + Duration::from_secs_f64(seconds)
    }

    fn used(every: f64, times: u32) -> (Time, Uses) {
        (1..times).fold((START, Uses::default()), |(last, uses), time| {
            let now = after(every * f64::from(time));
            (now, uses.with(last, now))
        })
    }

    #[test]
    fn one_use_each_goes_by_the_last_and_repeated_use_stays_longer() {
        let size = ByteSize::mib(10);
        let once = |at| worth(after(at), Uses::default(), size);
        assert!(once(1.0) < once(2.0));
        let (last, uses) = used(60.0, 10);
        let twice_as_worn = worth(last, uses, size).since(once(540.0));
        assert!(twice_as_worn > Duration::from_secs(600), "ten uses within ten minutes: {twice_as_worn:?}");
        // An hour later that is forgotten.
        let uses = uses.with(last, after(4_140.0));
        assert!(worth(after(4_140.0), uses, size).since(once(4_140.0)) < Duration::from_secs(1));
    }

    #[test]
    fn a_storm_is_worth_no_more_than_steady_use() {
        let (last, steady) = used(1.0, 4_000);
        let (_, storm) = used(0.001, 4_000);
        assert!(storm.0 < steady.0, "{storm:?} {steady:?}");
        assert!(steady.doublings() < 9.0, "{steady:?}");
        // What is used ten times a second and what is used each second is used all the time.
        let (_, often) = used(0.1, 40_000);
        assert!((often.doublings() - steady.doublings()).abs() < 0.2, "{often:?} {steady:?} {last}");
    }

    #[test]
    fn the_smaller_one_stays_and_among_large_ones_size_does_not_matter() {
        let of = |size| worth(START, Uses::default(), size);
        let longer = |small, large| of(small).since(of(large)).as_secs();
        assert!((240..300).contains(&longer(ByteSize::mib(4), ByteSize::mib(8))));
        assert!(longer(ByteSize::gib(4), ByteSize::gib(8)) < 10);
        assert_eq!(worth(Time::ZERO, Uses::default(), ByteSize::mib(4)), Time::ZERO);
    }
}
