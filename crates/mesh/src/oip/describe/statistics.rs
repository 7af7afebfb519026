//! Statistics of replicas, as the statistics extension defines them.

use std::collections::BTreeMap;

use berth_wire::oip;
use serde::Serialize;

use crate::local::{Statistics, Sum};

/// The body of `GET /v2/models[/{m}[/versions/{v}]]/stats`.
#[derive(Debug, Clone, Serialize)]
pub struct ModelStatistics<'a> {
    /// The statistics of each version of each model that was asked for.
    pub model_stats: Vec<ModelStats<'a>>,
}

impl ModelStatistics<'_> {
    /// The same as the message of `ModelStatistics` over gRPC.
    #[must_use]
    pub fn to_proto(&self) -> oip::ModelStatisticsResponse {
        oip::ModelStatisticsResponse { model_stats: self.model_stats.iter().map(ModelStats::to_proto).collect() }
    }
}

/// Counts and times of one version of a model, in the fields of Triton's statistics extension.
#[derive(Debug, Clone, Serialize)]
pub struct ModelStats<'a> {
    name: &'a str,
    version: &'a str,
    last_inference: u64,
    inference_count: u64,
    execution_count: u64,
    inference_stats: Inference,
    /// For models that answer more than once; there are none.
    response_stats: BTreeMap<String, ()>,
    batch_stats: Vec<Batch>,
    memory_usage: [Memory; 1],
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Duration {
    count: u64,
    ns: u64,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Inference {
    success: Duration,
    fail: Duration,
    queue: Duration,
    compute_input: Duration,
    compute_infer: Duration,
    compute_output: Duration,
    cache_hit: Duration,
    cache_miss: Duration,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Batch {
    batch_size: u64,
    compute_input: Duration,
    compute_infer: Duration,
    compute_output: Duration,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Memory {
    r#type: &'static str,
    id: i64,
    byte_size: u64,
}

impl<'a> ModelStats<'a> {
    /// The statistics of one replica under the names that clients use.
    #[must_use]
    pub fn new(name: &'a str, version: &'a str, statistics: &Statistics) -> Self {
        let none = Duration { count: 0, ns: 0 };
        Self {
            name,
            version,
            last_inference: statistics.last_inference_ms,
            inference_count: statistics.inference_count,
            execution_count: statistics.execution_count,
            inference_stats: Inference {
                success: statistics.success.into(),
                fail: statistics.fail.into(),
                queue: statistics.queue.into(),
                compute_input: statistics.compute_input.into(),
                compute_infer: statistics.compute_infer.into(),
                compute_output: statistics.compute_output.into(),
                cache_hit: none,
                cache_miss: none,
            },
            response_stats: BTreeMap::new(),
            batch_stats: statistics
                .batches
                .iter()
                .map(|&(batch_size, input, infer, output)| Batch {
                    batch_size,
                    compute_input: input.into(),
                    compute_infer: infer.into(),
                    compute_output: output.into(),
                })
                .collect(),
            memory_usage: [Memory { r#type: "CPU", id: 0, byte_size: statistics.memory }],
        }
    }

    fn to_proto(&self) -> oip::ModelStatistics {
        let inference = &self.inference_stats;
        oip::ModelStatistics {
            name: self.name.to_owned(),
            version: self.version.to_owned(),
            last_inference: self.last_inference,
            inference_count: self.inference_count,
            execution_count: self.execution_count,
            inference_stats: Some(oip::InferStatistics {
                success: inference.success.to_proto(),
                fail: inference.fail.to_proto(),
                queue: inference.queue.to_proto(),
                compute_input: inference.compute_input.to_proto(),
                compute_infer: inference.compute_infer.to_proto(),
                compute_output: inference.compute_output.to_proto(),
                cache_hit: inference.cache_hit.to_proto(),
                cache_miss: inference.cache_miss.to_proto(),
            }),
            batch_stats: self.batch_stats.iter().copied().map(Batch::to_proto).collect(),
            memory_usage: self
                .memory_usage
                .iter()
                .map(|usage| oip::MemoryUsage {
                    r#type: usage.r#type.to_owned(),
                    id: usage.id,
                    byte_size: usage.byte_size,
                })
                .collect(),
            response_stats: Default::default(),
        }
    }
}

impl From<Sum> for Duration {
    fn from(sum: Sum) -> Self {
        Self { count: sum.count, ns: sum.ns }
    }
}

impl Duration {
    fn to_proto(self) -> Option<oip::StatisticDuration> {
        Some(oip::StatisticDuration { count: self.count, ns: self.ns })
    }
}

impl Batch {
    fn to_proto(self) -> oip::InferBatchStatistics {
        oip::InferBatchStatistics {
            batch_size: self.batch_size,
            compute_input: self.compute_input.to_proto(),
            compute_infer: self.compute_infer.to_proto(),
            compute_output: self.compute_output.to_proto(),
        }
    }
}
