//! The statistics of replicas: those of this process, and for one deployment those of other nodes with them.
//!
//! The statistics of one model are summed over its copies, one row per version. An endpoint that does not answer in time is
//! left out: they are told, not promised. Those of all models are of this process alone: asking every node for every
//! model would cost more than anybody wants to know.

use std::{sync::Arc, time::Duration};

use berth_spec::{InferError, NameKey};
use berth_wire::access::{Action, Asker, Resource};
use berth_wire::oip::{self, ModelStatisticsRequest, ModelStatisticsResponse};
use futures::future::join_all;
use http::HeaderMap;
use tokio::time::Instant;

use crate::{
    body::upload::Upload,
    deployment::{DeploymentState, LoadedReplica},
    endpoint::{Endpoint, Endpoints},
    forward::{
        head::Head,
        send::{Wait, send},
    },
    local::{Statistics, Sum},
    oip::grpc::{frame::framed, methods::STATISTICS},
    parking::refusal,
    resolved::Target,
    stack::Stack,
};

/// The longest that an endpoint may take to answer: statistics are told, not promised.
const ENDPOINT_TIMEOUT: Duration = Duration::from_secs(1);

/// Of every replica of this process whose deployment is in a namespace, as far as the sender of a request may know of it.
pub(crate) fn here(stack: &Stack, namespace: &str, asker: &Asker) -> Vec<LoadedReplica> {
    let entries = stack.routes.all_in(namespace);
    let known = entries.iter().filter(|entry| asker.may(Action::ReadModels, Resource::Model(entry.name.key())).is_ok());
    known.flat_map(|entry| entry.loaded(None)).collect()
}

/// Of the deployments behind a name, or of one version of them: by alias those of all its targets.
pub(crate) async fn of(
    stack: &Stack,
    model: NameKey<'_>,
    version: Option<&str>,
    headers: &HeaderMap,
) -> Result<Vec<LoadedReplica>, InferError> {
    let (mut loaded, mut refused, mut known) = (Vec::new(), None, false);
    for entry in &stack.behind(model, version)? {
        match entry.knows(version) {
            Ok(()) => {
                known = true;
                loaded.extend(everywhere(stack, entry, version, headers).await);
            }
            Err(no) => refused = refused.or(Some(refusal(entry, version, no))),
        }
    }
    match refused.filter(|_| !known) {
        Some(refused) => Err(refused),
        None => Ok(loaded),
    }
}

/// Of all copies of one deployment, or of one version of it.
async fn everywhere(
    stack: &Stack,
    entry: &Arc<DeploymentState>,
    version: Option<&str>,
    headers: &HeaderMap,
) -> Vec<LoadedReplica> {
    let route = Arc::clone(&entry.route());
    let mut all = Vec::new();
    for target in route.targets.iter().filter(|target| version.is_none_or(|version| &*target.version == version)) {
        let own = target.replica.as_ref().map(|replica| replica.model().statistics());
        let others = elsewhere(stack, entry, target, headers).await;
        if let Some(statistics) = own.into_iter().chain(others).reduce(Statistics::and) {
            all.push(LoadedReplica { name: entry.name.clone(), version: Arc::clone(&target.version), statistics });
        }
    }
    all
}

async fn elsewhere(stack: &Stack, entry: &DeploymentState, target: &Target, headers: &HeaderMap) -> Vec<Statistics> {
    let Some(endpoints) = target.endpoints.as_deref() else { return Vec::new() };
    let head = Head::grpc(STATISTICS, headers, stack.propagate());
    let asked = ModelStatisticsRequest { name: entry.name.to_string(), version: target.version.to_string() };
    let asked = framed(&asked);
    let ask = endpoints.list.iter().map(|endpoint| {
        let upload = Upload::whole(asked.clone(), stack.bounds());
        of_place(endpoints, endpoint, &head, upload)
    });
    join_all(ask).await.into_iter().flatten().collect()
}

