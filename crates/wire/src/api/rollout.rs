//! Earlier generations of a deployment.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Kind, Metadata, Timestamp};

/// The generations of a deployment that were replaced, the latest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutHistory {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `RolloutHistory`.
    pub kind: String,
    /// Name of the deployment.
    pub metadata: Metadata,
    /// At most ten, the latest first.
    pub items: Vec<PastGeneration>,
}

impl Kind for RolloutHistory {
    const KIND: &'static str = "RolloutHistory";
}

/// A generation that was replaced by a later one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PastGeneration {
    /// Number of the generation that was replaced.
    pub generation: u64,
    /// Id of the revision that its spec asked for.
    pub revision: String,
    /// Source that had declared it.
    pub origin: String,
    /// Time at which a later generation took its place.
    pub replaced_at: Timestamp,
    /// Its manifest, to be applied again as it is.
    #[schema(value_type = Object)]
    pub manifest: serde_json::Value,
}
