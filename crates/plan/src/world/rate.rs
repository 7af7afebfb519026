//! Rates of use: averages that decay with time alone, so that silence needs no message.

use std::time::Duration;

use berth_spec::Time;

/// Span of the quick average: load has to last some seconds before another copy is made.
const QUICK_SPAN: Duration = Duration::from_secs(20);

/// Span of the slow average: a pause of two minutes is not yet the end of load.
const SLOW_SPAN: Duration = Duration::from_secs(150);

/// Span over which requests in flight are averaged: the first second of a batch job is no load yet.
const BUSY: Duration = Duration::from_secs(10);

/// Requests per minute below which a rate is nothing: one request in 100 minutes.
const NOTHING: f32 = 0.01;

/// Requests per minute: each request counts when it is told of, and is forgotten exponentially.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Rate {
    at: Time,
    quick: f32,
    slow: f32,
}

/// A level that follows what is said of it with a delay.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Level {
    at: Time,
    /// The level at the time `at`.
    value: f32,
    /// The value that it goes to.
    last: f32,
}

/// In which of the last 64 minutes something was used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    /// The minute of the lowest bit, since the epoch.
    minute: u64,
    bits: u64,
}

/// Share of 1 that is left after a time.
fn fade(passed: Duration, over: Duration) -> f32 {
    (-passed.as_secs_f32() / over.as_secs_f32()).exp()
}

/// Time that `value` takes to decay to `to`; nothing if it has.
fn fades_in(value: f32, to: f32, over: Duration) -> Duration {
    if value <= to || to <= 0.0 { Duration::ZERO } else { over.mul_f32((value / to).ln()) }
}

impl Rate {
    /// Requests came since it was last told.
    pub(crate) fn count(&mut self, requests: u64, now: Time) {
        let per_minute = |over: Duration| requests as f32 * 60.0 / over.as_secs_f32();
        (self.quick, self.slow) = (self.quick(now) + per_minute(QUICK_SPAN), self.slow(now) + per_minute(SLOW_SPAN));
        self.at = self.at.max(now);
    }

    /// Over the last seconds.
    pub(crate) fn quick(&self, now: Time) -> f32 {
        self.quick * fade(now.since(self.at), QUICK_SPAN)
    }

    /// Over the last minutes.
    pub(crate) fn slow(&self, now: Time) -> f32 {
        self.slow * fade(now.since(self.at), SLOW_SPAN)
    }

    /// Returns true if nothing is left of it.
    pub(crate) fn is_nothing(&self, now: Time) -> bool {
        self.slow(now) < NOTHING
    }

    /// Time that a slow rate of `value` takes to decay to `to`.
    pub(crate) fn fades_in(value: f32, to: f32) -> Duration {
        fades_in(value, to, SLOW_SPAN)
    }
}

impl Level {
    /// Lets the level move towards `value` from now on.
    pub(crate) fn set(&mut self, value: u32, now: Time) {
        *self = Self { at: now.max(self.at), value: self.get(now), last: value as f32 };
    }

    /// The level at this time, between where it was and where it goes.
    pub(crate) fn get(&self, now: Time) -> f32 {
        self.last + (self.value - self.last) * fade(now.since(self.at), BUSY)
    }

    /// Time that it takes down to `to`, if it goes there.
    pub(crate) fn falls_in(&self, to: f32, now: Time) -> Option<Duration> {
        let value = self.get(now);
        if value <= to {
            return Some(Duration::ZERO);
        }
        (self.last < to).then(|| fades_in(value - self.last, to - self.last, BUSY))
    }
}

impl Marks {
    /// Marks the minute of `at` as one with a use.
    pub(crate) fn mark(&mut self, at: Time) {
        let minute = at.as_millis() / 60_000;
        if minute >= self.minute {
            self.bits = u32::try_from(minute - self.minute).ok().and_then(|by| self.bits.checked_shl(by)).unwrap_or(0);
            self.minute = minute;
        }
        let back = self.minute - minute.min(self.minute);
        self.bits |= u32::try_from(back).ok().and_then(|by| 1_u64.checked_shl(by)).unwrap_or(0);
    }

    /// Returns true if there was any use between `after` and `within` ago.
    pub(crate) fn any(&self, now: Time, after: Duration, within: Duration) -> bool {
        let passed = (now.as_millis() / 60_000).saturating_sub(self.minute);
        let ago = |minute: u64| passed.saturating_add(minute).saturating_mul(60);
        (0..64)
            .any(|minute| self.bits >> minute & 1 == 1 && (after.as_secs()..=within.as_secs()).contains(&ago(minute)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time(1_000_000_000_000);

    fn at(seconds: u64) -> Time {
        START + Duration::from_secs(seconds)
    }

    #[test]
    fn a_steady_rate_is_found_and_fades() {
        let mut rate = Rate::default();
        for second in 0..900 {
            rate.count(50, at(second));
        }
        let now = at(899);
        assert!((2_900.0..3_150.0).contains(&rate.quick(now)), "{}", rate.quick(now));
        assert!((2_900.0..3_150.0).contains(&rate.slow(now)), "{}", rate.slow(now));
        let fades = Rate::fades_in(rate.slow(now), 1_000.0);
        assert!((rate.slow(now + fades) - 1_000.0).abs() < 5.0);
        assert!(rate.is_nothing(at(899 + 3_600)));
    }

    #[test]
    fn a_level_follows() {
        let mut level = Level::default();
        level.set(40, at(0));
        assert!(level.get(at(1)) < 5.0 && level.get(at(60)) > 39.0);
        level.set(0, at(60));
        let falls = level.falls_in(20.0, at(60)).expect("it goes to nothing");
        assert!((level.get(at(60) + falls) - 20.0).abs() < 0.1, "{falls:?}");
        level.set(30, at(61));
        assert_eq!(level.falls_in(20.0, at(61)), None);
    }

    #[test]
    fn marks_roll() {
        let minutes = |n: u64| Duration::from_secs(60 * n);
        for (used, seen) in [(0, false), (6, false), (7, true), (20, true), (40, true), (41, false), (70, false)] {
            let mut marks = Marks::default();
            let now = at(2 * 3_600);
            marks.mark(Time(now.0 - 60_000_000_000 * used));
            marks.mark(now);
            assert_eq!(marks.any(now, minutes(7), minutes(40)), seen, "{used} minutes ago");
        }
        let mut late = Marks::default();
        late.mark(at(3_600));
        late.mark(at(0));
        assert!(late.any(at(3_600), minutes(59), minutes(60)), "words may come late");
        late.mark(Time(u64::MAX));
    }
}
