//! Writes a status into its object by compare-and-swap.
//!
//! ```text
//! read ──▶ another desired state? ──yes──▶ Superseded: the watch tells it, and its own status follows
//!   ▲           │ no
//!   │           ▼
//!   └─conflict─ put, if the object was not modified since
//! ```
//! A put names the revision that was read, so that no change of a person is undone, and a deleted object stays deleted.

use berth_control::store::{Compare, Entry, Op, Outcome, Rev, Store, StoreError, Txn};
use bytes::Bytes;

use crate::{
    deployment::{Identity, identity_of},
    object,
    status::Status,
};

/// Attempts before the watch is awaited: more conflicts in a row mean that a person writes all the time.
const ATTEMPTS: usize = 5;

/// Outcome of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// The object has the status, as of this revision.
    Done(Rev),
    /// The object holds another desired state, or was changed too often.
    Superseded,
    /// The object is gone.
    Gone,
}

/// Attempt to write a status into an object that was read.
///
/// # Errors
/// [`Written`] where nothing is to be written.
pub fn attempt(key: &str, found: Option<&Entry>, identity: &Identity, status: &Status) -> Result<Txn, Written> {
    let entry = found.ok_or(Written::Gone)?;
    if identity_of(&entry.value).as_ref() != Some(identity) {
        return Err(Written::Superseded);
    }
    let text = object::with_status(&entry.value, status).ok_or(Written::Superseded)?;
    if text == entry.value {
        return Err(Written::Done(entry.modified));
    }
    let compare = vec![Compare::Modified { key: key.to_owned(), rev: entry.modified }];
    Ok(Txn { compare, ops: vec![Op::Put { key: key.to_owned(), value: Bytes::from(text) }] })
}

/// Writes `status` into the object under `key`, if that still holds the desired state `identity`.
///
/// # Errors
/// Those of the store. After an uncertain one, write again: the same status twice is one.
pub async fn write(store: &dyn Store, key: &str, identity: &Identity, status: &Status) -> Result<Written, StoreError> {
    for _ in 0..ATTEMPTS {
        let found = store.get(key).await?;
        match attempt(key, found.as_ref(), identity, status) {
            Err(done) => return Ok(done),
            Ok(txn) => {
                if let Outcome::Committed(rev) = store.commit(txn).await? {
                    return Ok(Written::Done(rev));
                }
            }
        }
    }
    Ok(Written::Superseded)
}

/// Deletes an object whose end a person asked for, if it still asks for it.
///
/// # Errors
/// Those of the store.
pub async fn remove(store: &dyn Store, key: &str, identity: &Identity) -> Result<Written, StoreError> {
    for _ in 0..ATTEMPTS {
        let Some(entry) = store.get(key).await? else { return Ok(Written::Gone) };
        if identity_of(&entry.value).as_ref() != Some(identity) {
            return Ok(Written::Superseded);
        }
        let compare = vec![Compare::Modified { key: key.to_owned(), rev: entry.modified }];
        let txn = Txn { compare, ops: vec![Op::Delete { key: key.to_owned() }] };
        if let Outcome::Committed(_) = store.commit(txn).await? {
            return Ok(Written::Gone);
        }
    }
    Ok(Written::Superseded)
}
