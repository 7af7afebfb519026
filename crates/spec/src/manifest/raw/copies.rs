//! How many replicas, where, and when there are more.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A number of replicas, or a range.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum RawReplicas {
    /// Exactly as many.
    Exactly(#[schemars(range(max = 1000))] u32),
    /// As many as are useful, within bounds.
    Between(ReplicaRange),
}

/// Bounds of the number of replicas.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ReplicaRange {
    /// As many are kept whatever happens. `0`: on demand. With `regions`: their sum, and may be left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1000))]
    pub(crate) min: Option<u32>,
    /// Never more. Not given: `min`, but at least 1. With `regions`: their sum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1000))]
    pub(crate) max: Option<u32>,
    /// How many in which region (the label `region` of workers): a number, or a range. While a region is lost its
    /// replicas are elsewhere.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) regions: BTreeMap<String, RawRegion>,
}

/// A number of replicas in a region, or a range.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum RawRegion {
    /// Exactly as many.
    Exactly(#[schemars(range(max = 1000))] u32),
    /// As many as are useful, within bounds.
    Between(RegionRange),
}

/// Bounds of the number of replicas in a region.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RegionRange {
    /// As many are kept there as long as the region has a worker for them.
    #[schemars(range(max = 1000))]
    pub(crate) min: u32,
    /// Never more there, unless they stand in for those of a lost region. Not given: `min`, but at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1000))]
    pub(crate) max: Option<u32>,
}

impl Default for RawReplicas {
    fn default() -> Self {
        Self::Exactly(1)
    }
}

/// When there are more replicas than `replicas.min`, up to `replicas.max`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct RawScaling {
    /// Requests per minute that one replica should have at most. Not given: the controller's own measure.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1.0, max = 100_000_000.0))]
    pub(crate) target_rate: Option<f32>,
    /// Requests in flight that one replica should have at most, on average. Not given: the controller's own measure.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.1, max = 100_000.0))]
    pub(crate) target_concurrency: Option<f32>,
    /// Whether use that comes back keeps a second replica, where `replicas.max` allows one.
    pub(crate) second_copy: RawSecondCopy,
}

/// Whether a model in regular use gets a second replica.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RawSecondCopy {
    /// When it was used now and also some while ago, and there is room.
    #[default]
    RegularUse,
    /// Only under load.
    Never,
}
