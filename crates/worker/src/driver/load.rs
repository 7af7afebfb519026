//! The worker's load, and the decision to report it.
//!
//! ```text
//! every 2 s: look ──▶ differs noticeably from what was told, or that was 30 s ago ──▶ tell
//!                └──▶ else keep it to yourself
//! ```
//! The thresholds are ModelMesh's where it has them: a capacity counts as changed at 2 %, a count at 10.

use std::{collections::VecDeque, time::Duration};

use berth_spec::{ByteSize, GpuLoad, Load, Time};
use tokio::time::{Instant, MissedTickBehavior};

use crate::{
    agent::Agent,
    capacity::{Capacity, Usage},
    gpu::Gpus,
};

/// The interval between looks at the load, and the shortest between reports: a thousand busy workers cost the
/// controller 500 reports a second, and placement rests on fresh figures.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(2);

/// The longest time without a report, so that `berth get nodes` shows that the worker lives.
const AT_LEAST_EVERY: Duration = Duration::from_secs(30);

/// The time over which requests are counted: `requests_per_minute` says so.
const MINUTE: Duration = Duration::from_secs(60);

/// The change of an average that is reported, in percent of all cores: above an idle machine's noise, below a core of
/// ten.
const CPU_STEP: f32 = 5.0;

/// Memory, as a share of what models may take.
const MEMORY_STEP: f64 = 0.02;

/// The share of the machine's memory above which it is short. Nearer to 1, the kernel may end a process before anybody has
/// seen the word; at 0.6, every machine that is put to use is called degraded.
const SHORT_ABOVE: f64 = 0.8;

/// The share below which it is not short any more. Nearer to [`SHORT_ABOVE`], a machine at the edge changes its word, and what
/// is written down of it, every few seconds; much lower, one that has recovered is called degraded for long.
const RECOVERED_BELOW: f64 = 0.75;

/// The change of a count that is reported: ModelMesh's.
const COUNT_STEP: u32 = 10;

/// The use of a GPU, in percent: it moves by tens with every request, and people read it to see whether it is idle.
const GPU_STEP: u32 = 25;

/// The memory of a GPU: less than any model takes there.
const GPU_MEMORY_STEP: ByteSize = ByteSize::mib(64);

/// Looks and remembers what was told.
pub(super) struct LoadWatch {
    timer: tokio::time::Interval,
    machine: Capacity,
    /// Memory that models may take.
    memory: ByteSize,
    before: (Instant, Usage),
    averages: Averages,
    /// Requests in all at each look of the last minute, the oldest first.
    requests: VecDeque<(Instant, u64)>,
    gpus: Gpus,
    told: Option<Load>,
}

/// Processor use, smoothed over one and five minutes as the kernel smooths its load.
#[derive(Debug, Default)]
struct Averages(Option<[f32; 2]>);

impl Averages {
    fn add(&mut self, percent: f32, over: Duration) -> [f32; 3] {
        let [one, five] = self.0.unwrap_or([percent; 2]);
        let towards = |average: f32, minutes: f32| {
            let keep = (-over.as_secs_f32() / (60.0 * minutes)).exp();
            average * keep + percent * (1.0 - keep)
        };
        let next = [towards(one, 1.0), towards(five, 5.0)];
        self.0 = Some(next);
        [percent, next[0], next[1]]
    }
}

impl LoadWatch {
    /// `memory`: what models may take.
    pub(super) fn new(memory: ByteSize, gpus: Gpus) -> Self {
        let mut timer = tokio::time::interval_at(Instant::now() + SAMPLE_INTERVAL, SAMPLE_INTERVAL);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            timer,
            machine: Capacity::probe(),
            memory,
            before: (Instant::now(), Usage::probe()),
            averages: Averages::default(),
            requests: VecDeque::new(),
            gpus,
            told: None,
        }
    }

    /// Waits until it is to be looked at.
    pub(super) async fn due(&mut self) {
        self.timer.tick().await;
    }

    /// Looks; gives what is worth telling. `requests`: answered in all since their models were loaded.
    pub(super) fn look(&mut self, agent: &Agent, requests: u64, now: Time) -> Option<Load> {
        let (at, usage) = (Instant::now(), Usage::probe());
        let over = at - self.before.0;
        let percent = usage.cpu_percent(&self.before.1, over, &self.machine);
        self.before = (at, usage);
        let load = Load {
            at: now,
            cpu_percent: self.averages.add(percent, over),
            memory_used: usage.memory,
            queue: u32::try_from(agent.queued()).unwrap_or(u32::MAX),
            requests_per_minute: self.per_minute(requests, at),
            degraded: is_short(usage.memory, self.machine.memory, self.told.as_ref().is_some_and(|told| told.degraded)),
            gpus: self.gpus.load().into(),
        };
        let news = self.told.as_ref().is_none_or(|told| noticeable(told, &load, self.memory));
        if news {
            self.told = Some(load.clone());
        }
        news.then_some(load)
    }

    fn per_minute(&mut self, requests: u64, at: Instant) -> u32 {
        // Models that were unloaded take their counts with them: what came before is not known any more.
        if self.requests.back().is_some_and(|(_, before)| *before > requests) {
            self.requests.clear();
        }
        while self.requests.front().is_some_and(|(then, _)| at - *then > MINUTE) {
            self.requests.pop_front();
        }
        self.requests.push_back((at, requests));
        let first = self.requests.front().map_or(requests, |(_, first)| *first);
        u32::try_from(requests - first).unwrap_or(u32::MAX)
    }
}

