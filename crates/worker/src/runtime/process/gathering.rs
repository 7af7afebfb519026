//! The wait for callers that were just answered. Many of them ask again at once; a run of half of them, and then one of the other
//! half, would pay twice for what a run costs however many rows it has. Synchronous, without a clock.

use std::time::{Duration, Instant};

/// The shortest wait that is worth it: in less, hardly a caller is back.
const MIN_WAIT: Duration = Duration::from_micros(200);

/// The longest: who asks again at once is back by then.
const MAX_WAIT: Duration = Duration::from_millis(10);

/// The part of older runs that counts on with each run: some thirty are remembered.
const KEEP: f64 = 0.97;

/// The most waits that are left out after one that failed, as a power of two: callers that do not come back cost a sixty-fourth of a
/// wait for each run.
const MOST_LEFT_OUT: u32 = 6;

/// The wait, and what was learned about it.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    cost: Cost,
    open: Option<Wait>,
    /// Waits that failed, one after the other.
    failed: u32,
    /// Waits to be left out.
    left_out: u32,
}

#[derive(Debug, Clone, Copy)]
struct Wait {
    until: Instant,
    /// The callers with which everybody is here.
    all: usize,
    /// The callers with which it was worth it.
    enough: usize,
}

impl Gathering {
    /// A run of some callers was answered, nothing else runs, and so many others wait. Callers are counted, not their rows: a
    /// single one never waits, however many rows each request has.
    pub(super) fn answered(&mut self, callers: usize, time: Duration, waiting: usize, now: Instant) {
        self.open = None;
        let wait = self.wait(time);
        if wait < MIN_WAIT || callers == 0 || callers + waiting < 2 {
            return;
        }
        if self.left_out > 0 {
            self.left_out -= 1;
            return;
        }
        self.open = Some(Wait { until: now + wait, all: callers + waiting, enough: waiting + callers.div_ceil(2) });
    }

    /// A run is computed after this time, and others wait. Returns true if they may go before it is answered, since nobody would be
    /// waited for.
    pub(super) fn computed(&mut self, time: Duration) -> bool {
        if self.wait(time) < MIN_WAIT {
            return true;
        }
        let left_out = self.left_out > 0;
        self.left_out = self.left_out.saturating_sub(1);
        left_out
    }

    /// The wait that a run of this duration justifies.
    fn wait(&self, time: Duration) -> Duration {
        // A slow run before it, such as the first, is no reason for a long wait now.
        (self.cost.fixed().min(time) / 2).min(MAX_WAIT)
    }

    /// Learns the time of a run.
    pub(super) fn learn(&mut self, rows: usize, time: Duration) {
        self.cost.learn(rows as f64, time.as_nanos() as f64);
    }

    /// The moment until which the next run, of so many callers, waits; `None`: it goes.
    pub(super) fn until(&self, waiting: usize) -> Option<Instant> {
        self.open.filter(|open| waiting < open.all).map(|open| open.until)
    }

    /// A run is taken while so many callers wait.
    pub(super) fn taken(&mut self, waiting: usize) {
        match self.open.take() {
            Some(open) if waiting >= open.enough => self.failed = 0,
            Some(_) => {
                self.failed = (self.failed + 1).min(MOST_LEFT_OUT);
                self.left_out = 1 << self.failed;
            }
            None => {}
        }
    }
}

/// The time of a run as a line over its rows, by least squares. In nanoseconds.
#[derive(Debug, Default)]
struct Cost {
    runs: f64,
    rows: f64,
    time: f64,
    rows_rows: f64,
    rows_time: f64,
    fixed: Option<f64>,
}

impl Cost {
    fn learn(&mut self, rows: f64, time: f64) {
        let keep = |sum: &mut f64, new: f64| *sum = *sum * KEEP + new;
        keep(&mut self.runs, 1.0);
        keep(&mut self.rows, rows);
        keep(&mut self.time, time);
        keep(&mut self.rows_rows, rows * rows);
        keep(&mut self.rows_time, rows * time);
        let (rows, time) = (self.rows / self.runs, self.time / self.runs);
        let spread = self.rows_rows / self.runs - rows * rows;
        // Runs that are all alike say nothing about others: what is known stays.
        if spread > rows * rows / 16.0 {
            let each = (self.rows_time / self.runs - rows * time) / spread;
            self.fixed = Some((time - each * rows).clamp(0.0, time));
        }
    }

