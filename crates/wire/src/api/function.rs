//! Functions: code that is built and run beside models.

use std::collections::BTreeMap;

use berth_spec::id::DEFAULT_NAMESPACE;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::Kind;

/// A function as the control API shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FunctionView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `Function`.
    pub kind: String,
    /// Name and versions.
    pub metadata: FunctionMetadata,
    /// Its spec, as it was written, without defaults.
    #[schema(value_type = Object)]
    pub spec: Value,
    /// Its status, as it stands in its object.
    pub status: FunctionStatus,
}

impl Kind for FunctionView {
    const KIND: &'static str = "Function";
}

impl FunctionView {
    /// A text of the spec; empty where there is none.
    #[must_use]
    pub fn text(&self, pointer: &str) -> &str {
        self.spec.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }
}

/// Name and versions of a function.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FunctionMetadata {
    /// Name, unique within the namespace.
    pub name: String,
    /// The namespace that the name is unique in.
    pub namespace: String,
    /// Labels set by users.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Free texts for people and tools.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Number of the desired state.
    pub generation: u64,
    /// Changes with every change of its object.
    pub resource_version: String,
    /// Source that declared it: `api`, or `etcd` for what somebody put there.
    pub origin: String,
}

impl FunctionMetadata {
    /// The written form of namespace and name: `words`, `team/words`.
    #[must_use]
    pub fn written(&self) -> String {
        match self.namespace.as_str() {
            "" | DEFAULT_NAMESPACE => self.name.clone(),
            namespace => format!("{namespace}/{}", self.name),
        }
    }
}

/// State of a function, written by the functions controller.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
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
    /// The last build; absent before the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub build: Option<FunctionBuild>,
    /// The artifact that is deployed; absent before the first deployment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artifact: Option<FunctionArtifact>,
    /// URL that answers a POST of JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Specs that were deployed, the newest first: the one that serves, and those before it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<FunctionRevision>,
}

/// A spec that was deployed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FunctionRevision {
    /// Generation that the spec had.
    pub generation: i64,
    /// When it began to serve.
    pub deployed: String,
    /// Digest of its artifact, `sha256:…`.
    pub artifact: String,
    /// The spec that was deployed.
    #[schema(value_type = Object)]
    pub spec: Value,
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

/// A build of a function, finished or not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FunctionBuild {
    /// Number of the build, as text.
    pub id: String,
    /// Time at which it began.
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

/// An artifact: the ZIP file that a build made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct FunctionArtifact {
    /// `sha256:…` of the ZIP file.
    pub digest: String,
    /// Size of the ZIP file in bytes.
    pub size: u64,
}
