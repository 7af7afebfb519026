//! Figures of the last day, in fixed rings. Pure: who samples and when is `recorder`'s business.
//!
//! ```text
//! every 10 s ─▶ Track: fine, 360 points (an hour) ──mean of 12──▶ coarse, 720 points (a day)
//!                  one for all models, one per busy model, one per worker
//! ```
//! A point that nobody knows is NaN: before the start, and while a worker is lost.

mod busiest;
mod track;

use std::collections::BTreeMap;

use berth_spec::{Time, WorkerId};

pub(crate) use busiest::BusiestModels;
pub(crate) use track::{Range, Track};

/// Figures of a model, or of all: requests, failures and misses per second, then the 50th and 99th percentile in milliseconds.
pub(crate) type ModelFigures = [f32; 5];

/// Figures of a worker: bytes of memory for models, percent of the processors, ready replicas, requests per minute.
pub(crate) type WorkerFigures = [f32; 4];

/// Models with a history of their own. Enough for those that people look at: beyond them, models are asked too seldom for a
/// line.
pub(crate) const MODELS: usize = 64;

/// Workers with a history. Of a larger fleet, those that came first.
pub(crate) const WORKERS: usize = 256;

/// Points of a track: both tiers.
const POINTS: usize = track::FINE.points + track::COARSE.points;

/// Most bytes of all points: 5.7 MB (65 × 21,600 for models and their sum, 256 × 17,280 for workers). Rings grow as time goes
/// by, so that a day passes before a process takes so much.
pub(crate) const MOST_BYTES: usize =
    POINTS * ((MODELS + 1) * size_of::<ModelFigures>() + WORKERS * size_of::<WorkerFigures>());

const _: () = assert!(MOST_BYTES < 6_000_000, "the history takes less than is said of it in docs/dashboard.md");

/// Figures of the last day: of all models together, of the busiest ones, and of workers. At most [`MOST_BYTES`].
#[derive(Debug, Default)]
pub(crate) struct History {
    total: Track<5>,
    models: BusiestModels,
    workers: BTreeMap<WorkerId, Track<4>>,
}

/// Number of a sample: the time in steps of the fine tier, the same on all nodes.
pub(crate) fn tick(now: Time) -> u64 {
    now.0 / track::FINE.step_ns
}

impl History {
    /// Takes a sample of this node's gateway: the sum over all models, and each model that was asked for since the start.
    pub(crate) fn models(&mut self, tick: u64, total: ModelFigures, each: &BTreeMap<String, ModelFigures>) {
        self.total.push(tick, total);
        self.models.push(tick, each);
    }

    /// Takes a sample of all workers that report.
    pub(crate) fn workers(&mut self, tick: u64, each: &BTreeMap<WorkerId, WorkerFigures>) {
        for (id, figures) in each {
            if self.workers.len() < WORKERS || self.workers.contains_key(id) {
                self.workers.entry(id.clone()).or_default().push(tick, *figures);
            }
        }
        self.workers.retain(|_, track| !track.is_over(tick));
    }

    /// Points of one model, or of all together.
    pub(crate) fn of_model(&self, deployment: Option<&str>, range: Range, tick: u64) -> Vec<ModelFigures> {
        match deployment {
            None => self.total.points(range, tick),
            Some(name) => self.models.track(name).map(|track| track.points(range, tick)).unwrap_or_default(),
        }
    }

    /// The figures of a worker over a range up to the sample `tick`; empty if it has no history.
    pub(crate) fn of_worker(&self, worker: &WorkerId, range: Range, tick: u64) -> Vec<WorkerFigures> {
        self.workers.get(worker).map(|track| track.points(range, tick)).unwrap_or_default()
    }
}

/// Points of several gateways as one: rates are added, the median is weighted by requests, of the 99th percentile the
/// highest counts. Percentiles of several cannot be put together exactly.
pub(crate) fn together(mut all: Vec<Vec<ModelFigures>>) -> Vec<ModelFigures> {
    let longest = all.iter().map(Vec::len).max().unwrap_or(0);
    // The newest points are at the same time; older ones are missing where a node started later.
    for one in &mut all {
        let mut padded = vec![[f32::NAN; 5]; longest - one.len()];
        padded.append(one);
        *one = padded;
    }
    (0..longest).map(|at| all.iter().map(|one| one[at]).fold([f32::NAN; 5], both)).collect()
}

fn both(one: ModelFigures, other: ModelFigures) -> ModelFigures {
    if one[0].is_nan() {
        return other;
    }
    if other[0].is_nan() {
        return one;
    }
    let median = match (one[3].is_nan(), other[3].is_nan()) {
        (true, _) => other[3],
        (_, true) => one[3],
        _ if one[0] + other[0] > 0.0 => (one[3] * one[0] + other[3] * other[0]) / (one[0] + other[0]),
        _ => one[3].max(other[3]),
    };
    // `max` takes the number where one of them is none.
    [one[0] + other[0], one[1] + other[1], one[2] + other[2], median, one[4].max(other[4])]
}

#[cfg(test)]
mod tests;
