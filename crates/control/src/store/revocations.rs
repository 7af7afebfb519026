//! The stored form of revocations of node certificates.

use berth_peer::pki::Revocation;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    Entry, StoreError,
    layout::{self, FORM},
};

/// The prefix of revocations.
pub const REVOCATIONS: &str = "/revocations/";

/// The key of a revocation.
#[must_use]
pub fn revocation_key(id: &str) -> String {
    format!("{REVOCATIONS}{id}")
}

/// The value of a revocation's key, JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRevocation {
    v: u32,
    /// Certificates, reason and time.
    #[serde(flatten)]
    pub revocation: Revocation,
}

impl StoredRevocation {
    /// Wraps a revocation in the current form.
    #[must_use]
    pub const fn of(revocation: Revocation) -> Self {
        Self { v: FORM, revocation }
    }

    /// Decodes an entry's value. [`StoreError::Corrupt`] if it has another form.
    pub fn read(entry: &Entry) -> Result<Self, StoreError> {
        layout::read(entry)
    }

    /// The value to store, as JSON.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        layout::bytes(self)
    }
}
