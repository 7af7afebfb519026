//! Join tokens: what is told of one, and what is asked for when one is made.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Kind, Metadata, Timestamp};

/// A join token: everything but its secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JoinTokenView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `JoinToken`.
    pub kind: String,
    /// The name is the token's public part.
    pub metadata: Metadata,
    /// Nodes that it is for, and their roles.
    pub spec: JoinTokenSpec,
    /// Creation, end and uses.
    pub status: JoinTokenStatus,
}

impl Kind for JoinTokenView {
    const KIND: &'static str = "JoinToken";
}

/// Nodes that a join token is for, and their roles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JoinTokenSpec {
    /// Roles in their certificates: `controller`, `worker`, `gateway`, separated by commas.
    pub roles: String,
    /// The only name that a node may take; absent: any that no member of the cluster has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Nodes that may join with it.
    #[serde(default = "one")]
    pub uses: u32,
    /// Purpose, in the words of its creator.
    #[serde(default)]
    pub description: String,
}

fn one() -> u32 {
    1
}

/// Creation, end and uses of a join token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct JoinTokenStatus {
    /// Name of the principal that made it, as in the audit log; `anybody` where the server asked for no token and no certificate was
    /// shown.
    pub created_by: String,
    /// Time of its creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
    /// End of its validity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// True once it has expired.
    pub expired: bool,
    /// Names of the nodes that joined with it.
    pub nodes: Vec<String>,
}

/// Body of a request for a join token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewJoinToken {
    /// Nodes that it is for, and their roles.
    pub spec: JoinTokenSpec,
    /// Seconds until it expires; absent: an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_seconds: Option<u64>,
}

/// A join token that was made, with its secret, which is shown this once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreatedJoinToken {
    /// The token as lists show it.
    pub token: JoinTokenView,
    /// The text that a node is given.
    pub secret: String,
}
