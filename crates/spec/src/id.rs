//! Names and numbers that identify things. docs/names.md is the rule of names for readers.

mod coded;
mod name;
mod revision;
#[cfg(test)]
mod tests;
mod worker;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

pub use self::{
    coded::{percent_decode, percent_encode},
    name::{DEFAULT_NAMESPACE, DeploymentName, InvalidName, MAX_NAME, MAX_NAMESPACE, NameKey, Namespace},
    revision::{InvalidRevisionId, RevisionId},
    worker::{InvalidWorkerId, MAX_WORKER_ID, WorkerId},
};

/// The number of changes of something. Starts at 1; 0 means "nothing yet".
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);

impl Generation {
    /// The highest that is taken over from another node. With a plan in each microsecond it takes 140 years to get there: a
    /// higher one was made up. Own numbers go on beyond it, for as long again and again.
    pub const MOST_BELIEVED: Self = Self(1 << 52);

    /// The generation of the next change.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The same, where another node says it; `None`: no leader can have got there.
    #[must_use]
    pub fn believed(self) -> Option<Self> {
        (self <= Self::MOST_BELIEVED).then_some(self)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A SHA-256 digest of an artifact's bytes; written as 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(pub [u8; 32]);

/// The reason why a string is not a SHA-256 digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a SHA-256 digest is 64 hex digits (optionally after \"sha256:\"), not {0:?}")]
pub struct InvalidDigest(String);

impl Digest {
    /// The first twelve hex digits, for people.
    #[must_use]
    pub fn short(&self) -> String {
        self.to_string()[..12].to_owned()
    }
}

impl FromStr for Digest {
    type Err = InvalidDigest;
    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        let hex = text.strip_prefix("sha256:").unwrap_or(text).as_bytes();
        let mut digest = [0; 32];
        if hex.len() != 64 {
            return Err(InvalidDigest(text.to_owned()));
        }
        for (byte, pair) in digest.iter_mut().zip(hex.chunks_exact(2)) {
            let nibble = |c: u8| char::from(c).to_digit(16);
            match (nibble(pair[0]), nibble(pair[1])) {
                (Some(high), Some(low)) => *byte = u8::try_from(high * 16 + low).unwrap_or(0),
                _ => return Err(InvalidDigest(text.to_owned())),
            }
        }
        Ok(Self(digest))
    }
}

impl TryFrom<String> for Digest {
    type Error = InvalidDigest;
    fn try_from(text: String) -> Result<Self, InvalidDigest> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
