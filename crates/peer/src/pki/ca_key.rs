//! The private key of the CA: in a file, or in a token that signs and never shows it.

use std::{fmt, path::Path, sync::Arc};

use fs_err as fs;
use rcgen::{Error, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm, SigningKey};

use super::PkiError;

/// An ECDSA P-256 key that is kept elsewhere, for example in an HSM. Calls may block for as long as the HSM takes.
pub trait RemoteKey: fmt::Debug + Send + Sync {
    /// The public key: an uncompressed point, 65 bytes that begin with 4 (SEC 1, section 2.3.3).
    fn public(&self) -> &[u8];

    /// Signs the SHA-256 of `message`: `r` and `s` in DER (RFC 5480's `Ecdsa-Sig-Value`).
    ///
    /// # Errors
    /// The token does not answer or refuses, in words.
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, String>;
}

/// The private key of a CA, which signs certificates of nodes.
pub enum CaKey {
    /// From ca.key, in memory.
    File(Box<KeyPair>),
    /// In a token, which signs and gives no key away.
    Remote(Arc<dyn RemoteKey>),
}

impl fmt::Debug for CaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File(_) => "CaKey::File",
            Self::Remote(_) => "CaKey::Remote",
        })
    }
}

impl CaKey {
    /// Makes a new key.
    pub(super) fn generate() -> Result<Self, Error> {
        KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map(Box::new).map(Self::File)
    }

    /// Reads ca.key, a private key in PEM.
    pub(super) fn read(file: &Path) -> Result<Self, PkiError> {
        let key = KeyPair::from_pem(&fs::read_to_string(file)?);
        let key = key.map_err(|error| PkiError::unusable(file, format!("is no private key ({error})")))?;
        Ok(Self::File(Box::new(key)))
    }

    /// Its PEM text; `None`: it is in a token, which does not give it away.
    pub(super) fn pem(&self) -> Option<String> {
        match self {
            Self::File(key) => Some(key.serialize_pem()),
            Self::Remote(_) => None,
        }
    }
}

impl PublicKeyData for CaKey {
    fn der_bytes(&self) -> &[u8] {
        match self {
            Self::File(key) => key.der_bytes(),
            Self::Remote(key) => key.public(),
        }
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        match self {
            Self::File(key) => key.algorithm(),
            Self::Remote(_) => &PKCS_ECDSA_P256_SHA256,
        }
    }
}

impl SigningKey for CaKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        match self {
            Self::File(key) => key.sign(message),
            Self::Remote(key) => key.sign(message).map_err(|why| {
                tracing::error!(event = "ca_key_failed", why, "the token with the CA's key did not sign");
                Error::RemoteKeyError
            }),
        }
    }
}
