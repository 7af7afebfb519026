//! The stored form of how far the Git source has got. The only writer is the source of the leader.

use berth_spec::Time;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    Entry, StoreError,
    layout::{self, FORM},
};

/// Progress of the Git source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredSource {
    v: u32,
    /// `URL#BRANCH`: the owner of what it declared.
    pub origin: String,
    /// The last good commit: 40 or 64 hex digits.
    pub applied: String,
    /// Time at which the commit was applied, in nanoseconds since 1970.
    pub at: u64,
    /// Deployments disabled by a commit that is not applied yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halted: Option<StoredHalt>,
}

/// Deployments disabled by a commit that is not applied yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredHalt {
    /// The commit: 40 or 64 hex digits.
    pub commit: String,
    /// Deployments, by their ids.
    pub ids: Vec<String>,
}

impl StoredSource {
    /// For a commit that has just come into force.
    #[must_use]
    pub fn new(origin: String, applied: String, at: Time) -> Self {
        Self { v: FORM, origin, applied, at: at.0, halted: None }
    }

    /// The same, with what is disabled by a commit that is not in force.
    #[must_use]
    pub fn with_halted(self, halted: Option<StoredHalt>) -> Self {
        Self { halted, ..self }
    }

    /// The value to store.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        layout::bytes(self)
    }

    /// Decodes an entry.
    pub fn read(entry: &Entry) -> Result<Self, StoreError> {
        layout::read(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Rev;

    #[test]
    fn it_comes_back_as_it_was() {
        let stored = StoredSource::new("https://h/r.git#main".to_owned(), "a".repeat(40), Time(7));
        let entry = Entry {
            key: layout::GIT_SOURCE.to_owned(),
            value: stored.bytes(),
            created: Rev(1),
            modified: Rev(1),
            version: 1,
        };
        assert_eq!(StoredSource::read(&entry).expect("it reads"), stored);
        let halted = StoredHalt { commit: "b".repeat(40), ids: vec!["one".to_owned()] };
        let stored = StoredSource { halted: Some(halted), ..stored };
        let entry = Entry { value: stored.bytes(), ..entry };
        assert_eq!(StoredSource::read(&entry).expect("it reads"), stored);
    }
}
