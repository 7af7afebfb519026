//! The Git registry that is followed, and the secrets that it gives to workers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Kind, Metadata, Timestamp};

/// A source of deployments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SourceView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `Source`.
    pub kind: String,
    /// Named by what it is: `git`.
    pub metadata: Metadata,
    /// Settings of the source.
    pub spec: SourceSpec,
    /// Current status.
    pub status: SourceStatus,
}

impl Kind for SourceView {
    const KIND: &'static str = "Source";
}

/// Settings of a source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SourceSpec {
    /// URL without credentials.
    pub url: String,
    /// Branch that is followed.
    pub branch: String,
}

/// Status of a source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SourceStatus {
    /// `Synced`, `Progressing`, `Refused` (the last good commit stays), `Retrying`, `Stalled` (a person has to act) or
    /// `Starting`.
    pub state: String,
    /// The commit that the branch was last seen at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen: Option<String>,
    /// The commit that is in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub applied: Option<String>,
    /// Time since which the commit is applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub applied_at: Option<Timestamp>,
    /// Author of that commit.
    pub author: String,
    /// Signer, by a trusted key: `NAME (FINGERPRINT)`; empty where no signatures are required.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub signer: String,
    /// The first line of its message.
    pub subject: String,
    /// Deployments that it wants.
    pub deployments: u64,
    /// Time of the last successful poll.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checked_at: Option<Timestamp>,
    /// Time of the next poll.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_check: Option<Timestamp>,
    /// Current problem; several lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// A newer commit that is not followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedCommit>,
    /// Deployments that belong to somebody else, and what else did not go through.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conflicts: Vec<String>,
    /// State of write-back.
    pub write_back: WriteBackStatus,
    /// Circuit breakers of what it depends on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub breakers: Vec<SourceBreaker>,
}

/// A commit that is not followed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RefusedCommit {
    /// Commit id.
    pub commit: String,
    /// Outcome of validation, for example `unpinned-ref`.
    pub outcome: String,
    /// Time of the next validation; absent if it waits for a change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validated_again: Option<Timestamp>,
}

/// State of write-back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WriteBackStatus {
    /// `branch NAME`; empty: nowhere.
    pub to: String,
    /// Last commit written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Reason why the last write failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Circuit breaker of a dependency.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SourceBreaker {
    /// Dependency, by host.
    pub dependency: String,
    /// `closed`, `half-open` or `open`.
    pub state: String,
    /// Failures in a row.
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
    /// Current status.
    pub status: SecretStatus,
}

impl Kind for SecretView {
    const KIND: &'static str = "Secret";
}

/// Status of a secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretStatus {
    /// Worker that uses it.
    pub worker: String,
    /// Name of the secret.
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
    /// Current problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}
