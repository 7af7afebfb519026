//! Functions: code that is built and run beside models.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Kind, Metadata};

/// A function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FunctionView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `Function`.
    pub kind: String,
    /// Its name.
    pub metadata: Metadata,
    /// Its settings, in short.
    pub spec: FunctionSpec,
    /// Its status, as it stands in its object.
    pub status: FunctionStatus,
}

impl Kind for FunctionView {
    const KIND: &'static str = "Function";
}

/// The settings of a function, in short.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FunctionSpec {
    /// `keras`, `python`, `tfjs` or `javascript`; empty where the spec is invalid.
    pub r#type: String,
    /// The place of its code.
    pub source_uri: String,
    /// `local` or `azure-function`.
    pub platform: String,
    /// Number of the desired state.
    pub generation: i64,
}

/// The status of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FunctionStatus {
    /// `Pending`, `Building`, `Deploying`, `Succeeded`, `Failed` or `Terminating`.
    pub phase: String,
    /// The same in a sentence.
    pub message: String,
    /// The last generation that was carried out, or that failed.
    pub observed_generation: i64,
    /// Facts, each true or false.
    pub conditions: Vec<FunctionCondition>,
    /// The last build.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub build: Option<FunctionBuild>,
    /// The artifact that is deployed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artifact: Option<FunctionArtifact>,
    /// URL that answers a POST of JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
}

/// A fact about a function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FunctionCondition {
    /// `SpecValid`, `Built`, `Deployed` or `Ready`.
    pub r#type: String,
    /// `True` or `False`.
    pub status: String,
    /// One word that says why.
    pub reason: String,
    /// The same in a sentence.
    pub message: String,
    /// Time at which `status` last changed.
    pub last_transition_time: String,
}

/// A build of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FunctionBuild {
    /// Its number.
    pub id: String,
    /// When it began.
    pub started: String,
    /// Seconds that it took: `12.4s`.
    pub took: String,
    /// True if an earlier build of the same inputs was used.
    pub cached: bool,
    /// Last lines of its log.
    pub log_tail: String,
    /// Path of the whole log.
    pub log: String,
}

/// An artifact of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct FunctionArtifact {
    /// `sha256:…` of the ZIP file.
    pub digest: String,
    /// Its bytes.
    pub size: u64,
}
