//! The hub version of an alias, field by field.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ApiVersion, Metadata};
use crate::manifest::scalar::{Name, Whole};

/// Declares a name that leads to deployments, by weight.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RawAlias {
    /// The version of this format.
    pub api_version: ApiVersion,
    /// The kind of object.
    pub kind: AliasKind,
    /// Name, namespace, labels and annotations. The name is shared with deployments: none may have the same one.
    pub metadata: Metadata,
    /// The deployments behind the name.
    pub spec: RawAliasSpec,
    /// Set by the server and ignored here, so that the output of `berth get` can be applied again.
    #[serde(default, skip_serializing)]
    pub status: Option<serde_json::Value>,
}

/// The kind of a manifest that declares an alias.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
pub enum AliasKind {
    /// A name for other deployments.
    Alias,
}

/// The deployments behind an alias.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RawAliasSpec {
    /// Deployments of the alias's own namespace. One that does not exist yet gets no requests: its share goes to the others.
    #[schemars(length(min = 1))]
    pub targets: Vec<RawTarget>,
    /// The property by which requests keep to one target: `client` (the client's address), `{header: NAME}` or
    /// `{bodyField: PATH}`. Not given: requests are shared evenly over time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sticky: Option<RawSticky>,
}

/// A deployment and its share.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RawTarget {
    /// The name of a deployment.
    pub deployment: Name,
    /// Its share of the requests, compared with the weights of the other targets. `0`: none.
    #[serde(default = "default_weight")]
    pub weight: Whole<0, 1_000_000>,
}

/// The property of a request that decides its target.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum RawSticky {
    /// A word.
    Word(StickyWord),
    /// A header or a field.
    By(StickyBy),
}

/// A property of every request.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StickyWord {
    /// The address that the request comes from.
    Client,
}

/// A property that clients set. Requests without it are shared out as if there were no `sticky`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StickyBy {
    /// The name of a header, or of gRPC metadata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// The path of a field of a JSON body, with dots between the names: `parameters.user`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_field: Option<String>,
}

/// Equal shares for those who name none.
fn default_weight() -> Whole<0, 1_000_000> {
    Whole::constant(1)
}
