//! The stored form of join tokens: hashes, so that whoever reads the store lets no node in.

use berth_spec::{Roles, WorkerId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    Entry, StoreError,
    layout::{self, FORM},
};

/// The prefix of join tokens.
pub const JOIN_TOKENS: &str = "/join-tokens/";

/// The key of a join token.
#[must_use]
pub fn join_token_key(id: &str) -> String {
    format!("{JOIN_TOKENS}{id}")
}

/// A join token. Times are seconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinTokenRecord {
    /// Its public part.
    pub id: String,
    /// SHA-256 of its secret, in hexadecimal digits.
    pub hash: String,
    /// Roles in the certificates that it gives.
    pub roles: Roles,
    /// The only name that a node may take; `None`: any that is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<WorkerId>,
    /// The most nodes that may join with it.
    pub uses: u32,
    /// Nodes that joined with it, each with the SHA-256 of its request's key.
    #[serde(default)]
    pub joined: Vec<JoinedNode>,
    /// Purpose, in the words of its creator.
    #[serde(default)]
    pub description: String,
    /// Name of the principal that made it.
    pub created_by: String,
    /// Time of its creation, in seconds since the Unix epoch.
    pub created: u64,
    /// Time from which no node joins with it, in seconds since the Unix epoch.
    pub expires: u64,
}

/// A use of a join token: the node, and the request by which it joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinedNode {
    /// Its name.
    pub node: WorkerId,
    /// SHA-256 of its request, in hexadecimal digits: the same request again is the same node, whose answer was lost.
    pub request: String,
}

/// The value of a join token's key, JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredJoinToken {
    v: u32,
    /// Hash, rights and validity.
    #[serde(flatten)]
    pub record: JoinTokenRecord,
}

impl StoredJoinToken {
    /// Wraps a record in the current form.
    #[must_use]
    pub const fn of(record: JoinTokenRecord) -> Self {
        Self { v: FORM, record }
    }

    /// Decodes an entry's value. [`StoreError::Corrupt`] if it has another form.
    pub fn read(entry: &Entry) -> Result<Self, StoreError> {
        layout::read(entry)
    }

    /// The value to store, as JSON.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        layout::bytes(self)
    }
}
