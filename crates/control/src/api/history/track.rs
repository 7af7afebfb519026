//! Some figures over a day: a fine ring of the last hour, a coarse one of the last day.

use std::collections::VecDeque;

/// Resolution and length of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tier {
    /// Nanoseconds between points.
    pub(crate) step_ns: u64,
    /// Points after which the oldest is overwritten.
    pub(crate) points: usize,
}

/// An hour at the resolution at which rates of a few requests per second look smooth.
pub(crate) const FINE: Tier = Tier { step_ns: 10_000_000_000, points: 360 };

/// A day, in as many points as a chart is wide on a phone held upright.
pub(crate) const COARSE: Tier = Tier { step_ns: 120_000_000_000, points: 720 };

/// Fine points in a coarse one.
const RATIO: u64 = COARSE.step_ns / FINE.step_ns;

/// Points by which a ring grows: a divisor of both lengths, so that none is larger than it may be.
const GROWS_BY: usize = 60;

/// Part of the day that is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Range {
    #[default]
    Hour,
    Day,
}

impl Range {
    pub(crate) const NAMES: [(&'static str, Self); 2] = [("hour", Self::Hour), ("day", Self::Day)];

    pub(crate) const fn tier(self) -> Tier {
        match self {
            Self::Hour => FINE,
            Self::Day => COARSE,
        }
    }

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }
}

/// `N` figures over a day.
#[derive(Debug, Clone)]
pub(crate) struct Track<const N: usize> {
    /// Tick of the newest fine point; 0 before the first.
    last: u64,
    fine: VecDeque<[f32; N]>,
    coarse: VecDeque<[f32; N]>,
    /// Fine points of the coarse one that is not full yet.
    open: Mean<N>,
}

/// Mean of those points that are known.
#[derive(Debug, Clone, Copy)]
struct Mean<const N: usize> {
    sums: [f32; N],
    counts: [u16; N],
}

impl<const N: usize> Default for Mean<N> {
    fn default() -> Self {
        Self { sums: [0.0; N], counts: [0; N] }
    }
}

impl<const N: usize> Mean<N> {
    fn add(&mut self, point: [f32; N]) {
        for (at, value) in point.into_iter().enumerate().filter(|(_, value)| !value.is_nan()) {
            self.sums[at] += value;
            self.counts[at] += 1;
        }
    }

    fn take(&mut self) -> [f32; N] {
        let Self { sums, counts } = std::mem::take(self);
        std::array::from_fn(|at| if counts[at] == 0 { f32::NAN } else { sums[at] / f32::from(counts[at]) })
    }
}

impl<const N: usize> Default for Track<N> {
    fn default() -> Self {
        Self { last: 0, fine: VecDeque::new(), coarse: VecDeque::new(), open: Mean::default() }
    }
}

impl<const N: usize> Track<N> {
    /// Adds the sample of a tick. Ticks without one become unknown points; a second one of a tick, and one of the past (a
    /// clock was set back), are left out.
    pub(crate) fn push(&mut self, tick: u64, point: [f32; N]) {
        if self.last != 0 && tick <= self.last {
            return;
        }
        // After a longer silence than the rings remember, nothing of before counts.
        if self.last != 0 && self.is_over(tick) {
            *self = Self::default();
        }
        let first = if self.last == 0 { tick } else { self.last + 1 };
        for missing in first..tick {
            self.step(missing, [f32::NAN; N]);
        }
        self.step(tick, point);
        self.last = tick;
    }

    fn step(&mut self, tick: u64, point: [f32; N]) {
        keep(&mut self.fine, FINE.points, point);
        self.open.add(point);
        if (tick + 1).is_multiple_of(RATIO) {
            keep(&mut self.coarse, COARSE.points, self.open.take());
        }
    }

    /// True if everything that was sampled is a day old.
    pub(crate) fn is_over(&self, tick: u64) -> bool {
        tick.saturating_sub(self.last) > COARSE.points as u64 * RATIO
    }

    /// The points of a range, oldest first, the newest of them that of `tick`, or of the coarse step before it.
    pub(crate) fn points(&self, range: Range, tick: u64) -> Vec<[f32; N]> {
        let (ring, behind) = match range {
            Range::Hour => (&self.fine, tick.saturating_sub(self.last)),
            Range::Day => (&self.coarse, ((tick + 1) / RATIO).saturating_sub((self.last + 1) / RATIO)),
        };
        if ring.is_empty() {
            return Vec::new();
        }
        let most = range.tier().points;
        let behind = usize::try_from(behind).unwrap_or(most).min(most);
        let known = ring.iter().copied().chain(std::iter::repeat_n([f32::NAN; N], behind));
        known.skip((ring.len() + behind).saturating_sub(most)).collect()
    }
}

fn keep<T>(ring: &mut VecDeque<T>, most: usize, point: T) {
    if ring.len() == most {
        ring.pop_front();
    } else if ring.len() == ring.capacity() {
        ring.reserve_exact(GROWS_BY.min(most - ring.len()));
    }
    ring.push_back(point);
}

#[cfg(test)]
impl<const N: usize> Track<N> {
    /// Bytes of both rings as they are allocated.
    pub(super) fn allocated(&self) -> usize {
        (self.fine.capacity() + self.coarse.capacity()) * size_of::<[f32; N]>()
    }
}
