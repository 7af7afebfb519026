//! Revocations: certificates of nodes that no node takes any more.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Kind, Metadata, Timestamp};

/// A revocation as the control API shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RevocationView {
    /// Always `berth.dev/v1`.
    pub api_version: String,
    /// Always `Revocation`.
    pub kind: String,
    /// The name is made by the server.
    pub metadata: Metadata,
    /// Certificates that it is about.
    pub spec: RevocationSpec,
    /// Time and end of the revocation.
    pub status: RevocationStatus,
}

impl Kind for RevocationView {
    const KIND: &'static str = "Revocation";
}

/// Certificates to revoke: those of a node, or one by its serial number.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RevocationSpec {
    /// Every certificate that is good for this node and valid from an earlier time than the revocation's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The certificate with this serial number, in hexadecimal digits; colons between them do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Reason, in the words of whoever revokes.
    #[serde(default)]
    pub reason: String,
}

/// Time and end of a revocation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RevocationStatus {
    /// Name of the principal that revoked, as in the audit log; `anybody` where the server asked for no token and no certificate was
    /// shown.
    pub created_by: String,
    /// Time of the revocation: certificates of a node from earlier times are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
    /// Time at which it goes, because the certificates have ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// Body of a request to revoke certificates.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewRevocation {
    /// Certificates to revoke.
    pub spec: RevocationSpec,
    /// End of the certificate's validity, where it is known; absent: ten years from now, as long as any can be valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}
