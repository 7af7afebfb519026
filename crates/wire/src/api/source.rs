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
    /// What it was told.
    pub spec: SourceSpec,
    /// What is true of it.
    pub status: SourceStatus,
}

impl Kind for SourceView {
    const KIND: &'static str = "Source";
}

/// What a source was told.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SourceSpec {
    /// Where it is, without credentials.
    pub url: String,
    /// Which branch is followed.
    pub branch: String,
}

/// What is true of a source.
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
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub applied_at: Option<Timestamp>,
    /// Who wrote that commit.
    pub author: String,
    /// Who signed it, by a key that the registry trusts: `NAME (FINGERPRINT)`; empty where it asks for no signatures.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub signer: String,
    /// The first line of its message.
    pub subject: String,
    /// Deployments that it wants.
    pub deployments: u64,
    /// When the branch was last asked for, with success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checked_at: Option<Timestamp>,
    /// When it is asked for next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_check: Option<Timestamp>,
    /// What is wrong; several lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// A newer commit that is not followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedCommit>,
    /// Deployments that belong to somebody else, and what else did not go through.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conflicts: Vec<String>,
    /// Where the actual state is written.
    pub write_back: WriteBackStatus,
    /// Circuit breakers of what it depends on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub breakers: Vec<SourceBreaker>,
}

/// A commit that is not followed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RefusedCommit {
    /// Which.
    pub commit: String,
    /// What validation makes of it: `unpinned-ref`.
    pub outcome: String,
    /// When it is validated again; absent: when something changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validated_again: Option<Timestamp>,
}

/// Where the actual state is written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WriteBackStatus {
    /// `branch NAME`; empty: nowhere.
    pub to: String,
    /// The last commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Why the last one could not be written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A circuit breaker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SourceBreaker {
    /// Towards whom.
    pub dependency: String,
    /// `closed`, `half-open` or `open`.
    pub state: String,
    /// Failures in a row.
    pub failures: u32,
    /// When it is tried again after a failure.
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
    /// `WORKER/NAME`.
    pub metadata: Metadata,
    /// What is true of it.
    pub status: SecretStatus,
}

impl Kind for SecretView {
    const KIND: &'static str = "Secret";
}

/// What is true of a secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretStatus {
    /// Whose it is.
    pub worker: String,
    /// What it is called.
    pub name: String,
    /// `s3_credentials`, `git_token` and so on; empty where not even that can be read.
    #[serde(rename = "type")]
    pub kind: String,
    /// `file` or `vault`.
    pub backend: String,
    /// The keys that its file is wrapped for, or its lease.
    pub held_by: String,
    /// The number of the set that it is in.
    pub generation: u64,
    /// Whether the worker has that set, or a newer one.
    pub adopted: bool,
    /// When it was last decrypted, read or renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renewed_at: Option<Timestamp>,
    /// When it ends by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// What is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}
