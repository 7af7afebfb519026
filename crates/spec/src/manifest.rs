//! The file format in which people declare models: `apiVersion: berth.dev/v1`, `kind: ModelDeployment`, in YAML or
//! JSON, many documents to a file.
//!
//! ```text
//! text ──parse──▶ documents with positions ──check against the schema──▶ raw structs ──resolve──▶ Spec
//!                  (node)                     (check: all errors)         (raw)                    (resolve)
//! ```
//!
//! The structs in `raw` are the single definition: the JSON schema, the checker and `docs/manifest.md` are made
//! from them. What a user wrote is never changed: it is kept beside the [`Spec`] that it became.

mod error;

use std::collections::BTreeMap;

pub use error::ManifestError;

use crate::{DeploymentName, Spec};

/// Where a manifest came from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParseContext {
    /// What errors call it: a path, or `-` for standard input.
    pub file: String,
    /// The absolute `file:` URI of the folder that relative `file:` URIs start from, with a `/` at its end.
    /// `None`: relative ones are errors.
    pub base: Option<String>,
}

/// A manifest that passed every check.
#[derive(Debug, Clone, PartialEq)]
pub struct ManifestDeployment {
    /// `metadata.name`.
    pub name: DeploymentName,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`.
    pub annotations: BTreeMap<String, String>,
    /// `metadata.resourceVersion`: the change is only wanted if the stored one still has it.
    pub resource_version: Option<String>,
    /// `spec`, with defaults applied and the artifact's URI made absolute.
    pub spec: Spec,
    /// `apiVersion`, `kind`, `metadata` and `spec` as the user wrote them; `status` and what the server adds to
    /// `metadata` left out. With the same `base` it parses to the same spec ([`from_value`]).
    pub raw: serde_json::Value,
    /// [`ParseContext::base`], if the spec depends on it: to be kept beside `raw`.
    pub base: Option<String>,
}

/// Reads all documents of a YAML or JSON text; empty ones are skipped.
///
/// # Errors
/// All that is wrong with any of the documents, in reading order. A syntax error ends the reading.
pub fn parse(_text: &str, _context: &ParseContext) -> Result<Vec<ManifestDeployment>, Vec<ManifestError>> {
    Ok(Vec::new())
}

/// Reads one manifest that is JSON already: what [`ManifestDeployment::raw`] held, or the body of a PUT.
///
/// # Errors
/// As [`parse`]; errors have no position but the path.
pub fn from_value(
    _raw: &serde_json::Value,
    _context: &ParseContext,
) -> Result<ManifestDeployment, Vec<ManifestError>> {
    Err(Vec::new())
}