async fn of_place(
    endpoints: &Endpoints,
    endpoint: &Arc<Endpoint>,
    head: &Head,
    mut upload: Upload,
) -> Option<Statistics> {
    let (known, _) = endpoint.look(endpoints.now())?;
    let deadline = Instant::now() + ENDPOINT_TIMEOUT;
    let request = head.request(&endpoints.revision, &endpoints.version, deadline, upload.again()?);
    match send(endpoint, &known, request, Wait::until(deadline), || None).await {
        Ok((held, _)) => {
            let told: ModelStatisticsResponse = held.message().await.ok()?;
            told.model_stats.first().map(Statistics::from)
        }
        Err(_) => None,
    }
}

impl Sum {
    fn and(self, other: Self) -> Self {
        Self { count: self.count + other.count, ns: self.ns + other.ns }
    }
}

impl Statistics {
    /// Both together.
    fn and(mut self, other: Self) -> Self {
        for (size, input, infer, output) in other.batches {
            match self.batches.iter_mut().find(|batch| batch.0 == size) {
                Some(batch) => *batch = (size, batch.1.and(input), batch.2.and(infer), batch.3.and(output)),
                None => self.batches.push((size, input, infer, output)),
            }
        }
        self.batches.sort_unstable_by_key(|batch| batch.0);
        Self {
            last_inference_ms: self.last_inference_ms.max(other.last_inference_ms),
            inference_count: self.inference_count + other.inference_count,
            execution_count: self.execution_count + other.execution_count,
            success: self.success.and(other.success),
            fail: self.fail.and(other.fail),
            queue: self.queue.and(other.queue),
            compute_input: self.compute_input.and(other.compute_input),
            compute_infer: self.compute_infer.and(other.compute_infer),
            compute_output: self.compute_output.and(other.compute_output),
            batches: self.batches,
            memory: self.memory + other.memory,
        }
    }
}

impl From<&oip::ModelStatistics> for Statistics {
    fn from(told: &oip::ModelStatistics) -> Self {
        let sum = |duration: &Option<oip::StatisticDuration>| {
            duration.as_ref().map_or(Sum::default(), |duration| Sum { count: duration.count, ns: duration.ns })
        };
        let inference = told.inference_stats.unwrap_or_default();
        let batch = |batch: &oip::InferBatchStatistics| {
            (batch.batch_size, sum(&batch.compute_input), sum(&batch.compute_infer), sum(&batch.compute_output))
        };
        Self {
            last_inference_ms: told.last_inference,
            inference_count: told.inference_count,
            execution_count: told.execution_count,
            success: sum(&inference.success),
            fail: sum(&inference.fail),
            queue: sum(&inference.queue),
            compute_input: sum(&inference.compute_input),
            compute_infer: sum(&inference.compute_infer),
            compute_output: sum(&inference.compute_output),
            batches: told.batch_stats.iter().map(batch).collect(),
            memory: told.memory_usage.iter().map(|usage| usage.byte_size).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oip::describe::{ModelStatistics, ModelStats};

    #[test]
    fn statistics_come_back_and_add_up() {
        let sum = |count| Sum { count, ns: 10 * count };
        let one = Statistics {
            last_inference_ms: 5,
            inference_count: 1,
            execution_count: 2,
            success: sum(3),
            fail: sum(4),
            queue: sum(5),
            compute_input: sum(6),
            compute_infer: sum(7),
            compute_output: sum(8),
            batches: vec![(2, sum(1), sum(2), sum(3))],
            memory: 9,
        };
        let told = ModelStatistics { model_stats: vec![ModelStats::new("iris", "1", &one)] }.to_proto();
        assert_eq!(Statistics::from(&told.model_stats[0]), one);
        let other =
            Statistics { batches: vec![(1, sum(1), sum(1), sum(1)), (2, sum(1), sum(1), sum(1))], ..one.clone() };
        let both = one.and(other);
        assert_eq!((both.inference_count, both.success, both.memory, both.last_inference_ms), (2, sum(6), 18, 5));
        assert_eq!(both.batches, vec![(1, sum(1), sum(1), sum(1)), (2, sum(2), sum(3), sum(4))]);
    }
}
