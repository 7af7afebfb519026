//! What became of applied documents.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What became of every document of one request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Applied {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `ApplyResult`.
    pub kind: String,
    /// Nothing was changed: it was only asked what would be.
    pub dry_run: bool,
    /// One per document, in their order.
    pub results: Vec<ApplyResult>,
}

/// Documents that passed every check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Validated {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `Validated`.
    pub kind: String,
    /// The names of the deployments, in their order.
    pub documents: Vec<String>,
}

/// What became of one document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApplyResult {
    /// The deployment.
    pub name: String,
    /// What became of it.
    pub outcome: Outcome,
    /// Its generation afterwards.
    pub generation: u64,
    /// Its version afterwards.
    pub resource_version: String,
    /// What is worth knowing: an artifact that is not there yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// What became of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// It is new.
    Created,
    /// It was changed.
    Configured,
    /// It was like this already.
    Unchanged,
    /// It is going away.
    Deleted,
}

impl Outcome {
    /// The word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Configured => "configured",
            Self::Unchanged => "unchanged",
            Self::Deleted => "deleted",
        }
    }
}
