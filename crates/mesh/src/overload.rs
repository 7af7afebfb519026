//! Overload of one model: more requests come than it answers, for longer than its queue can take.
//!
//! ```text
//!        a full queue refused some, or requests wait longer than `limits.maxWait`
//! Calm ─────────────────────────────────────────────────────────────────────────────▶ Shedding
//!   ▲   no bound but the queue's                         a bound that keeps the wait short │
//!   └───────────────────────── a window without a refusal ────────────────────────────────┘
//! ```
//! A queue is for bursts. One that has filled up and stays full makes every request wait for all the others and answers no more of
//! them, so that it is kept short as long as the storm lasts: CoDel's thought. The bound is what the model answers in the time that
//! requests take at most (Little's law), and never so small that the model answers fewer than it can.
//!
//! [`Brain`] decides, once in a window, without clock or atomics. [`Pressure`] is what requests read and add to: the last request of
//! a window is the one that closes it, so that there is no task and no list of models.

mod brain;

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_spec::{DeploymentName, InferError, inference::Shed};

use self::brain::{Brain, Window};

/// The shortest window: long beside most runs, short beside the patience of a caller.
const MIN_WINDOW_NANOS: u64 = 100_000_000;

/// Runs that a window has at least; the mean of fewer says little.
const MIN_WINDOW_RUNS: u64 = 16;

/// The longest window in nanoseconds, however few the runs: the bound of a slow model follows its load within
/// seconds, too.
const MAX_WINDOW_NANOS: u64 = 2_000_000_000;

/// No bound.
const UNBOUNDED: u32 = u32::MAX;

/// When to try again: the storm may be over.
const RETRY_OVERLOADED: Duration = Duration::from_secs(1);

/// The part of a bound that a caller may have of his own when all have more: one in eight.
const CALLER_SHARE_DIVISOR: u32 = 8;

/// The pressure on one model. Points in time are nanoseconds since some start.
#[derive(Debug)]
pub(crate) struct Pressure {
    runs: AtomicU64,
    run_ns: AtomicU64,
    refused: AtomicU64,
    /// When the window may be closed, and when it began.
    closes: AtomicU64,
    began: AtomicU64,
    /// The last request of all ended in this window: there was a pause.
    paused: AtomicBool,
    /// The most requests in flight.
    bound: AtomicU32,
    /// Time that the model takes for each request while it is busy all the time; 0: it is not.
    each_ns: AtomicU64,
    /// Locked once in a window, by the request that closes it.
    brain: Mutex<Brain>,
}

impl Default for Pressure {
    fn default() -> Self {
        Self {
            runs: AtomicU64::new(0),
            run_ns: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            closes: AtomicU64::new(0),
            began: AtomicU64::new(0),
            paused: AtomicBool::new(true),
            bound: AtomicU32::new(UNBOUNDED),
            each_ns: AtomicU64::new(0),
            brain: Mutex::default(),
        }
    }
}

impl Pressure {
    /// Refuses a request that would wait too long: with `in_flight` before it, of which its own caller has `own`, and so much time.
    pub(crate) fn check(
        &self,
        model: &DeploymentName,
        in_flight: u32,
        own: usize,
        timeout: Duration,
    ) -> Result<(), InferError> {
        let (bound, each) = (self.bound.load(Relaxed), self.each_ns.load(Relaxed));
        if bound == UNBOUNDED && each == 0 {
            return Ok(()); // nearly always
        }
        let model = model.as_str();
        let few = own <= (bound / CALLER_SHARE_DIVISOR).max(1) as usize && in_flight < bound.saturating_mul(2);
        if in_flight >= bound && !few {
            self.refuse();
            let message = format!(
                "model {model:?} gets more requests than it answers and takes {bound} at once, so that none waits for long; try again"
            );
            return Err(InferError::shed(Shed::Overloaded, message, RETRY_OVERLOADED));
        }
        let wait = Duration::from_nanos(each.saturating_mul(u64::from(in_flight)));
        if wait > timeout {
            self.refuse();
            let message = format!(
                "model {model:?} has {in_flight} requests before this one, which would wait for about {} ms and has {} ms; try again",
                wait.as_millis(),
                timeout.as_millis()
            );
            return Err(InferError::shed(Shed::Overloaded, message, RETRY_OVERLOADED));
        }
        Ok(())
    }

    /// The most requests in flight, where there is such a bound.
    pub(crate) fn bound(&self) -> Option<u32> {
        Some(self.bound.load(Relaxed)).filter(|bound| *bound != UNBOUNDED)
    }

