//! The cluster's certificates: a CA, one certificate per node, and the keys that seal gossip.
//!
//! ```text
//! pki/               made by `Authority::create`; keep ca.key off the nodes
//!   ca.pem  ca.key  gossip.key
//!   NODE/            made by `Authority::issue`; what a node is given, and `Identity::load` reads
//!     ca.pem         one or several CAs that are trusted: two while one replaces the other
//!     node.pem       this node's certificate; its name is the DNS name `NODE.node.berth` in it, and a certificate that
//!                    is called `node-X` is good for a node `X`, too (`certifies`); its roles are the DNS names
//!                    `controller.role.berth`, `worker.role.berth`, `gateway.role.berth`
//!     node.key       its private key, for its owner's eyes only
//!     gossip.key     one key per line, base64 of 32 bytes; the first seals, all open
//! ```
//!
//! Roles are DNS names, as the node's name is: every CA can issue them, every tool shows them, and the name constraints of an
//! intermediate CA hold for them. A certificate without any is of an earlier version, and is refused.
//!
//! Files that somebody else made (another CA, longer chains) work as well: only what they say counts.

mod authority;
mod ca_key;
mod certificate;
mod enrolment;
mod follow;
mod identity;
mod join_token;
mod keyring;
mod revocations;

pub use self::{
    authority::{Authority, DEFAULT_VALIDITY, NodeSubject},
    ca_key::{CaKey, RemoteKey},
    certificate::{NodeCertificate, certifies},
    enrolment::Enrolment,
    identity::Identity,
    join_token::{InvalidJoinToken, JoinToken, fingerprint, fingerprint_of},
    keyring::Keyring,
    revocations::{OwnRevocation, Revocation, Revocations, Revoked},
};

pub(crate) use self::{
    authority::{PUBLIC, SECRET, since_epoch, write},
    keyring::{OVERHEAD, OpenError, Seal},
    revocations::{OpenConnection, RevocationList},
};

use std::path::PathBuf;

use aws_lc_rs::digest::{SHA256, digest};
use berth_spec::Class;

/// The file with the CAs that are trusted.
pub const CA: &str = "ca.pem";
/// The file with the CA's private key.
pub const CA_KEY: &str = "ca.key";
/// The file with a node's certificate, and those between it and the CA.
pub const NODE: &str = "node.pem";
/// The file with a node's private key.
pub const NODE_KEY: &str = "node.key";
/// The file with the keys that seal gossip.
pub const GOSSIP_KEY: &str = "gossip.key";

/// A request for a certificate (PKCS#10, PEM) of this key. It names nobody: who issues decides that.
pub(crate) fn request(key: &rcgen::KeyPair) -> Result<String, PkiError> {
    Ok(rcgen::CertificateParams::default().serialize_request(key)?.pem()?)
}

/// Digest of the CAs that are trusted and the keys of gossip: nodes with the same have the same files.
fn trust(authorities: &[u8], gossip: &[u8]) -> String {
    let digests = [authorities, gossip].map(|file| digest(&SHA256, file));
    digests.iter().flat_map(|digest| digest.as_ref().iter()).map(|byte| format!("{byte:02x}")).collect()
}

/// Suffix of node names inside certificates.
pub const DOMAIN: &str = ".node.berth";

/// Suffix of roles inside certificates.
pub const ROLE_DOMAIN: &str = ".role.berth";

/// Reason why certificates or keys are unusable, with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file could not be read or written; the error names it.
    #[error("{0}")]
    File(#[from] std::io::Error),
    /// There is a CA already.
    #[error("{} is there already: move it away if you really want another CA; nodes of the two would not talk", .0.display())]
    Exists(PathBuf),
    /// A file is not what it should be.
    #[error("{}: {reason}", file.display())]
    Unusable {
        /// Path of the file.
        file: PathBuf,
        /// Problem and remedy.
        reason: String,
    },
    /// A name cannot be in a certificate.
    #[error("a certificate cannot be issued for {name:?}: {reason}")]
    Name {
        /// The name, as it was given.
        name: String,
        /// The rule that it breaks.
        reason: String,
    },
    /// A certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
}

impl PkiError {
    /// Class of the error, which decides what to do next.
    #[must_use]
    pub const fn class(&self) -> Class {
        match self {
            Self::File(_) | Self::Unusable { .. } => Class::Stalled,
            Self::Exists(_) => Class::Conflict,
            Self::Name { .. } => Class::Invalid,
            Self::Make(_) => Class::Internal,
        }
    }

    pub(crate) fn unusable(file: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Self::Unusable { file: file.into(), reason: reason.into() }
    }
}
