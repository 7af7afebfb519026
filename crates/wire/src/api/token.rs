//! Tokens: what is told of one, and what is asked for when one is made.

use berth_spec::{ByteSize, UseLimits};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{API_VERSION, Kind, Metadata, Timestamp};
use crate::access::{Grant, Role, TokenRecord};

/// A token: everything but its secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `Token`.
    pub kind: String,
    /// The name is the token's public part.
    pub metadata: Metadata,
    /// Rights of its holder.
    pub spec: TokenSpec,
    /// Creation, end and last use.
    pub status: TokenStatus,
}

impl Kind for TokenView {
    const KIND: &'static str = "Token";
}

/// Rights of a token's holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenSpec {
    /// Role that is granted.
    pub role: Role,
    /// Namespaces where it holds; empty: all.
    #[serde(default)]
    pub namespaces: Vec<String>,
    /// Patterns of model names for which it holds, with `*` for any text; empty: all.
    #[serde(default)]
    pub models: Vec<String>,
    /// Purpose, in the words of its creator.
    #[serde(default)]
    pub description: String,
    /// Limits on the holder's use of the inference port of each gateway; absent: those for everybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<TokenLimits>,
}

/// Limits on what a token's holder uses; what is absent is not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenLimits {
    /// Requests per second in the long run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u32>,
    /// Requests that may come at one moment after a pause; absent: as many as `rate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// Requests at once, those that wait included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u32>,
    /// Bytes of request bodies per second in the long run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<u64>,
}

impl From<TokenLimits> for UseLimits {
    fn from(limits: TokenLimits) -> Self {
        let TokenLimits { rate, burst, in_flight, bytes_per_second } = limits;
        Self { rate, burst, in_flight, bytes_per_second: bytes_per_second.map(ByteSize), max_wait: None }
    }
}

impl From<UseLimits> for TokenLimits {
    fn from(limits: UseLimits) -> Self {
        let UseLimits { rate, burst, in_flight, bytes_per_second, .. } = limits;
        Self { rate, burst, in_flight, bytes_per_second: bytes_per_second.map(|bytes| bytes.0) }
    }
}

/// Creation, end and last use of a token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenStatus {
    /// Name of the principal that made it, as in the audit log; `anybody` where the server asked for no token and no certificate was
    /// shown.
    pub created_by: String,
    /// Time of its creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
    /// End of its validity; absent: it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Last use to the minute, as far as the nodes remember that are there; they forget it when they are started anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<Timestamp>,
    /// True once it has expired.
    pub expired: bool,
}

/// Body of a request for a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewToken {
    /// Rights of its holder.
    pub spec: TokenSpec,
    /// Seconds until it expires; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_seconds: Option<u64>,
}

/// A token that was made, with its secret, which is shown this once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreatedToken {
    /// The token as lists show it.
    pub token: TokenView,
    /// The whole token, to be sent as `Authorization: Bearer SECRET`.
    pub secret: String,
}

impl TokenSpec {
    /// The right that it describes.
    #[must_use]
    pub fn grant(&self) -> Grant {
        Grant { role: self.role, namespaces: self.namespaces.clone(), models: self.models.clone() }
    }
}

impl TokenView {
    /// Describes a token at this second; `used` is its last use. Times are seconds since the Unix epoch.
    #[must_use]
    pub fn of(record: &TokenRecord, used: Option<u64>, now: u64) -> Self {
        let at = |seconds: u64| Timestamp(berth_spec::Time(seconds.saturating_mul(1_000_000_000)));
        Self {
            api_version: API_VERSION.to_owned(),
            kind: Self::KIND.to_owned(),
            metadata: Metadata { name: record.id.clone(), ..Metadata::default() },
            spec: TokenSpec {
                role: record.grant.role,
                namespaces: record.grant.namespaces.clone(),
                models: record.grant.models.clone(),
                description: record.description.clone(),
                limits: record.limits.map(TokenLimits::from),
            },
            status: TokenStatus {
                created_by: record.created_by.clone(),
                created_at: Some(at(record.created)),
                expires_at: record.expires.map(at),
                last_used_at: used.map(at),
                expired: !record.is_valid(now),
            },
        }
    }
}
