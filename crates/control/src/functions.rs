//! The seam of functions: objects beside deployments, declared through the API and by sources. A controller of their own carries
//! them out (`berth-functions`).

use std::collections::BTreeMap;

use berth_spec::{DeploymentName, Origin, manifest::ManifestFunction};
use berth_wire::api::FunctionView;
use futures::future::BoxFuture;

use crate::{
    handle::{Applied, ApplyMode, Error, Ownership},
    store::Rev,
};

/// A function to be declared, and the conditions of that.
#[derive(Debug, Clone)]
pub struct ApplyFunction {
    /// The manifest. Its `metadata.resourceVersion`, if any, counts as `expect`.
    pub manifest: ManifestFunction,
    /// Source that declares it, and owns it afterwards.
    pub origin: Origin,
    /// Only if the stored one still has this resource version ([`Rev::NONE`]: only if there is none).
    pub expect: Option<Rev>,
    /// Mode: real or dry run.
    pub mode: ApplyMode,
    /// Treatment of a function of another source.
    pub ownership: Ownership,
}

/// A function to be deleted, and the conditions of that.
#[derive(Debug, Clone)]
pub struct DeleteFunction {
    /// Its name and its namespace.
    pub name: DeploymentName,
    /// Source that deletes it.
    pub origin: Origin,
    /// Only if the stored one still has this resource version.
    pub expect: Option<Rev>,
    /// Mode: real or dry run.
    pub mode: ApplyMode,
    /// Treatment of a function of another source.
    pub ownership: Ownership,
}

/// Kind of text about a function, for [`FunctionHost::text`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FunctionText {
    /// The log of its last build, then the end of its output.
    Log,
    /// The bill of materials of its artifact (CycloneDX).
    Sbom,
    /// The provenance of its artifact (SLSA).
    Provenance,
    /// The lock that its build came to, where its code has none.
    Lock,
}

/// The functions of a process that builds and runs them; the API works on functions through it.
pub trait FunctionHost: Send + Sync {
    /// Every function, by name.
    fn list(&self) -> Vec<FunctionView>;

    /// The function of this name; `None` if there is none.
    fn get(&self, name: &DeploymentName) -> Option<FunctionView>;

    /// A text about a function; `None`: there is none yet. Blocks.
    fn text(&self, name: &DeploymentName, text: FunctionText) -> Option<String>;

    /// Waits, not for long, until functions can be declared.
    fn ready(&self) -> BoxFuture<'_, Result<(), Error>>;

    /// Functions that were declared by these origins, with their origin.
    fn owned_by(&self, origins: &[&Origin]) -> BTreeMap<DeploymentName, Origin>;

    /// Declares a function.
    fn apply(&self, request: ApplyFunction) -> BoxFuture<'_, Result<Applied, Error>>;

    /// Deletes a function: it is removed from its platform, then forgotten.
    fn delete(&self, request: DeleteFunction) -> BoxFuture<'_, Result<Applied, Error>>;
}
