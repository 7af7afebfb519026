//! Results of applying documents.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Results for all documents of one request.
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
    /// The names in the documents, in their order.
    pub documents: Vec<String>,
}

/// Result for one document of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApplyResult {
    /// Kind of the document: `ModelDeployment` or `Alias`.
    #[serde(default = "deployment_kind")]
    pub kind: String,
    /// Name of the object that it declares.
    pub name: String,
    /// Effect of the document.
    pub outcome: Outcome,
    /// Generation after the change.
    pub generation: u64,
    /// Resource version after the change.
    pub resource_version: String,
    /// Warnings, for example about a missing artifact.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Of a dry run or a plan: the fields that differ from what is declared, in the order of their paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<FieldChange>,
}

/// A field of a manifest that differs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FieldChange {
    /// Path of the field, for example `spec.replicas.min`; `artifact` for the content of a local file.
    pub path: String,
    /// Value that is declared now; absent: the field is new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub from: Option<serde_json::Value>,
    /// Value that the document gives; absent: the field is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub to: Option<serde_json::Value>,
}

/// The kind of every document that an earlier version speaks of.
fn deployment_kind() -> String {
    "ModelDeployment".to_owned()
}

/// Effect of a document on the object that it declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// The object was made.
    Created,
    /// The object's spec or metadata changed.
    Configured,
    /// The object is as the document says already.
    Unchanged,
    /// The object is gone, or will be once its replicas have drained.
    Deleted,
}

impl Outcome {
    /// The word in answers: `created`, `configured`, …
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
