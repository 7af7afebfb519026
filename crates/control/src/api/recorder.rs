//! Sampling for the history: every 10 s, this node's gateway, and, while it leads, the workers.
//!
//! Each node has the history of its own gateway, and whoever leads asks all of them. That of the workers is in the process that
//! led: a new leader begins anew.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use berth_spec::{Time, WorkerId};
use berth_wire::api::ModelTop;
use serde::{Deserialize, Serialize};

use super::{
    error::ApiError,
    history::{self, History, ModelFigures, Range, WorkerFigures},
    query::Query,
    top::{Sampler, TopSource},
};
use crate::handle::{WorkerState, WorkerView};

/// Interval between samples: a point of the fine ring.
pub(super) const SAMPLE_INTERVAL: Duration = Duration::from_secs(10);

/// Period of the rates of a sample: the interval, and room for a late one.
const OVER: Duration = Duration::from_secs(14);

/// Models in a sample that may get a history of their own. The total is that of all.
const MODELS: usize = 1_000;

/// Samples and keeps.
pub(super) struct Recorder {
    sampler: Sampler,
    history: Mutex<History>,
}

/// Points of one node's gateway, for the node that is asked.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct GatewayHistory {
    /// Each point's figures; `None`: not known.
    points: Vec<[Option<f32>; 5]>,
}

impl Recorder {
    pub(super) fn new(source: TopSource) -> Self {
        Self { sampler: Sampler::new(source, OVER), history: Mutex::default() }
    }

    /// Takes a sample; `workers` is empty where this node does not lead.
    pub(super) fn sample(&self, now: Time, workers: &[WorkerView]) {
        let (total, top) = self.sampler.look_at_all(now, MODELS);
        let total = figures(&total);
        let (_, models) = super::top::together([top]);
        let models: BTreeMap<String, ModelFigures> =
            models.iter().map(|(name, top)| (name.clone(), figures(top))).collect();
        let reporting = workers.iter().filter(|worker| worker.state != WorkerState::Lost);
        let workers: BTreeMap<WorkerId, WorkerFigures> =
            reporting.map(|worker| (worker.info.id.clone(), worker_figures(worker))).collect();
        let tick = history::tick(now);
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.models(tick, total, &models);
        history.workers(tick, &workers);
    }

    /// Points of this node's gateway: of one model, or of all together.
    pub(super) fn of_model(&self, deployment: Option<&str>, range: Range, now: Time) -> Vec<ModelFigures> {
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.of_model(deployment, range, history::tick(now))
    }

    pub(super) fn of_worker(&self, worker: &WorkerId, range: Range, now: Time) -> Vec<WorkerFigures> {
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.of_worker(worker, range, history::tick(now))
    }

    /// Answers another node: `range`, and `deployment` unless all are asked for.
    pub(super) fn answer(&self, query: Option<&str>, now: Time) -> Response {
        let asked = Query::parse(query, &["deployment", "range"]).and_then(|query| {
            let range = query.text("range").map_or(Ok(Range::default()), range)?;
            Ok((query.text("deployment").map(str::to_owned), range))
        });
        match asked {
            Ok((deployment, range)) => {
                let points = self.of_model(deployment.as_deref(), range, now);
                Json(GatewayHistory { points: points.into_iter().map(known).collect() }).into_response()
            }
            Err(error) => error.into_response(),
        }
    }
}

impl GatewayHistory {
    pub(super) fn points(self) -> Vec<ModelFigures> {
        self.points.into_iter().map(|point| point.map(|value| value.unwrap_or(f32::NAN))).collect()
    }
}

/// JSON has no NaN: what is not known is absent.
pub(super) fn known<const N: usize>(point: [f32; N]) -> [Option<f32>; N] {
    point.map(|value| (!value.is_nan()).then_some(value))
}

/// The range that is named.
pub(super) fn range(text: &str) -> Result<Range, ApiError> {
    let found = Range::NAMES.iter().find(|(name, _)| *name == text).map(|(_, range)| *range);
    found.ok_or_else(|| {
        ApiError::invalid("range", format!("the query parameter range is {text:?}"), "write hour or day")
    })
}

fn figures(top: &ModelTop) -> ModelFigures {
    let latency =
        |pick: fn(&berth_wire::api::LatencyMs) -> f64| top.latency.as_ref().map_or(f32::NAN, |of| pick(of) as f32);
    [
        top.requests_per_second as f32,
        top.failures_per_second as f32,
        top.misses_per_second as f32,
        latency(|of| of.p50),
        latency(|of| of.p99),
    ]
}

fn worker_figures(worker: &WorkerView) -> WorkerFigures {
    let load = &worker.load;
    // Before the first report nothing is known of the machine.
    let cpu = if load.at.0 > 0 { load.cpu_percent[0] } else { f32::NAN };
    [worker.claimed.0 as f32, cpu, worker.ready as f32, load.requests_per_minute as f32]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::api::top::ModelCounters;

    #[test]
    fn samples_become_points_and_travel_between_nodes() {
        let asked = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let counter = Arc::clone(&asked);
        let source: TopSource = Arc::new(move |each| {
            let requests = counter.fetch_add(100, std::sync::atomic::Ordering::Relaxed);
            each(ModelCounters { deployment: "iris".into(), requests, ..ModelCounters::default() });
        });
        let recorder = Recorder::new(source);
        let at = |seconds: u64| Time(1_000_000_000_000 + seconds * 1_000_000_000);
        for seconds in [0, 10, 21, 30] {
            recorder.sample(at(seconds), &[]);
        }
        let points = recorder.of_model(None, Range::Hour, at(30));
        let rates: Vec<f32> = points.iter().map(|point| point[0]).collect();
        assert_eq!((rates.len(), rates[0], rates[1]), (4, 0.0, 10.0), "{rates:?}");
        assert!(rates[2] > 9.0 && rates[2] < 9.2, "eleven seconds: {rates:?}");
        let json = serde_json::to_string(&GatewayHistory { points: points.iter().copied().map(known).collect() });
        let back: GatewayHistory = serde_json::from_str(&json.expect("it is JSON")).expect("it is read");
        assert_eq!(back.points().iter().map(|point| point[0]).collect::<Vec<_>>(), rates);
        // Its first sample has no rate yet, so that it has a point less.
        assert_eq!(recorder.of_model(Some("iris"), Range::Hour, at(30)).len(), 3);
        assert!(recorder.of_model(Some("nobody"), Range::Hour, at(30)).is_empty());
    }
}
