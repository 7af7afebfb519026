//! Keys of people and controllers: RSA, of which the public half wraps data keys and the private half unwraps them.
//!
//! | written | the private half is |
//! |---|---|
//! | `file:PATH` or a path | in a file of its owner's (PKCS#8, PEM) |
//! | `pkcs11:token=…;object=…?module-path=…&pin-source=…` | in an HSM, which never hands it out |
//! | `exec:/PATH` | with a KMS, which a program asks |

mod blocking_thread;
mod exec;
mod file;
mod oaep;
mod pem;
mod pkcs11;
mod public;
mod uri;

use std::{collections::BTreeMap, fmt, path::PathBuf};

use berth_spec::Class;
use zeroize::Zeroizing;

pub use self::{
    exec::Exec,
    file::{File, generate},
    pkcs11::{Hsm, HsmSigner},
    public::PublicKey,
    uri::Pkcs11Uri,
};
use crate::envelope::KeyId;

/// Reason why a key cannot be used. Names the key, never the data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the key {key}: {reason}")]
pub struct KeyError {
    /// Key, as the settings write it.
    pub key: String,
    /// Problem and remedy.
    pub reason: String,
    /// True if a retry may help because the key service is unavailable.
    pub transient: bool,
    /// True if the call timed out; other calls to the same service would take as long.
    pub silent: bool,
}

impl KeyError {
    /// Asking again will not help.
    pub(crate) fn refused(key: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { key: key.into(), reason: reason.into(), transient: false, silent: false }
    }

    /// Asking again may help.
    pub(crate) fn absent(key: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { key: key.into(), reason: reason.into(), transient: true, silent: false }
    }

    /// Asking again may help, and takes its time.
    pub(crate) fn silent(key: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { silent: true, ..Self::absent(key, reason) }
    }

    /// Class of the error, which decides what to do next.
    #[must_use]
    pub const fn class(&self) -> Class {
        if self.transient { Class::Waiting { retry_in: std::time::Duration::from_secs(10) } } else { Class::Stalled }
    }
}

/// The keeper of a private key. Blocks: an HSM or a KMS may take its time.
pub trait Decrypt: fmt::Debug + Send + Sync {
    /// Id of the key pair; `None` if the key service decides by the id of each request.
    fn id(&self) -> Option<&KeyId>;

    /// Name for messages, without a PIN.
    fn name(&self) -> String;

    /// The public half, where the keeper tells it.
    fn public(&self) -> Option<PublicKey>;

    /// Unwraps a data key: RSA-OAEP with SHA-256.
    ///
    /// # Errors
    /// The keeper is not there, refuses, or the bytes are not wrapped for this key.
    fn unwrap(&self, id: &KeyId, wrapped: &[u8]) -> Result<Zeroizing<Vec<u8>>, KeyError>;
}

/// Environment variables given to key services. Nothing is inherited from this process.
#[derive(Clone, Default)]
pub struct KeyEnvironment {
    /// Variables that a plug-in may see, and that `pin-source=env:NAME` may name.
    pub environment: BTreeMap<String, String>,
}

impl fmt::Debug for KeyEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.environment.keys()).finish()
    }
}

/// Opens the key that a setting names.
///
/// # Errors
/// No such key, or one that is open to others; with the remedy.
pub fn open(text: &str, around: &KeyEnvironment) -> Result<Box<dyn Decrypt>, KeyError> {
    match text.split_once(':') {
        Some(("file", path)) => Ok(Box::new(File::open(&PathBuf::from(path))?)),
        Some(("pkcs11", _)) => Ok(Box::new(Hsm::open(&text.parse()?, around)?)),
        Some(("exec", path)) => Ok(Box::new(Exec::new(&PathBuf::from(path), around)?)),
        Some((scheme, _)) if !scheme.contains('/') => {
            let reason = "there are no such keys: write file:PATH, pkcs11:… or exec:/PATH";
            Err(KeyError::refused(format!("{scheme}:…"), reason))
        }
        _ => Ok(Box::new(File::open(&PathBuf::from(text))?)),
    }
}
