//! Number of replicas, regions and scaling.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::scalar::{Decimal, Whole};

/// A number of replicas, or a range.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum RawReplicas {
    /// One number: as many at all times.
    Exactly(Whole<0, 1000>),
    /// As many as are useful, within bounds.
    Between(ReplicaRange),
}

/// Bounds of the number of replicas.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReplicaRange {
    /// The number of replicas that always stay loaded. `0`: on demand. With `regions`: their sum, and may be left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<Whole<0, 1000>>,
    /// Never more. Not given: `min`, but at least 1. With `regions`: their sum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Whole<0, 1000>>,
    /// Replicas per region (the label `region` of workers): a number, or a range. While a region is lost, other regions
    /// hold its replicas.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub regions: BTreeMap<String, RawRegion>,
}

/// A number of replicas in a region, or a range.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum RawRegion {
    /// One number: as many at all times.
    Exactly(Whole<0, 1000>),
    /// As many as are useful, within bounds.
    Between(RegionRange),
}

/// Bounds of the number of replicas in a region.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RegionRange {
    /// As many are kept there as long as the region has a worker for them.
    pub min: Whole<0, 1000>,
    /// Never more there, unless they stand in for those of a lost region. Not given: `min`, but at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Whole<0, 1000>>,
}

impl Default for RawReplicas {
    fn default() -> Self {
        Self::Exactly(Whole::constant(1))
    }
}

/// Conditions for more replicas than `replicas.min`, up to `replicas.max`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RawScaling {
    /// Requests per minute that one replica should have at most. Not given: the controller's own measure.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1.0, max = 100_000_000.0))]
    pub target_rate: Option<Decimal>,
    /// Requests in flight that one replica should have at most, on average. Not given: the controller's own measure.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.1, max = 100_000.0))]
    pub target_concurrency: Option<Decimal>,
    /// A second replica for models in regular use, where `replicas.max` allows one.
    pub second_copy: RawSecondCopy,
}

/// Rule for a second replica of a model in regular use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RawSecondCopy {
    /// When it was used now and also some while ago, and there is room.
    #[default]
    RegularUse,
    /// Only under load.
    Never,
}