    /// Counts a request that the model's queue had no place for.
    pub(crate) fn refuse(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// Counts a request that was answered after `took`, its wait in the model's queue included; `in_flight` are left, this one included.
    pub(crate) fn ran(&self, now: u64, took: Duration, in_flight: u32, max_wait: Option<Duration>) {
        self.runs.fetch_add(1, Relaxed);
        self.run_ns.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        if in_flight <= 1 && !self.paused.load(Relaxed) {
            self.paused.store(true, Relaxed);
        }
        let closes = self.closes.load(Relaxed);
        if now >= closes
            && self.closes.compare_exchange(closes, now.saturating_add(MIN_WINDOW_NANOS), Relaxed, Relaxed).is_ok()
        {
            self.close(now, in_flight, max_wait);
        }
    }

    fn close(&self, now: u64, in_flight: u32, max_wait: Option<Duration>) {
        let began = self.began.load(Relaxed);
        let took = now.saturating_sub(began);
        if self.runs.load(Relaxed) < MIN_WINDOW_RUNS && took < MAX_WINDOW_NANOS {
            return;
        }
        self.began.store(now, Relaxed);
        let (runs, ns) = (self.runs.swap(0, Relaxed), self.run_ns.swap(0, Relaxed));
        let refused = self.refused.swap(0, Relaxed);
        let (paused, mut brain) =
            (self.paused.swap(false, Relaxed), self.brain.lock().unwrap_or_else(PoisonError::into_inner));
        // One with a long pause says nothing of how fast the model is, and whatever was before it is over.
        if runs == 0 || paused && took > MAX_WINDOW_NANOS {
            brain.rest();
            self.bound.store(UNBOUNDED, Relaxed);
            self.each_ns.store(0, Relaxed);
            return;
        }
        let window = Window {
            took: Duration::from_nanos(took),
            runs,
            mean: Duration::from_nanos(ns / runs),
            refused,
            in_flight,
        };
        let decision = brain.on(&window, max_wait);
        self.bound.store(decision.bound.unwrap_or(UNBOUNDED), Relaxed);
        let each = decision.each.map_or(0, |each| u64::try_from(each.as_nanos()).unwrap_or(u64::MAX));
        self.each_ns.store(each, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: u64 = 1_000_000;
    const SOON: Duration = Duration::from_millis(100);

    fn refused(pressure: &Pressure, in_flight: u32, own: usize, timeout: Duration) -> bool {
        let model = DeploymentName::new("iris").expect("a name");
        pressure.check(&model, in_flight, own, timeout).is_err_and(|error| error.reason() == "overloaded")
    }

    /// A second in which a run takes two milliseconds, then one in which each request waits for 200 others.
    fn stormed() -> (Pressure, u64) {
        let (pressure, mut now) = (Pressure::default(), 0);
        for at in 0..1_000_u64 {
            now = (at + 1) * 2 * MILLI;
            let storm = at >= 500;
            let (took, in_flight) = if storm { (400, 200) } else { (2, 2) };
            if storm {
                pressure.refuse();
            }
            pressure.ran(now, Duration::from_millis(took), in_flight, None);
        }
        (pressure, now)
    }

    #[test]
    fn a_queue_that_has_filled_up_is_kept_short_for_those_who_have_much_in_it() {
        let (pressure, _) = stormed();
        let bound = pressure.bound().expect("it sheds");
        assert!(bound <= 8, "{bound}");
        assert!(refused(&pressure, bound, bound as usize, Duration::from_secs(30)));
        assert!(!refused(&pressure, bound - 1, 0, Duration::from_secs(30)));
        assert!(!refused(&pressure, bound, 1, Duration::from_secs(30)), "another principal");
        assert!(refused(&pressure, 2 * bound, 1, Duration::from_secs(30)));
    }

    #[test]
    fn who_would_wait_longer_than_his_deadline_is_refused() {
        let (pressure, _) = stormed();
        pressure.bound.store(UNBOUNDED, Relaxed);
        assert!(refused(&pressure, 200, 1, SOON) && !refused(&pressure, 20, 1, SOON));
        assert!(!refused(&Pressure::default(), 200, 1, SOON), "nothing is known of it");
    }

    #[test]
    fn a_pause_ends_it() {
        let (pressure, now) = stormed();
        pressure.ran(now + MILLI, Duration::from_millis(2), 1, None);
        pressure.ran(now + 3_000 * MILLI, Duration::from_millis(2), 1, None);
        assert_eq!(pressure.bound(), None);
        assert!(!refused(&pressure, 200, 200, SOON));
    }
}
