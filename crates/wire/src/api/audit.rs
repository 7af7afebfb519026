//! The audit log: who did what to what, with which outcome.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Kind, Timestamp};

/// Something that was done, or refused. Has neither secrets nor bodies of requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuditRecord {
    /// Time of the outcome.
    pub at: Timestamp,
    /// Node that did it, or refused it.
    pub node: String,
    /// Way by which it came.
    pub port: AuditPort,
    /// Id of the request, as in the header `x-request-id` and in logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Somebody who asked: `token:ID`, `certificate:NAME`, `source:NAME@REVISION`, `node:NAME`; `anybody` where no token is
    /// needed, `nobody` where one was and none came that is valid.
    pub principal: String,
    /// Address of the client; absent where none is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub address: Option<IpAddr>,
    /// Action, a word of the table of roles: `declare`, `manage-tokens`, …; `join` for nodes.
    pub action: String,
    /// Method and path of the route, or the gRPC method: `DELETE /v1/deployments/{name}`.
    pub operation: String,
    /// The things that it was done to, at most 64 of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<AuditResource>,
    /// Number of further things that are not listed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_resources: u64,
    /// Outcome, as the client was answered.
    pub outcome: AuditOutcome,
    /// Number of refusals that this record stands for: those alike within a minute are counted.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub count: u64,
}

/// Way by which something came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AuditPort {
    /// The control API, also through the command line and the dashboard.
    Api,
    /// The inference port, REST and gRPC.
    Inference,
    /// A source of deployments: what it declared.
    Source,
    /// The port for other nodes.
    Peer,
}

impl AuditPort {
    /// The word in records: `api`, `inference`, …
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Inference => "inference",
            Self::Source => "source",
            Self::Peer => "peer",
        }
    }
}

/// A thing that something was done to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuditResource {
    /// Kind: `ModelDeployment`, `Alias`, `Node`, `Worker`, `Source`, `Token`, `Model`.
    pub kind: String,
    /// Namespace; absent for what is in none, such as a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name, unique within kind and namespace.
    pub name: String,
}

/// Outcome of a request, in the terms of HTTP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuditOutcome {
    /// HTTP status, or the one that fits the gRPC status.
    pub status: u16,
    /// One word for machines where it failed, as in the body of the error.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

impl AuditOutcome {
    /// True if it was done.
    #[must_use]
    pub const fn is_success(&self) -> bool {
        self.status < 400
    }
}

/// The most resources that a record lists: a record stays a line of some KiB, whatever one request changes.
const MOST_RESOURCES: usize = 64;

impl AuditRecord {
    /// The same record about these things; further ones than it lists are counted.
    #[must_use]
    pub fn about(self, mut resources: Vec<AuditResource>) -> Self {
        let more = resources.len().saturating_sub(MOST_RESOURCES);
        resources.truncate(MOST_RESOURCES);
        Self { resources, more_resources: u64::try_from(more).unwrap_or(u64::MAX), ..self }
    }
}

/// Recent records of all nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuditView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `AuditLog`.
    pub kind: String,
    /// The records by time, the latest last.
    pub items: Vec<AuditRecord>,
    /// Opaque: send it back as `after` for the records that follow.
    pub cursor: String,
    /// Nodes that did not answer in time: their records are missing, and come with a later answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

impl Kind for AuditView {
    const KIND: &'static str = "AuditLog";
}

/// Records of one node, as it answers another.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeAudit {
    /// Name of the node.
    pub node: String,
    /// Its records, the latest last.
    pub records: Vec<AuditRecord>,
    /// Number of the last record that there is. Grows, also over a restart.
    pub last: u64,
}

const fn one() -> u64 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands it so")]
const fn is_one(count: &u64) -> bool {
    *count == 1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands it so")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}