    /// The time of a run that is the same for any number of rows; half of it where that is not known.
    fn fixed(&self) -> Duration {
        let half = if self.runs > 0.0 { self.time / self.runs / 2.0 } else { 0.0 };
        Duration::from_nanos(self.fixed.unwrap_or(half) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Gathering after runs of some rows that took `fixed` and `each` per row.
    fn learned(fixed: Duration, each: Duration) -> Gathering {
        let mut gathering = Gathering::default();
        for rows in [1, 31, 5, 27, 16] {
            gathering.learn(rows, fixed + each * rows as u32);
        }
        gathering
    }

    #[test]
    fn a_run_waits_for_who_was_answered_where_a_run_costs_much_whatever_its_rows() {
        let (now, mut gathering) = (Instant::now(), learned(6 * MS, MS / 100));
        gathering.answered(32, 6 * MS, 32, now);
        let until = gathering.until(32).expect("it waits");
        assert!(until > now + 2 * MS && until <= now + 3 * MS, "{:?}", until - now);
        assert_eq!(gathering.until(64), None, "everybody is back");
        gathering.taken(64);
        assert_eq!(gathering.until(1), None, "once");
    }

    #[test]
    fn nothing_waits_where_rows_cost_the_same_alone_or_where_runs_are_short() {
        let now = Instant::now();
        let mut gathering = learned(Duration::ZERO, MS);
        gathering.answered(32, 32 * MS, 32, now);
        assert_eq!(gathering.until(32), None);
        let mut gathering = learned(MS / 10, MS / 1000);
        gathering.answered(32, MS / 10, 32, now);
        assert_eq!(gathering.until(32), None);
        let mut gathering = learned(6 * MS, MS / 100);
        gathering.answered(1, 6 * MS, 0, now);
        assert_eq!(gathering.until(0), None, "a single caller");
        gathering.answered(0, 6 * MS, 4, now);
        assert!(gathering.open.is_none(), "the rest of a request is nobody to wait for");
    }

    #[test]
    fn no_wait_is_longer_than_the_run_before_it_justifies() {
        let (now, mut gathering) = (Instant::now(), learned(Duration::from_secs(2), MS));
        gathering.answered(32, 4 * MS, 32, now);
        assert_eq!(gathering.until(32), Some(now + 2 * MS));
        gathering.answered(32, Duration::from_secs(2), 32, now);
        assert_eq!(gathering.until(32), Some(now + MAX_WAIT));
    }

    #[test]
    fn a_run_goes_early_where_nobody_would_be_waited_for() {
        let (now, mut gathering) = (Instant::now(), learned(MS / 10, MS / 100));
        assert!(gathering.computed(MS / 2), "a run costs little beside its rows");
        gathering = learned(6 * MS, MS / 100);
        assert!(!gathering.computed(6 * MS), "callers are waited for");
        gathering.answered(8, 6 * MS, 4, now);
        gathering.taken(5);
        let early = (0..3).map(|_| gathering.computed(6 * MS)).collect::<Vec<_>>();
        assert_eq!(early, [true, true, false], "they did not come: two waits are left out");
    }

    #[test]
    fn callers_that_do_not_come_back_are_seldom_waited_for() {
        let (now, mut gathering) = (Instant::now(), learned(6 * MS, MS / 100));
        let mut waits = 0;
        for _ in 0..1_000 {
            gathering.answered(8, 6 * MS, 4, now);
            waits += u32::from(gathering.until(4).is_some());
            gathering.taken(5);
        }
        assert!((5..30).contains(&waits), "{waits}");
        for _ in 0..65 {
            gathering.answered(8, 6 * MS, 4, now);
            gathering.taken(12);
        }
        gathering.answered(8, 6 * MS, 4, now);
        assert!(gathering.until(4).is_some(), "one that is worth it is the end of that");
    }
}
