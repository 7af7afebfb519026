//! Rates and latencies, for `berth top`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Kind, Memory, Timestamp};

/// Activity of all models at one moment, and its rates over a window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `Top`.
    pub kind: String,
    /// Time of the sample.
    pub at: Timestamp,
    /// Period of rates and latencies in milliseconds; 0 for the first sample, which has no rates.
    pub window_ms: u64,
    /// Number of gateways included.
    pub gateways: u32,
    /// Nodes whose gateways did not answer in time: what they did is missing in the figures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// Memory of all workers together.
    pub memory: Memory,
    /// Models that were used since the start or hold memory, the busiest first.
    pub models: Vec<ModelTop>,
}

impl Kind for TopView {
    const KIND: &'static str = "Top";
}

/// Activity of one model, summed over all gateways.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelTop {
    /// Name of the deployment.
    pub deployment: String,
    /// The deployment's phase in one word.
    pub phase: String,
    /// Number of ready replicas.
    pub ready: u32,
    /// Bytes of memory of its replicas.
    pub memory: u64,
    /// Requests in flight or parked.
    pub in_flight: u64,
    /// Requests since the start.
    pub requests: u64,
    /// Failed requests since the start.
    pub failures: u64,
    /// Requests that found nothing ready, since the start.
    pub misses: u64,
    /// Requests per second, averaged over the window.
    pub requests_per_second: f64,
    /// Failures per second, averaged over the window.
    pub failures_per_second: f64,
    /// Misses per second, averaged over the window.
    pub misses_per_second: f64,
    /// Latency of requests in the window; absent when there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<LatencyMs>,
}

/// Latency in milliseconds, as exact as the histogram's buckets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct LatencyMs {
    /// Half of the requests were faster.
    pub p50: f64,
    /// Nine of ten were faster.
    pub p90: f64,
    /// Ninety-nine of a hundred were faster.
    pub p99: f64,
}
