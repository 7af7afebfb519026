//! The text that stands in a file where a secret would: `ENC[AES256,d1,BASE64]`.
//!
//! `d1` names the data key, of which a file has one or several; the rest is nonce (12 bytes), ciphertext, tag (16 bytes).

use std::{fmt, str::FromStr};

use aws_lc_rs::digest::{SHA256, digest};
use base64::{Engine as _, engine::general_purpose::STANDARD};

/// Bytes of a nonce: those of AES-GCM.
pub(crate) const NONCE: usize = 12;
/// Bytes of a tag: the whole one of AES-GCM.
pub(crate) const TAG: usize = 16;

/// The longest one, in characters: what the longest value makes.
const MAX_ENCODED_CHARS: usize = 128 << 10;

/// Number of a data key in a file: `d1`, `d2`, …
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataId(pub u32);

impl fmt::Display for DataId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "d{}", self.0)
    }
}

impl FromStr for DataId {
    type Err = InvalidEnvelope;
    fn from_str(text: &str) -> Result<Self, InvalidEnvelope> {
        let digits = text.strip_prefix('d').filter(|digits| {
            !digits.starts_with('0') && digits.len() <= 9 && digits.bytes().all(|digit| digit.is_ascii_digit())
        });
        digits.and_then(|digits| digits.parse().ok()).map(Self).ok_or(InvalidEnvelope::DataKey)
    }
}

/// Id of a key pair: the first 16 hex digits of SHA-256 over its public half (SPKI, DER).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(String);

impl KeyId {
    /// Hashes the public half of a key, in the form SPKI in DER.
    #[must_use]
    pub fn of(spki: &[u8]) -> Self {
        let hash = digest(&SHA256, spki);
        Self(hash.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
    }

    /// The 16 hex digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for KeyId {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        if text.len() == 16 && text.bytes().all(hex) {
            Ok(Self(text.to_owned()))
        } else {
            Err("an id is 16 hexadecimal digits, as `berth secrets show` prints them".to_owned())
        }
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Encrypted value of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// Number of the data key that it was encrypted with.
    pub data: DataId,
    /// Nonce, ciphertext and tag.
    pub(crate) bytes: Vec<u8>,
}

/// Reason why a text is not an encrypted value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEnvelope {
    /// Malformed text.
    #[error("the value is not of the form ENC[AES256,dN,BASE64]")]
    Form,
    /// Not a data key's name.
    #[error("a data key is called d1, d2, …")]
    DataKey,
    /// The last part is no base64.
    #[error("the last part is not base64; the value may be truncated or changed")]
    Base64,
    /// Shorter than nonce and tag, or longer than the longest value.
    #[error("the value is too short or too long for an encrypted value")]
    Length,
}

impl Sealed {
    /// True if a text claims to be an encrypted value.
    #[must_use]
    pub fn looks_like(text: &str) -> bool {
        text.starts_with("ENC[")
    }
}

impl fmt::Display for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ENC[AES256,{},{}]", self.data, STANDARD.encode(&self.bytes))
    }
}

impl FromStr for Sealed {
    type Err = InvalidEnvelope;
    fn from_str(text: &str) -> Result<Self, InvalidEnvelope> {
        let inner = text.strip_prefix("ENC[AES256,").and_then(|rest| rest.strip_suffix(']'));
        let (data, encoded) = inner.and_then(|inner| inner.split_once(',')).ok_or(InvalidEnvelope::Form)?;
        let data = data.parse()?;
        if encoded.len() > MAX_ENCODED_CHARS {
            return Err(InvalidEnvelope::Length);
        }
        let bytes = STANDARD.decode(encoded).map_err(|_| InvalidEnvelope::Base64)?;
        if bytes.len() < NONCE + TAG { Err(InvalidEnvelope::Length) } else { Ok(Self { data, bytes }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_envelope_is_told_apart() {
        let short = STANDARD.encode([0; NONCE + TAG - 1]);
        for (text, error) in [
            ("ENC[AES256,encrypted_value_here]", InvalidEnvelope::Form),
            ("ENC[AES128,d1,AAAA]", InvalidEnvelope::Form),
            ("ENC[AES256,d0,AAAA]", InvalidEnvelope::DataKey),
            ("ENC[AES256,d01,AAAA]", InvalidEnvelope::DataKey),
            ("ENC[AES256,1,AAAA]", InvalidEnvelope::DataKey),
            ("ENC[AES256,d9999999999,AAAA]", InvalidEnvelope::DataKey),
            ("ENC[AES256,d1,A A]", InvalidEnvelope::Base64),
            (&*format!("ENC[AES256,d1,{short}]"), InvalidEnvelope::Length),
            ("ENC[AES256,d1,AAAA", InvalidEnvelope::Form),
        ] {
            assert_eq!(text.parse::<Sealed>(), Err(error), "{text}");
        }
    }
}
