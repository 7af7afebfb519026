//! Sources of deployments, and the secrets that they give to workers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Kind, Metadata, Timestamp};

/// A source of deployments as the control API shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SourceView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `Source`.
    pub kind: String,
    /// Named as in the configuration.
    pub metadata: Metadata,
    /// Kind and place, by configuration.
    pub spec: SourceSpec,
    /// State and revisions now.
    pub status: SourceStatus,
}

impl Kind for SourceView {
    const KIND: &'static str = "Source";
}

/// Kind and place of a source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SourceSpec {
    /// `directory` or `git`.
    pub kind: String,
    /// Its place, without credentials: a URL, a path.
    pub location: String,
}

/// State of a source, and the revisions that it has seen.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SourceStatus {
    /// `Synced`, `Progressing`, `Refused` (the last good revision stays), `Retrying`, `Stalled` (a person has to act),
    /// `Paused` or `Starting`.
    pub state: String,
    /// A person has paused it: what it declared stays, and nothing new is taken.
    pub paused: bool,
    /// The newest revision that was seen: a commit, or a digest of the content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen: Option<String>,
    /// The revision that is in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub applied: Option<String>,
    /// When it came into force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub applied_at: Option<Timestamp>,
    /// Deployments that its applied revision declares.
    pub deployments: u64,
    /// Deployments that it wants without a replica.
    pub disabled: u64,
    /// Deployments of it that do not get on, seconds ago. Absent where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stuck: Option<StuckDeployments>,
    /// When the source was last read, with success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checked_at: Option<Timestamp>,
    /// Time at which it is read next; absent: no reading is planned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_check: Option<Timestamp>,
    /// Everything that is wrong; several lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// A newer revision that is not followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedRevision>,
    /// Deployments that belong to another owner, and other changes that were not made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conflicts: Vec<String>,
    /// Circuit breakers of what it depends on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub breakers: Vec<SourceBreaker>,
    /// Facts of its kind. Of `git`: `branch`, `author`, `signedBy`, `subject`, `writtenTo`, `written`, `writeProblem`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub details: BTreeMap<String, String>,
}

/// Deployments that do not get on by themselves: the condition `Progressing` is false, as a revision or a load was given up, or is
/// overdue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StuckDeployments {
    /// Their number.
    pub count: u64,
    /// The first ten by name, each with the reason of the condition: `fraud: RolloutStuck`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub first: Vec<String>,
}

/// A revision that is not followed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RefusedRevision {
    /// The revision: a commit, or a digest of the content.
    pub commit: String,
    /// The verdict: `unpinned-ref`.
    pub outcome: String,
    /// Time of the next validation; absent if it waits for a change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validated_again: Option<Timestamp>,
}

/// A circuit breaker towards a dependency of a source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SourceBreaker {
    /// Host of the dependency.
    pub dependency: String,
    /// `closed`, `half-open` or `open`.
    pub state: String,
    /// Failures since the last success.
    pub failures: u32,
    /// Time of the next trial after a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
}

/// A secret of a worker: everything but its value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `Secret`.
    pub kind: String,
    /// Name as `WORKER/NAME`.
    pub metadata: Metadata,
    /// Backend, set and problem now.
    pub status: SecretStatus,
}

impl Kind for SecretView {
    const KIND: &'static str = "Secret";
}

/// Backend, set and problem of a secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretStatus {
    /// Name of the worker that gets it.
    pub worker: String,
    /// Name of the secret, unique for the worker.
    pub name: String,
    /// `s3_credentials`, `git_token` and so on; empty where not even that can be read.
    #[serde(rename = "type")]
    pub kind: String,
    /// Backend: `file` or `vault`.
    pub backend: String,
    /// The keys that its file is wrapped for, or its lease.
    pub held_by: String,
    /// The number of the set that it is in.
    pub generation: u64,
    /// True if the worker has adopted this set or a newer one.
    pub adopted: bool,
    /// Time of the last decryption, read or renewal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renewed_at: Option<Timestamp>,
    /// Time of expiry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Current problem, with what was done about it; absent: there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}
