//! The stored form of tokens: hashes, so that whoever reads the store holds no token.

use berth_wire::access::TokenRecord;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    Entry, StoreError,
    layout::{self, FORM},
};

/// The prefix of tokens.
pub const TOKENS: &str = "/tokens/";

/// The key of a token.
#[must_use]
pub fn token_key(id: &str) -> String {
    format!("{TOKENS}{id}")
}

/// The value of a token's key, JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredToken {
    v: u32,
    /// Hash, rights and validity.
    #[serde(flatten)]
    pub record: TokenRecord,
}

impl StoredToken {
    /// Wraps a record in the current form.
    #[must_use]
    pub const fn of(record: TokenRecord) -> Self {
        Self { v: FORM, record }
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
