//! The name of a worker.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

/// The longest name of a worker, in bytes: it is a DNS label in the certificate of its node.
pub const MAX_WORKER_ID: usize = 63;

/// The reason that a string is not the name of a worker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidWorkerId {
    /// The string is empty.
    #[error("a name must not be empty")]
    Empty,
    /// The string is longer than [`MAX_WORKER_ID`].
    #[error("a name has at most {MAX_WORKER_ID} characters, this one has {0}")]
    TooLong(usize),
    /// A character that is not allowed.
    #[error(
        "{0:?} is not allowed in a name: use lower-case letters, digits, '-' and '.', and begin and end with a letter or digit"
    )]
    Character(char),
}

/// The name of a worker; unique among the workers of one system.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct WorkerId(Arc<str>);

impl WorkerId {
    /// Checks the form and keeps the name; clones share the text.
    pub fn new(name: &str) -> Result<Self, InvalidWorkerId> {
        let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let (Some(first), Some(last)) = (name.chars().next(), name.chars().last()) else {
            return Err(InvalidWorkerId::Empty);
        };
        if name.len() > MAX_WORKER_ID {
            return Err(InvalidWorkerId::TooLong(name.len()));
        }
        if let Some(c) = name.chars().find(|&c| !(edge(c) || matches!(c, '-' | '.' | '_'))) {
            return Err(InvalidWorkerId::Character(c));
        }
        match [first, last].into_iter().find(|&c| !edge(c)) {
            Some(c) => Err(InvalidWorkerId::Character(c)),
            None => Ok(Self(name.into())),
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for WorkerId {
    type Error = InvalidWorkerId;
    fn try_from(name: String) -> Result<Self, InvalidWorkerId> {
        Self::new(&name)
    }
}

impl FromStr for WorkerId {
    type Err = InvalidWorkerId;
    fn from_str(name: &str) -> Result<Self, InvalidWorkerId> {
        Self::new(name)
    }
}

impl From<WorkerId> for String {
    fn from(name: WorkerId) -> Self {
        name.0.as_ref().to_owned()
    }
}

impl std::borrow::Borrow<str> for WorkerId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
