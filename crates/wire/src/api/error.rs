//! Body of an error response.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The body of every answer that is not a success.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// The error; there is one in each such answer.
    pub error: ErrorInfo,
}

/// An error for machines and for people.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ErrorInfo {
    /// HTTP status code, as in the head of the answer.
    pub code: u16,
    /// One CamelCase word for machines: `Invalid`, `NotFound`, `Conflict`, …
    pub reason: String,
    /// A sentence for people that names the thing and what to do.
    pub message: String,
    /// Id of the request, as in the header `x-request-id` of the answer: logs and the audit log have it, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Details, one entry per problem.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<ErrorDetail>,
}

/// One fault, with the place where it is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ErrorDetail {
    /// The file, where the text came from one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line, from 1; absent where there was no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// The column in characters, from 1; absent where there was no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    /// Field, for example `spec.replicas.min`, or the name of a query parameter or header. Empty for the whole
    /// document.
    pub path: String,
    /// The fault, without its place.
    pub message: String,
    /// Remedy, as an imperative; empty where the message says it all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remedy: String,
}
