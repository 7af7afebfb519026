//! The entry of a function in Azure: how its worker finds it, and whom Azure lets through.

use super::{
    field::{Mistakes, Object},
    spec::{Language, Platform},
};

/// The entry of a function in Azure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AzureEntry {
    /// `target.programmingModel`.
    pub model: ProgrammingModel,
    /// `target.authLevel`.
    pub auth: AuthLevel,
}

/// Programming model of Azure's Python worker. JavaScript has the fourth of Node.js.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ProgrammingModel {
    /// A `function.json` declares the trigger.
    V1,
    /// Code declares the trigger: `function_app.py`.
    #[default]
    V2,
}

/// Callers that Azure lets through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AuthLevel {
    /// All.
    #[default]
    Anonymous,
    /// Those who send a key of the function or of its app.
    Function,
}

impl ProgrammingModel {
    /// The word of a spec.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V2 => "v2",
        }
    }
}

impl AuthLevel {
    /// The word of Azure.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Anonymous => "anonymous",
            Self::Function => "function",
        }
    }
}

/// Reads the entry from `spec.target`. Mistakes about a language or a platform need one that is known.
pub(super) fn read(
    target: &Object<'_>,
    language: Option<Language>,
    platform: Option<&Platform>,
    mistakes: &mut Mistakes,
) -> AzureEntry {
    let mut entry = AzureEntry::default();
    match target.text("programmingModel", mistakes) {
        None => {}
        Some(_) if language == Some(Language::JavaScript) => {
            mistakes.add("spec.target.programmingModel belongs to Python: JavaScript has the model v4 of Node.js");
        }
        Some("v1") => entry.model = ProgrammingModel::V1,
        Some("v2") => entry.model = ProgrammingModel::V2,
        Some(other) => {
            mistakes.add(format!("spec.target.programmingModel {other:?} is unknown: use v1 (function.json) or v2"));
        }
    }
    match target.text("authLevel", mistakes) {
        None | Some("anonymous") => {}
        // Who relies on it would be open to all.
        Some("function") if matches!(platform, Some(Platform::Local | Platform::Replica { .. })) => {
            mistakes.add(
                "spec.target.authLevel function belongs to azure-function: on other platforms --auth tokens keeps callers out",
            );
        }
        Some("function") => entry.auth = AuthLevel::Function,
        Some(other) => {
            mistakes.add(format!("spec.target.authLevel {other:?} is unknown: use anonymous or function"));
        }
    }
    entry
}
