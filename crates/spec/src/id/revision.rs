//! The name of a revision.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{DeploymentName, percent_decode};

/// The name of a revision: the deployment's name and a hash of everything that decides what is loaded
/// (see [`Revision`](crate::Revision)). Written `iris@3f2a9c41d07b`, or `team/iris@3f2a9c41d07b`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RevisionId {
    deployment: DeploymentName,
    hash: [u8; 6],
}

/// The reason why a string is not a revision's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a revision is written NAME@HASH or NAMESPACE/NAME@HASH with 12 hex digits, not {0:?}")]
pub struct InvalidRevisionId(String);

impl RevisionId {
    /// Hashes `content`, a canonical text of what is loaded.
    #[must_use]
    pub fn of(deployment: DeploymentName, content: &[u8]) -> Self {
        let full = Sha256::digest(content);
        let mut hash = [0; 6];
        hash.copy_from_slice(&full[..6]);
        Self { deployment, hash }
    }

    /// One whose hash is known: the inverse of [`hash_bytes`](Self::hash_bytes).
    #[must_use]
    pub fn with_hash(deployment: DeploymentName, hash: [u8; 6]) -> Self {
        Self { deployment, hash }
    }

    /// The hash: what a deployment's revisions differ in.
    #[must_use]
    pub fn hash_bytes(&self) -> [u8; 6] {
        self.hash
    }

    /// The name of the deployment that the revision belongs to.
    #[must_use]
    pub fn deployment(&self) -> &DeploymentName {
        &self.deployment
    }

    /// The written form as the value of a header: the name is percent-coded.
    #[must_use]
    pub fn coded(&self) -> String {
        format!("{}@{}", self.deployment.coded(), self.hash())
    }

    /// Reverses [`coded`](Self::coded); `None`: the text is no revision's name.
    #[must_use]
    pub fn from_coded(text: &str) -> Option<Self> {
        percent_decode(text)?.parse().ok()
    }

    /// The twelve hex digits: the model version that clients see when the manifest names none.
    #[must_use]
    pub fn hash(&self) -> String {
        String::from_utf8_lossy(&self.digits()).into_owned()
    }

    fn digits(&self) -> [u8; 12] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut digits = [0; 12];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(self.hash) {
            pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
        digits
    }
}

impl FromStr for RevisionId {
    type Err = InvalidRevisionId;
    fn from_str(text: &str) -> Result<Self, InvalidRevisionId> {
        let invalid = || InvalidRevisionId(text.to_owned());
        let (name, hex) = text.rsplit_once('@').ok_or_else(invalid)?;
        let deployment = DeploymentName::new(name).map_err(|_| invalid())?;
        if hex.len() != 12 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(invalid());
        }
        let mut hash = [0; 6];
        for (i, byte) in hash.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).map_err(|_| invalid())?;
        }
        Ok(Self { deployment, hash })
    }
}

impl TryFrom<String> for RevisionId {
    type Error = InvalidRevisionId;
    fn try_from(text: String) -> Result<Self, InvalidRevisionId> {
        text.parse()
    }
}

impl From<RevisionId> for String {
    fn from(id: RevisionId) -> Self {
        id.to_string()
    }
}

impl fmt::Display for RevisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.digits();
        let digits = std::str::from_utf8(&digits).unwrap_or_default();
        match f.width() {
            Some(_) => f.pad(&format!("{}@{digits}", self.deployment)),
            None => write!(f, "{}@{digits}", self.deployment),
        }
    }
}

impl fmt::Debug for RevisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
