//! Resources of a replica, and the workers that may hold it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::scalar::{Decimal, Label, Size, Whole, Word};

/// Resources of one replica.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RawResources {
    /// Memory of one replica, for example `512MiB`. Not given: the card's, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    /// CPU cores of one replica, for example `0.5`. Not given: the card's, if there is one. Counted when replicas are
    /// placed, not enforced.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1024.0))]
    pub cpu: Option<Decimal>,
    /// GPUs of one replica. Not given: the card's, if there is one. Each is claimed whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<RawGpu>,
}

/// GPUs that a replica needs.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RawGpu {
    /// The number of GPUs.
    pub count: Whole<1, 64>,
    /// The required kind, as the worker names it, for example `nvidia-h200`. Not given: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Word>,
    /// The total memory that each of them must have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
}

impl Default for RawGpu {
    fn default() -> Self {
        Self { count: Whole::constant(1), kind: None, memory: None }
    }
}

/// Workers that may hold a deployment.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RawSelector {
    /// Labels that a worker, or its runtime, must have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub required: BTreeMap<String, Label>,
    /// Another name for `required`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, Label>,
    /// Labels that make a worker better than others.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub preferred: BTreeMap<String, Label>,
}

/// Spread of the replicas of a deployment.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RawPlacement {
    /// Replicas are kept apart by this, as far as there are enough of them.
    pub spread: RawSpread,
}

/// Places that replicas are kept apart by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RawSpread {
    /// Regions, then zones, then workers.
    #[default]
    Zone,
    /// Workers only.
    Worker,
}