/// True if memory is short where there is `all` of it; `was`: the answer so far.
fn is_short(used: ByteSize, all: ByteSize, was: bool) -> bool {
    let limit = if was { RECOVERED_BELOW } else { SHORT_ABOVE };
    used.0 as f64 > limit * all.0 as f64
}

/// True if the difference may matter for placement.
fn noticeable(told: &Load, now: &Load, memory: ByteSize) -> bool {
    let [_, one, five] = told.cpu_percent;
    let [_, one_now, five_now] = now.cpu_percent;
    let many = |told: u32, now: u32| told.abs_diff(now) >= COUNT_STEP.max(told / 10);
    now.at.since(told.at) >= AT_LEAST_EVERY
        || told.degraded != now.degraded
        || (one - one_now).abs() >= CPU_STEP
        || (five - five_now).abs() >= CPU_STEP
        || told.memory_used.0.abs_diff(now.memory_used.0) as f64 >= MEMORY_STEP * memory.0 as f64
        || (told.queue == 0) != (now.queue == 0)
        || many(told.queue, now.queue)
        || many(told.requests_per_minute, now.requests_per_minute)
        || gpus_differ(&told.gpus, &now.gpus)
}

/// Tests whether a GPU's memory moved by a sixteenth of a GiB or its use by [`GPU_STEP`], or another one answers.
fn gpus_differ(told: &[GpuLoad], now: &[GpuLoad]) -> bool {
    told.len() != now.len()
        || told.iter().zip(now).any(|(told, now)| {
            told.id != now.id
                || told.memory_used.0.abs_diff(now.memory_used.0) >= GPU_MEMORY_STEP.0
                || told.utilization_percent.abs_diff(now.utilization_percent) >= GPU_STEP
        })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn what_hardly_differs_is_told_twice_a_minute() {
        let base = Load {
            at: Time(1_000_000_000_000),
            cpu_percent: [50.0, 40.0, 30.0],
            memory_used: ByteSize::gib(1),
            queue: 3,
            requests_per_minute: 1_000,
            degraded: false,
            gpus: Arc::default(),
        };
        let later = |seconds| base.at + Duration::from_secs(seconds);
        let memory = ByteSize::gib(10);
        let cases = [
            ("nothing", Load { at: later(2), ..base.clone() }, false),
            (
                "noise",
                Load { cpu_percent: [99.0, 42.0, 30.5], requests_per_minute: 1_050, queue: 9, ..base.clone() },
                false,
            ),
            ("half a minute", Load { at: later(30), ..base.clone() }, true),
            ("cores", Load { cpu_percent: [50.0, 45.5, 30.0], ..base.clone() }, true),
            ("memory", Load { memory_used: ByteSize(ByteSize::gib(1).0 + ByteSize::mib(210).0), ..base.clone() }, true),
            ("memory is short", Load { degraded: true, ..base.clone() }, true),
            ("the queue is empty", Load { queue: 0, ..base.clone() }, true),
            ("the queue is long", Load { queue: 13, ..base.clone() }, true),
            ("requests", Load { requests_per_minute: 1_100, ..base.clone() }, true),
        ];
        for (what, now, told) in cases {
            assert_eq!(noticeable(&base, &now, memory), told, "{what}");
        }
    }

    #[test]
    fn memory_is_short_above_four_fifths() {
        let short = |used, was| is_short(ByteSize(used), ByteSize(100), was);
        assert!(!short(80, false) && short(81, false));
        assert!(short(76, true) && !short(75, true), "it does not come and go at the edge");
    }

    #[test]
    fn averages_follow_slowly_and_begin_where_the_first_look_was() {
        let mut averages = Averages::default();
        assert_eq!(averages.add(80.0, SAMPLE_INTERVAL), [80.0, 80.0, 80.0]);
        let [now, one, five] = averages.add(0.0, MINUTE);
        assert!(now == 0.0 && (29.0..30.0).contains(&one) && (65.0..66.0).contains(&five), "{one} {five}");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_counted_over_a_minute() {
        let mut watch = LoadWatch::new(ByteSize::gib(1), Gpus::default());
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(watch.per_minute(100, at(0)), 0, "what came before it looked is not of this minute");
        assert_eq!(watch.per_minute(700, at(30)), 600);
        assert_eq!(watch.per_minute(900, at(80)), 200);
        assert_eq!(watch.per_minute(10, at(82)), 0, "a model has gone");
    }
}
