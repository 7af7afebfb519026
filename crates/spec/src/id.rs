//! Names and numbers that identify things.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The longest name a deployment or worker may have, in bytes: what fits a DNS label, so that every dialect can carry it.
pub const MAX_NAME: usize = 63;

/// Why a string is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// The string is empty.
    #[error("a name must not be empty")]
    Empty,
    /// The string is longer than [`MAX_NAME`].
    #[error("a name has at most {MAX_NAME} characters, this one has {0}")]
    TooLong(usize),
    /// A character that is not allowed, and its position in bytes.
    #[error(
        "{0:?} is not allowed in a name: use lower-case letters, digits, '-' and '.', and begin and end with a letter or digit"
    )]
    Character(char),
}

fn check_name(name: &str) -> Result<(), InvalidName> {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let (Some(first), Some(last)) = (name.chars().next(), name.chars().last()) else { return Err(InvalidName::Empty) };
    if name.len() > MAX_NAME {
        return Err(InvalidName::TooLong(name.len()));
    }
    if let Some(c) = name.chars().find(|&c| !(edge(c) || matches!(c, '-' | '.' | '_'))) {
        return Err(InvalidName::Character(c));
    }
    for c in [first, last] {
        if !edge(c) {
            return Err(InvalidName::Character(c));
        }
    }
    Ok(())
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the form and keeps the name; clones share the text.
            pub fn new(name: &str) -> Result<Self, InvalidName> {
                check_name(name).map(|()| Self(name.into()))
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidName;
            fn try_from(name: String) -> Result<Self, InvalidName> {
                Self::new(&name)
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;
            fn from_str(name: &str) -> Result<Self, InvalidName> {
                Self::new(name)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.as_ref().to_owned()
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name_type! {
    /// The name of a deployment: also the model name that clients send.
    DeploymentName
}
name_type! {
    /// The name of a worker; unique among the workers of one system.
    WorkerId
}

/// How often something has been changed. Starts at 1; 0 means "nothing yet".
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);

impl Generation {
    /// The one after this.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
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

/// Why a string is not a SHA-256 digest.
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

/// The name of a revision: the deployment's name and a hash of everything that decides what is loaded
/// (see [`Revision`](crate::Revision)). Written `iris@3f2a9c41d07b`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RevisionId {
    deployment: DeploymentName,
    hash: [u8; 6],
}

/// Why a string is not a revision's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a revision is written NAME@HASH with 12 hex digits, not {0:?}")]
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

    /// The deployment that the revision belongs to.
    #[must_use]
    pub fn deployment(&self) -> &DeploymentName {
        &self.deployment
    }

    /// The twelve hex digits: the model version that clients see when the manifest names none.
    #[must_use]
    pub fn hash(&self) -> String {
        let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('0');
        self.hash.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
    }
}

impl FromStr for RevisionId {
    type Err = InvalidRevisionId;
    fn from_str(text: &str) -> Result<Self, InvalidRevisionId> {
        let invalid = || InvalidRevisionId(text.to_owned());
        let (name, hex) = text.rsplit_once('@').ok_or_else(invalid)?;
        let deployment = DeploymentName::new(name).map_err(|_| invalid())?;
        if hex.len() != 12 || !hex.is_ascii() {
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
        f.pad(&format!("{}@{}", self.deployment, self.hash()))
    }
}

impl fmt::Debug for RevisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["a", "iris", "iris-v2", "a.b_c-1", &"x".repeat(63)] {
            assert!(DeploymentName::new(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "ä", "a b", "a/b", "../x", "a@b", &"x".repeat(64)] {
            assert!(DeploymentName::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn digests_and_revisions_read_back() {
        let digest = Digest([0xab; 32]);
        assert_eq!(digest.to_string().parse(), Ok(digest));
        assert_eq!(format!("sha256:{digest}").parse(), Ok(digest));
        assert!("xyz".parse::<Digest>().is_err());
        let name = DeploymentName::new("iris").expect("a name");
        let id = RevisionId::of(name, b"content");
        assert_eq!(id.to_string().parse(), Ok(id.clone()));
        for bad in ["iris", "iris@12", "iris@zzzzzzzzzzzz", "@0123456789ab", "iris@0123456789äb"] {
            assert!(bad.parse::<RevisionId>().is_err(), "{bad}");
        }
    }
}
