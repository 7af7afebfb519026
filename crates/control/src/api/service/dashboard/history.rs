//! The history that the dashboard draws: that of a worker from this process, that of models from all gateways.

use berth_spec::{DeploymentName, WorkerId};
use berth_wire::api::{API_VERSION, HistoryLine, HistoryView, Kind, Timestamp};

use super::Service;
use crate::{
    api::{
        error::ApiError,
        history::{self, Range},
        service::operate::nobody,
    },
    handle::WorkerView,
};

/// Names of the lines of a model, in the order of its figures.
const MODEL: [&str; 5] = ["requestsPerSecond", "failuresPerSecond", "missesPerSecond", "p50", "p99"];

/// Names of the lines of a worker.
const WORKER: [&str; 4] = ["memory", "cpuPercent", "ready", "requestsPerMinute"];

impl Service {
    /// History of a model over all gateways, or of all models together.
    pub(crate) async fn model_history(
        &self,
        deployment: Option<&DeploymentName>,
        range: Range,
    ) -> Result<HistoryView, ApiError> {
        let now = self.handle.now();
        let name = deployment.map(ToString::to_string);
        let (mut all, missing) = self.peer_queries.histories(&question(name.as_deref(), range)).await;
        all.push(self.recorder.of_model(name.as_deref(), range, now));
        let points = history::together(all);
        let missing = missing.iter().map(WorkerId::to_string).collect();
        Ok(self.drawn(name.unwrap_or_default(), range, lines(MODEL, &points), missing))
    }

    /// History of a worker, as far as this process led.
    pub(crate) async fn worker_history(&self, worker: &str, range: Range) -> Result<HistoryView, ApiError> {
        let found = match named(&self.recent_workers().await?, worker) {
            Some(found) => found,
            // It may have joined since.
            None => self.attached(worker).await?,
        };
        let points = self.recorder.of_worker(&found, range, self.handle.now());
        Ok(self.drawn(worker.to_owned(), range, lines(WORKER, &points), Vec::new()))
    }

    /// The id of a worker that the controller knows now.
    async fn attached(&self, worker: &str) -> Result<WorkerId, ApiError> {
        let workers = self.handle.workers().await?;
        let known = workers.iter().map(|worker| worker.info.id.as_str());
        named(&workers, worker).ok_or_else(|| nobody("worker", worker, known))
    }

    fn drawn(&self, of: String, range: Range, lines: Vec<HistoryLine>, missing: Vec<String>) -> HistoryView {
        let step = range.tier().step_ns;
        let now = self.handle.now().0;
        HistoryView {
            api_version: API_VERSION.to_owned(),
            kind: HistoryView::KIND.to_owned(),
            of,
            step_ms: step / 1_000_000,
            end: Timestamp(berth_spec::Time(now - now % step)),
            missing,
            lines,
        }
    }
}

/// The id of the worker of this name.
fn named(workers: &[WorkerView], name: &str) -> Option<WorkerId> {
    workers.iter().map(|worker| &worker.info.id).find(|id| id.as_str() == name).cloned()
}

/// The query that other gateways are asked.
fn question(deployment: Option<&str>, range: Range) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.append_pair("range", range.as_str());
    if let Some(name) = deployment {
        query.append_pair("deployment", name);
    }
    query.finish()
}

fn lines<const N: usize>(names: [&str; N], points: &[[f32; N]]) -> Vec<HistoryLine> {
    let line = |(at, name): (usize, &str)| HistoryLine {
        name: name.to_owned(),
        points: points.iter().map(|point| rounded(point[at])).collect(),
    };
    names.into_iter().enumerate().map(line).collect()
}

/// Three decimals: more cannot be seen and would double the answer. `None`: not known.
fn rounded(value: f32) -> Option<f64> {
    (!value.is_nan()).then(|| (f64::from(value) * 1_000.0).round() / 1_000.0)
}
