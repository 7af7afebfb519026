//! Principals: what the sender of a request is told of itself.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{API_VERSION, Kind, Metadata, Timestamp};
use crate::access::{Asker, Role};

/// The sender of a request, as the server knows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PrincipalView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `Principal`.
    pub kind: String,
    /// The name is the principal's in logs and in the audit: `token:ID`, `certificate:DNS:NAME`, `oidc:SUBJECT`; `anybody` where
    /// nobody is asked.
    pub metadata: Metadata,
    /// Roles and end of the sender's token.
    pub status: PrincipalStatus,
}

impl Kind for PrincipalView {
    const KIND: &'static str = "Principal";
}

/// Roles of a principal, and the end of its token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PrincipalStatus {
    /// False where the server asks nobody who they are: everything is allowed then.
    pub authenticated: bool,
    /// Roles, and where they hold.
    pub grants: Vec<GrantView>,
    /// End of the validity of its token; absent: it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// A role, and where it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct GrantView {
    /// Role that is granted.
    pub role: Role,
    /// Namespaces; empty: all.
    #[serde(default)]
    pub namespaces: Vec<String>,
    /// Patterns of model names; empty: all.
    #[serde(default)]
    pub models: Vec<String>,
}

impl PrincipalView {
    /// Describes whoever asks.
    #[must_use]
    pub fn of(asker: &Asker) -> Self {
        let principal = asker.0.as_deref();
        let grants = principal.map_or(&[][..], |principal| &principal.grants);
        let grants = grants.iter().cloned().map(|grant| GrantView {
            role: grant.role,
            namespaces: grant.namespaces,
            models: grant.models,
        });
        let expires = principal.and_then(|principal| principal.expires);
        Self {
            api_version: API_VERSION.to_owned(),
            kind: Self::KIND.to_owned(),
            metadata: Metadata { name: asker.name().to_owned(), ..Metadata::default() },
            status: PrincipalStatus {
                authenticated: principal.is_some(),
                grants: grants.collect(),
                expires_at: expires.map(|at| Timestamp(berth_spec::Time(at.saturating_mul(1_000_000_000)))),
            },
        }
    }
}
