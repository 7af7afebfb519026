//! Decides on the bound of a model from what was seen of it in one window.

use std::time::Duration;

/// Requests that are let in at least: enough for the cores of a small machine to be busy while answers are written.
const MIN_IN_FLIGHT: u32 = 4;

/// A model is busy all the time if requests take this many times as long as they do when it is not.
const BUSY_FACTOR: f64 = 2.0;

/// The share of its highest rate that a model must reach; below it the bound is too small.
const MIN_PEAK_SHARE: f64 = 0.9;

/// The most that a bound changes in one window: a wrong measurement costs at most a third of the rate, and a bound
/// that is ten times wrong is right after six windows.
const MAX_STEP: f64 = 1.5;

/// The part by which what is thought normal follows what is seen, where that is slower: it doubles in some seventy windows, and a
/// queue fills up in less.
const NORMAL_GAIN: f64 = 0.01;

/// The part of the highest rate that is forgotten in each window: half of it in some 35. Longer than rates swing by
/// chance, and a model that has become slower is soon judged by its new rate.
const PEAK_DECAY: f64 = 0.02;

/// The requests of one model that ended in a window.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    pub(super) took: Duration,
    /// Requests that were answered.
    pub(super) runs: u64,
    /// The mean time that they took, their wait in the model's queue included.
    pub(super) mean: Duration,
    /// Requests that were refused because of the bound, or because the queue was full.
    pub(super) refused: u64,
    /// Requests that were under way when it ended.
    pub(super) in_flight: u32,
}

/// The bounds until the next window.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Decision {
    /// The most requests in flight.
    pub(super) bound: Option<u32>,
    /// Time for each request, where the model is busy all the time.
    pub(super) each: Option<Duration>,
}

#[derive(Debug, Clone, Copy, Default)]
enum State {
    #[default]
    Calm,
    Shedding {
        bound: f64,
        /// The highest rate of late, in requests per second.
        peak: f64,
    },
}

/// The decision on one model's bound, with what it remembers of earlier windows.
#[derive(Debug, Default)]
pub(super) struct Brain {
    state: State,
    /// The mean time of a request, in seconds, when the model is not busy all the time, as far as that was seen.
    normal: Option<f64>,
}

impl Brain {
    /// Takes in one window. `max_wait` is the longest wait that the model's manifest allows.
    pub(super) fn on(&mut self, window: &Window, max_wait: Option<Duration>) -> Decision {
        let mean = window.mean.as_secs_f64();
        let rate = window.runs as f64 / window.took.as_secs_f64().max(1e-9);
        let normal = self.learn(mean);
        let busy = mean > BUSY_FACTOR * normal;
        let too_long = max_wait.is_some_and(|most| mean - normal > most.as_secs_f64());
        // The time that requests take at most: as long again as without a storm, unless somebody says how long.
        let most = normal + max_wait.map_or(normal, |most| most.as_secs_f64());
        self.state = match self.state {
            State::Calm if too_long || (window.refused > 0 && busy) => {
                State::Shedding { bound: (rate * most).max(f64::from(MIN_IN_FLIGHT)), peak: rate }
            }
            State::Calm => State::Calm,
            State::Shedding { .. } if window.refused == 0 => State::Calm,
            State::Shedding { bound, peak } => {
                let peak = (peak * (1.0 - PEAK_DECAY)).max(rate);
                let wanted = if rate < MIN_PEAK_SHARE * peak { bound * MAX_STEP } else { rate * most };
                let next = wanted.clamp(bound / MAX_STEP, bound * MAX_STEP).max(f64::from(MIN_IN_FLIGHT));
                State::Shedding { bound: next, peak }
            }
        };
        let bound = match self.state {
            State::Calm => None,
            State::Shedding { bound, .. } => Some(bound.ceil().min(f64::from(u32::MAX - 1)) as u32),
        };
        let each = (busy && window.in_flight > MIN_IN_FLIGHT).then(|| Duration::from_secs_f64(1.0 / rate.max(1e-3)));
        Decision { bound, each }
    }

    /// Ends a storm: there was a pause.
    pub(super) fn rest(&mut self) {
        self.state = State::Calm;
    }

