//! The public half of a key: for everybody who may add secrets.

use std::{fmt, path::Path};

use aws_lc_rs::{
    encoding::{AsDer as _, PublicKeyX509Der},
    error::Unspecified,
    rsa::{OAEP_SHA256_MGF1SHA256, OaepPublicEncryptingKey, PublicEncryptingKey, PublicKeyComponents},
};
use fs_err as fs;

use super::{KeyError, pem};
use crate::envelope::KeyId;

/// The least bits of a key that secrets are encrypted for: they stay in a repository's history for good.
const LEAST_BITS: usize = 4096;

/// An RSA public key of 4096 bits or more, and its id.
#[derive(Clone)]
pub struct PublicKey {
    id: KeyId,
    spki: Vec<u8>,
    key: PublicEncryptingKey,
}

impl PublicKey {
    /// Reads a public key: PEM, as `berth secrets keygen` and `openssl rsa -pubout` write it.
    ///
    /// # Errors
    /// There is none, or one that is not RSA of 4096 bits or more.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let name = path.display().to_string();
        let text = fs::read_to_string(path).map_err(|error| KeyError::refused(&name, error.to_string()))?;
        Self::from_pem(&text).map_err(|reason| KeyError::refused(name, reason))
    }

    /// From PEM.
    ///
    /// # Errors
    /// What it is instead.
    pub fn from_pem(text: &str) -> Result<Self, String> {
        match pem::read(text) {
            Some(("PUBLIC KEY", content)) => {
                let key = PublicEncryptingKey::from_der(&content).map_err(|_| "it is no RSA key".to_owned())?;
                Self::of(key)
            }
            Some((label, _)) if label.contains("PRIVATE") => {
                Err("this is a private key: to encrypt give its public half, and keep this one to yourself".to_owned())
            }
            Some(("RSA PUBLIC KEY", _)) => {
                Err("it is in the PKCS#1 form: convert it with openssl rsa -RSAPublicKey_in -pubout".to_owned())
            }
            Some((label, _)) => Err(format!("it holds a {label}, not a PUBLIC KEY")),
            None => Err("it is no PEM file: it needs BEGIN PUBLIC KEY and END PUBLIC KEY lines".to_owned()),
        }
    }

    /// From modulus and exponent, as an HSM tells them.
    pub(super) fn from_parts(modulus: &[u8], exponent: &[u8]) -> Result<Self, String> {
        let trimmed = |bytes: &[u8]| bytes.iter().copied().skip_while(|byte| *byte == 0).collect::<Vec<_>>();
        let parts = PublicKeyComponents { n: trimmed(modulus), e: trimmed(exponent) };
        let key: Result<PublicEncryptingKey, _> = parts.try_into();
        Self::of(key.map_err(|_: Unspecified| "it is no sound RSA key".to_owned())?)
    }

    pub(super) fn of(key: PublicEncryptingKey) -> Result<Self, String> {
        if key.key_size_bits() < LEAST_BITS {
            return Err(format!("it has {} bits: secrets need RSA of {LEAST_BITS} or more", key.key_size_bits()));
        }
        let der: PublicKeyX509Der<'_> = key.as_der().map_err(|_| "it cannot be written down".to_owned())?;
        let spki = der.as_ref().to_vec();
        Ok(Self { id: KeyId::of(&spki), spki, key })
    }

    /// Id, by which files name their recipients.
    #[must_use]
    pub const fn id(&self) -> &KeyId {
        &self.id
    }

    /// Encodes the key as PEM (`PUBLIC KEY`), which [`from_pem`](Self::from_pem) reads.
    #[must_use]
    pub fn to_pem(&self) -> String {
        pem::write("PUBLIC KEY", &self.spki).to_string()
    }

    /// Wraps a data key: RSA-OAEP with SHA-256, without a label.
    pub(crate) fn wrap(&self, data_key: &[u8]) -> Result<Vec<u8>, Unspecified> {
        let key = OaepPublicEncryptingKey::new(self.key.clone())?;
        let mut wrapped = vec![0; key.ciphertext_size()];
        let length = key.encrypt(&OAEP_SHA256_MGF1SHA256, data_key, &mut wrapped, None)?.len();
        wrapped.truncate(length);
        Ok(wrapped)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PublicKey").field(&self.id.as_str()).finish()
    }
}
