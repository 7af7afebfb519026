//! Ejects endpoints that fail, and lets them in again.
//!
//! ```text
//!        bad × CONSECUTIVE_FAILURES, or more than half of the last ones
//!  In ─────────────────────────────────────────────────────▶ Out ──back-off over──▶ Due
//!  ▲                                                          ▲                      │ one request probes
//!  └──────────────────────── good ────────────────────────────┼──────────────────────┤
//!                                                             └── bad: twice as long ┘
//! ```
//!
//! Out is advice: whoever has no other endpoint sends there all the same, so the last one is never ejected.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::endpoint::tick::Tick;

/// Failures in a row that eject: more than a burst of requests on one line that breaks, few enough to learn of a dead
/// endpoint quickly.
const CONSECUTIVE_FAILURES: u32 = 5;

/// A whole share: all of the last requests failed.
const FULL_SHARE: u32 = 1 << 16;
/// The weight of one request in the share, 1/16: about eleven failures of sixteen make more than half.
const SHARE_WEIGHT: u32 = 16;

/// The first time out: a short fault costs capacity for no longer.
const BASE_EJECTION: Duration = Duration::from_secs(1);
/// The longest time out: a node that is gone for good is probed twice a minute.
const MAX_EJECTION: Duration = Duration::from_secs(30);
/// The time for which others keep away while one request probes; then the next one may.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// The state of an endpoint by its failures; see the diagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutlierState {
    /// In order: gets its part of the requests.
    In,
    /// Its time out is over: the next request that claims it is its probe.
    Due,
    /// Gets none while there is another one.
    Out,
}

/// The record of one endpoint. Takes no lock, and writes nothing while all is well.
#[derive(Debug, Default)]
pub(crate) struct Outlier {
    in_row: AtomicU32,
    /// The smoothed share of failures, of [`FULL_SHARE`].
    share: AtomicU32,
    /// When its time out ends; 0: it is in.
    until: AtomicU64,
    /// The number of recent times out: the exponent of the back-off.
    times: AtomicU32,
    /// A request probes.
    probing: AtomicBool,
}

impl Outlier {
    pub(crate) fn standing(&self, now: Tick) -> OutlierState {
        match self.until.load(Relaxed) {
            0 => OutlierState::In,
            until if until <= now.0 => OutlierState::Due,
            _ => OutlierState::Out,
        }
    }

    /// Takes the right to probe; one request gets it.
    pub(crate) fn claim(&self, now: Tick) -> bool {
        let until = self.until.load(Relaxed);
        let due = until != 0 && until <= now.0;
        let claimed = due && self.until.compare_exchange(until, now.after(PROBE_TIMEOUT).0, Relaxed, Relaxed).is_ok();
        if claimed {
            self.probing.store(true, Relaxed);
        }
        claimed
    }

    /// Notes a success: ends a row of failures, and a time out.
    pub(crate) fn good(&self) {
        if self.in_row.load(Relaxed) != 0 {
            self.in_row.store(0, Relaxed);
        }
        let share = self.share.load(Relaxed);
        if share != 0 {
            self.share.store(share - share.div_ceil(SHARE_WEIGHT), Relaxed);
        }
        if self.until.load(Relaxed) != 0 {
            // The probe came back, or a request that was under way before.
            self.until.store(0, Relaxed);
            self.probing.store(false, Relaxed);
            self.share.store(0, Relaxed);
            let _ = self.times.fetch_update(Relaxed, Relaxed, |times| times.checked_sub(1));
        }
    }

    /// Notes a failure. True when this takes the endpoint out.
    pub(crate) fn bad(&self, now: Tick) -> bool {
        let in_row = self.in_row.fetch_add(1, Relaxed) + 1;
        let share = self.share.load(Relaxed);
        let share = share + (FULL_SHARE - share.min(FULL_SHARE)) / SHARE_WEIGHT;
        self.share.store(share, Relaxed);
        let out = self.until.load(Relaxed);
        // Requests that were under way when it went out tell nothing new; a probe does.
        if out != 0 {
            if self.probing.swap(false, Relaxed) {
                self.eject(now);
            }
            return false;
        }
        let worth_it = in_row >= CONSECUTIVE_FAILURES || share > FULL_SHARE / 2;
        if worth_it {
            self.eject(now);
        }
        worth_it
    }

    /// Out for a time that doubles with each.
    fn eject(&self, now: Tick) {
        let times = self.times.load(Relaxed).min(16);
        self.times.store(times + 1, Relaxed);
        let time = BASE_EJECTION.saturating_mul(1 << times).min(MAX_EJECTION);
        self.until.store(now.after(time).0, Relaxed);
        self.in_row.store(0, Relaxed);
    }

    /// Out for this long, without having failed: it said so itself.
    pub(crate) fn rest(&self, now: Tick, time: Duration) {
        self.until.fetch_max(now.after(time).0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn out_after_some_in_a_row_and_in_again_after_a_probe() {
        let (outlier, now) = (Outlier::default(), Tick(1));
        for _ in 1..CONSECUTIVE_FAILURES {
            assert!(!outlier.bad(now));
        }
        outlier.good();
        for _ in 1..CONSECUTIVE_FAILURES {
            assert!(!outlier.bad(now), "they were not in a row");
        }
        assert!(outlier.bad(now));
        assert_eq!(outlier.standing(now), OutlierState::Out);
        let later = now.after(SECOND);
        assert_eq!(outlier.standing(later), OutlierState::Due);
        assert!(outlier.claim(later) && !outlier.claim(later), "one probe");
        assert_eq!(outlier.standing(later), OutlierState::Out);
        outlier.good();
        assert_eq!(outlier.standing(later), OutlierState::In);
    }

    #[test]
    fn a_probe_that_fails_doubles_the_time_out() {
        let outlier = Outlier::default();
        let mut now = Tick(1);
        for _ in 0..CONSECUTIVE_FAILURES {
            outlier.bad(now);
        }
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            now = now.after(SECOND * seconds);
            assert_eq!(outlier.standing(now), OutlierState::Due, "{seconds}");
            assert_eq!(outlier.standing(Tick(now.0 - 1)), OutlierState::Out, "{seconds}");
            assert!(outlier.claim(now) && !outlier.bad(now));
        }
    }

    #[test]
    fn what_fails_more_often_than_not_goes_out() {
        let outlier = Outlier::default();
        let out = (0..200).position(|n| {
            let went = n % 3 != 2 && outlier.bad(Tick(1));
            if n % 3 == 2 {
                outlier.good();
            }
            went
        });
        assert!(out.is_some());
        let steady = Outlier::default();
        for n in 0..2_000 {
            if n % 4 == 0 { assert!(!steady.bad(Tick(1))) } else { steady.good() }
        }
    }

    proptest! {
        /// An endpoint is never out for longer than the longest back-off after the last failure, and a good one brings it back.
        #[test]
        fn out_is_bounded(steps in proptest::collection::vec((0_u64..2_000_000, 0_u8..3), 1..300)) {
            let outlier = Outlier::default();
            let mut now = Tick(1);
            for (pause, what) in steps {
                now = Tick(now.0 + pause);
                match what {
                    0 => { outlier.good(); prop_assert_eq!(outlier.standing(now), OutlierState::In); }
                    1 => { outlier.bad(now); }
                    _ => { outlier.claim(now); }
                }
                prop_assert!(outlier.standing(now.after(MAX_EJECTION)) != OutlierState::Out);
            }
        }
    }
}
