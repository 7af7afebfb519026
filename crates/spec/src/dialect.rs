//! The dialects: other forms in which people declare models and functions. Each converts to the hub version of a manifest
//! ([`manifest::raw`](crate::manifest::raw)) and, unless it is read only, back; typed, without a text in between.
//!
//! ```text
//! registry_v3    manifests 3.x of a Git registry, with their model cards ─┐
//!                                                                         ├─▶ manifest::raw ─▶ Spec
//! kserve         objects of KServe and ModelMesh, one way                ─┘
//! ```
//! One file per dialect holds its types, both conversions and its table: where each field goes, and what happens to a
//! field that the hub has no place for. `docs/dialects.md` is made from the tables. Tests hold each table against the
//! fields of its types and of the hub, and the conversions against each other.
//!
//! Of three dialects only the table is here, with the types where they need nothing else. What they become is an object of
//! another crate, which reads them and holds the table against its own fields in a test:
//!
//! | table | becomes | read in |
//! |---|---|---|
//! | [`custom_resources`] | pods, or with `spec.fleet` the hub's own `spec` | `operator/src/fleet.rs` |
//! | [`etcd_v1alpha1`] | the spec of a function | `functions/src/deployment/spec.rs` |
//! | [`kserve::serving_runtime`] | a worker's model server | `cli/src/settings/runtime/serving_runtime.rs` |

pub mod custom_resources;
pub mod etcd_v1alpha1;
pub mod kserve;
pub mod registry_v3;

mod reference;

pub use reference::reference_markdown;

use std::fmt;

use crate::manifest::{Problem, field_paths, function_field_paths};

/// A dialect, for the reference page.
#[derive(Debug)]
pub struct Dialect {
    /// The heading of its section.
    pub title: &'static str,
    /// Its authors, and the place that they write it to.
    pub introduction: &'static str,
    /// The kind that its fields go to.
    pub hub: Hub,
    /// True for a dialect that is read and never written.
    pub one_way: bool,
    /// Every field of its own manifest.
    pub fields: &'static [Field],
    /// Inputs of the conversion that are not fields of that manifest.
    pub inputs: &'static [Field],
}

/// A kind of Berth's own that a dialect converts to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hub {
    /// `ModelDeployment`, a model and how it is served.
    Deployment,
    /// `Function`, code that runs beside models.
    Function,
    /// `Runtime`, a file that workers read.
    Runtime,
}

impl Hub {
    /// The paths of its fields; `None` where this crate does not know them.
    fn field_paths(self) -> Option<Vec<String>> {
        match self {
            Self::Deployment => Some(field_paths()),
            Self::Function => Some(function_field_paths()),
            Self::Runtime => None,
        }
    }
}

/// One field of a dialect, a row of its table.
#[derive(Debug)]
pub struct Field {
    /// Its path, for example `deployment_config.replicas`.
    pub path: &'static str,
    /// The conversion of the field.
    pub mapping: Mapping,
    /// A remark for the reader; may be empty.
    pub note: &'static str,
}

/// The conversion of a field: where it goes, or why it goes nowhere.
#[derive(Debug)]
pub enum Mapping {
    /// Carried over into these fields of the hub.
    To(&'static [&'static str]),
    /// Kept as this annotation of the deployment.
    Annotation(&'static str),
    /// No conversion: a manifest that has it is refused.
    Refused,
    /// Without effect; the status says so.
    Ignored,
}

/// Every dialect, in the order of the reference page.
pub const ALL: [&Dialect; 5] = [
    &registry_v3::DIALECT,
    &kserve::DIALECT,
    &kserve::serving_runtime::DIALECT,
    &custom_resources::DIALECT,
    &etcd_v1alpha1::DIALECT,
];

/// A field that cannot be converted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConversionError {
    /// Its path, in the form that was to be converted.
    pub path: String,
    /// The reason, with the value where that helps.
    pub message: String,
    /// The way out, as an imperative; may be empty.
    pub remedy: String,
}

impl ConversionError {
    fn new(path: impl Into<String>, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into(), remedy: remedy.into() }
    }

    fn at(path: impl Into<String>, Problem { message, remedy }: Problem) -> Self {
        Self { path: path.into(), message, remedy }
    }
}

impl fmt::Display for ConversionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "; {}", self.remedy) }
    }
}

impl std::error::Error for ConversionError {}

#[cfg(test)]
mod tests;
