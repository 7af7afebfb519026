//! What people may see of secrets: everything but their values.

use std::fmt;

use berth_spec::{Generation, Time, WorkerId, credential::Kind};

/// Where a secret comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backend {
    /// An encrypted file of the registry.
    File,
    /// Vault.
    Vault,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::File => "file",
            Self::Vault => "vault",
        })
    }
}

/// What people may see of one secret of one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretStatus {
    /// Whose.
    pub worker: WorkerId,
    /// Its name.
    pub name: String,
    /// Its type; `None` where not even that could be read.
    pub kind: Option<Kind>,
    /// Where it comes from.
    pub backend: Backend,
    /// The ids of the keys that a file is wrapped for, or the lease of Vault.
    pub held_by: String,
    /// The number of the set that it is in; 0 if it is in none.
    pub generation: Generation,
    /// When it was last decrypted, read or renewed.
    pub renewed: Option<Time>,
    /// When it ends by itself.
    pub expires: Option<Time>,
    /// What is wrong, and what is being done about it.
    pub problem: Option<String>,
}
