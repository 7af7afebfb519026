//! The key that the values of a file are encrypted with: AES-256-GCM, a random nonce for each value.

use std::fmt;

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, Nonce, RandomizedNonceKey},
    error::Unspecified,
    rand,
};
use zeroize::Zeroizing;

use crate::envelope::{DataId, NONCE, Sealed, TAG};

/// Bytes of a data key: AES-256.
pub(crate) const LENGTH: usize = 32;

/// A data key. Wiped when it is dropped.
pub(crate) struct DataKey {
    bytes: Zeroizing<[u8; LENGTH]>,
    key: RandomizedNonceKey,
}

impl DataKey {
    /// Generates a key from the system's random numbers.
    pub(crate) fn generate() -> Result<Self, Unspecified> {
        let mut bytes = Zeroizing::new([0; LENGTH]);
        rand::fill(&mut *bytes)?;
        Self::of(&*bytes)
    }

    /// A key from the bytes that were wrapped; an error: they are not [`LENGTH`].
    pub(crate) fn of(bytes: &[u8]) -> Result<Self, Unspecified> {
        let bytes = Zeroizing::new(<[u8; LENGTH]>::try_from(bytes).map_err(|_| Unspecified)?);
        Ok(Self { key: RandomizedNonceKey::new(&AES_256_GCM, &*bytes)?, bytes })
    }

    /// Raw bytes, for wrapping.
    pub(crate) fn bytes(&self) -> &[u8] {
        &*self.bytes
    }

    /// Encrypts `text`; it opens only with the same `bound_to`.
    pub(crate) fn seal(&self, data: DataId, text: &[u8], bound_to: &[u8]) -> Result<Sealed, Unspecified> {
        let mut content = Zeroizing::new(Vec::with_capacity(text.len() + TAG));
        content.extend_from_slice(text);
        let nonce = self.key.seal_in_place_append_tag(Aad::from(bound_to), &mut *content)?;
        let bytes = nonce.as_ref().iter().chain(content.iter()).copied().collect();
        Ok(Sealed { data, bytes })
    }

    /// Decrypts what was sealed with the same `bound_to`.
    pub(crate) fn open(&self, sealed: &Sealed, bound_to: &[u8]) -> Result<Zeroizing<Vec<u8>>, Unspecified> {
        let (nonce, content) = sealed.bytes.split_at_checked(NONCE).ok_or(Unspecified)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce)?;
        let mut text = Zeroizing::new(content.to_vec());
        let length = self.key.open_in_place(nonce, Aad::from(bound_to), &mut text)?.len();
        text.truncate(length);
        Ok(text)
    }
}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataKey")
    }
}