    /// The normal time of a request: the least that was seen, which follows slowly where a model has become slower. Not in a storm:
    /// there the bound makes the times, and must not follow them.
    fn learn(&mut self, mean: f64) -> f64 {
        let before = self.normal.unwrap_or(mean);
        let calm = matches!(self.state, State::Calm);
        let normal = match () {
            () if mean < before => mean,
            () if calm => before + (mean - before).min(before) * NORMAL_GAIN,
            () => before,
        };
        self.normal = Some(normal);
        normal
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// A model that answers one request after the other, each in `service`, behind a queue, in steps of a tenth of a millisecond.
    struct Model {
        service: f64,
        servers: usize,
        queue: u32,
        brain: Brain,
        bound: Option<u32>,
        waiting: VecDeque<f64>,
        running: Vec<(f64, f64)>,
        now: f64,
        window: (f64, u64, f64, u64),
        took: Vec<(f64, f64)>,
        refused: Vec<f64>,
    }

    impl Model {
        fn new(service: f64, servers: usize) -> Self {
            Self {
                service,
                servers,
                queue: 256,
                brain: Brain::default(),
                bound: None,
                waiting: VecDeque::new(),
                running: Vec::new(),
                now: 0.0,
                window: (0.0, 0, 0.0, 0),
                took: Vec::new(),
                refused: Vec::new(),
            }
        }

        fn in_flight(&self) -> u32 {
            (self.waiting.len() + self.running.len()) as u32
        }

        fn arrives(&mut self) -> bool {
            if self.in_flight() >= self.bound.unwrap_or(self.queue) {
                self.window.3 += 1;
                self.refused.push(self.now);
                return false;
            }
            self.waiting.push_back(self.now);
            true
        }

        /// Time goes on; how many requests ended.
        fn step(&mut self, max_wait: Option<Duration>) -> usize {
            self.now += 1e-4;
            while self.running.len() < self.servers
                && let Some(came) = self.waiting.pop_front()
            {
                self.running.push((came, self.now + self.service));
            }
            let (ended, running): (Vec<_>, Vec<_>) = self.running.iter().partition(|(_, ends)| *ends <= self.now);
            self.running = running;
            for (came, _) in &ended {
                self.took.push((self.now, self.now - came));
                self.window.1 += 1;
                self.window.2 += self.now - came;
            }
            let (began, runs, sum, refused) = self.window;
            if runs >= 16 && self.now - began >= 0.1 {
                let window = Window {
                    took: Duration::from_secs_f64(self.now - began),
                    runs,
                    mean: Duration::from_secs_f64(sum / runs as f64),
                    refused,
                    in_flight: self.in_flight(),
                };
                self.bound = self.brain.on(&window, max_wait).bound;
                self.window = (self.now, 0, 0.0, 0);
            }
            ended.len()
        }

        /// Requests come at this rate, evenly.
        fn open_loop(&mut self, per_second: f64, seconds: f64, max_wait: Option<Duration>) {
            let (until, mut due) = (self.now + seconds, 0.0);
            while self.now < until {
                due += per_second * 1e-4;
                while due >= 1.0 {
                    due -= 1.0;
                    self.arrives();
                }
                self.step(max_wait);
            }
        }

        /// Time that 99 of 100 requests took at most, of those that ended since then; and how many ended per second.
        fn since(&self, then: f64) -> (f64, f64) {
            let mut took: Vec<f64> = self.took.iter().filter(|(at, _)| *at >= then).map(|(_, took)| *took).collect();
            took.sort_by(f64::total_cmp);
            (took[took.len() * 99 / 100], took.len() as f64 / (self.now - then))
        }
    }

    #[test]
    fn at_twice_the_capacity_the_wait_stays_short_and_the_model_stays_busy() {
        for (service, servers) in [(0.002, 1), (0.005, 2), (0.02, 2), (0.008, 4)] {
            let mut model = Model::new(service, servers);
            let capacity = servers as f64 / service;
            model.open_loop(0.8 * capacity, 3.0, None);
            assert!(model.refused.is_empty());
            model.open_loop(2.0 * capacity, 12.0, None);
            // What filled the queue before has been answered by then.
            let (p99, rate) = model.since(model.now - 5.0);
            assert!(p99 <= 5.0 * service, "{service} {servers}: {p99}");
            assert!(rate >= 0.9 * capacity, "{service} {servers}: {rate} of {capacity}");
        }
    }

    #[test]
    fn a_wait_that_was_declared_is_held() {
        let (mut model, most) = (Model::new(0.002, 1), Duration::from_millis(20));
        model.open_loop(400.0, 2.0, Some(most));
        model.open_loop(600.0, 5.0, Some(most));
        let (p99, rate) = model.since(model.now - 3.0);
        assert!(p99 <= 0.030 && rate > 450.0, "{p99} {rate}");
        assert!(!model.refused.is_empty());
    }

    #[test]
    fn callers_that_wait_for_their_answers_are_not_refused() {
        for callers in [1, 16, 64, 250] {
            let mut model = Model::new(0.002, 2);
            for _ in 0..callers {
                assert!(model.arrives());
            }
            for _ in 0..50_000 {
                for _ in 0..model.step(None) {
                    assert!(model.arrives(), "{callers}");
                }
            }
        }
    }

    #[test]
    fn when_the_storm_is_over_the_whole_queue_is_there_again() {
        let mut model = Model::new(0.002, 2);
        model.open_loop(800.0, 2.0, None);
        model.open_loop(2_000.0, 5.0, None);
        assert!(model.bound.is_some());
        model.open_loop(800.0, 2.0, None);
        assert_eq!(model.bound, None);
        let refused = model.refused.len();
        (0..200).for_each(|_| assert!(model.arrives(), "a burst"));
        model.open_loop(800.0, 2.0, None);
        assert_eq!(model.refused.len(), refused);
    }

    #[test]
    fn a_model_that_became_slower_is_not_throttled_for_ever() {
        let mut model = Model::new(0.001, 2);
        model.open_loop(1_000.0, 2.0, None);
        model.service = 0.004;
        model.open_loop(1_000.0, 20.0, None);
        let (_, rate) = model.since(model.now - 5.0);
        assert!(rate >= 0.9 * 500.0, "{rate}");
    }
}
