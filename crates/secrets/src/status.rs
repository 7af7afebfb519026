//! Status of secrets: everything that people may see, without values.

use std::fmt;

use berth_spec::{Generation, Time, WorkerId, credential::Kind};

/// Origin of a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backend {
    /// An encrypted file of the registry.
    File,
    /// HashiCorp Vault or OpenBao.
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

/// Status of one secret of one worker. Has no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretStatus {
    /// Worker that uses the secret.
    pub worker: WorkerId,
    /// Name of the secret in its file or configuration.
    pub name: String,
    /// Its type; `None` where not even that could be read.
    pub kind: Option<Kind>,
    /// Origin of the secret.
    pub backend: Backend,
    /// The ids of the keys that a file is wrapped for, or the lease of Vault.
    pub held_by: String,
    /// The number of the set that it is in; 0 if it is in none.
    pub generation: Generation,
    /// Time of the last decryption, read or renewal.
    pub renewed: Option<Time>,
    /// Time at which it ends by itself, as the end of a lease; `None`: it has none.
    pub expires: Option<Time>,
    /// Current problem, and the action taken.
    pub problem: Option<String>,
}
