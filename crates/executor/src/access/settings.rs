//! Settings of access.

use std::path::PathBuf;

use berth_spec::{DeploymentName, UseLimits};

use crate::template::PathTemplate;

/// Access to all ports.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AccessSettings {
    /// Roles of certificates and of tokens of issuers, as `--access-file` has them.
    pub(crate) file: Option<PathBuf>,
    /// Berth's own tokens: their hashes and roles.
    pub(crate) tokens: Option<PathBuf>,
    /// The model that roles are asked for.
    pub(crate) model: DeploymentName,
    /// Paths that everybody may ask for.
    pub(crate) open: Vec<PathTemplate>,
    /// Limits of each principal that has none of its own.
    pub(crate) limits: UseLimits,
}
