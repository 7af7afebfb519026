//! The store: strongly consistent, watchable key-value state, in the shape of etcd so that etcd fits behind it.
//!
//! Keys are text, values are bytes. Every commit that changes something advances one counter, the store's [`Rev`];
//! an entry remembers the revs at which it was created and last modified. A transaction is all or nothing: either every
//! comparison holds and every operation is done, or nothing is. Watches deliver whole transactions, in order, without a
//! gap, or say that they cannot ([`StoreError::Compacted`]).
//!
//! [`memory`] serves tests and simulations, [`embedded`] one machine, [`etcd`] several. [`fenced`] is a store for one term
//! of leadership. [`layout`] says which keys exist and in what form.
//! `tests/it/conformance.rs` holds what every implementation must do.

pub mod aliases;
pub mod embedded;
mod error;
pub mod etcd;
pub mod fenced;
mod history;
pub mod join_tokens;
pub mod layout;
pub mod memory;
pub mod revocations;
pub mod terms;
pub mod tokens;

use std::fmt;

use bytes::Bytes;
use futures::{future::BoxFuture, stream::BoxStream};
use serde::{Deserialize, Serialize};

pub use error::StoreError;

/// The most operations in one transaction: etcd's default. Larger work is cut into several.
pub const MAX_OPS: usize = 128;

/// The most bytes of keys and values in one transaction: etcd's default request limit.
pub const MAX_BYTES: usize = 3 << 19;

/// The most entries in one page of [`Store::list`], whatever is asked for: a start with 100,000 entries takes a hundred reads, and
/// none holds more than some MiB in memory.
pub const MAX_PAGE: usize = 1_000;

/// A point in the store's history: how many commits changed something before and at it. 0: before the first.
/// Users see it as the resource version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rev(pub u64);

impl Rev {
    /// Before anything: in a [`Compare`] it means that the key must not exist. Commits count from 1.
    pub const NONE: Self = Self(0);

    /// The rev of the commit after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Rev {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Key with its value and versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Full key, with the prefix that [`layout`] gives its kind.
    pub key: String,
    /// Value as it was written; the store does not look into it.
    pub value: Bytes,
    /// Rev of the commit that created it; stays until the key is removed.
    pub created: Rev,
    /// Rev of the commit that last wrote it.
    pub modified: Rev,
    /// Number of puts since the entry was created, including the first.
    pub version: u64,
}

/// One write of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Writes a value, whether the key exists or not.
    Put {
        /// Key to write; at most once in a transaction.
        key: String,
        /// New value, which replaces the old one whole.
        value: Bytes,
    },
    /// Removes a key; one that does not exist is no error.
    Delete {
        /// Key to remove; at most once in a transaction.
        key: String,
    },
}

impl Op {
    /// The key that it writes or removes.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Put { key, value } => key.len() + value.len(),
            Self::Delete { key } => key.len(),
        }
    }
}

/// A condition of a transaction. Of a key that does not exist both revs are [`Rev::NONE`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compare {
    /// The key was last modified at this rev.
    Modified {
        /// Key to compare.
        key: String,
        /// Rev that the key must have, [`Rev::NONE`] if it must not exist.
        rev: Rev,
    },
    /// The key was created at this rev, and may have been modified since: it is still the same one.
    Created {
        /// Key to compare.
        key: String,
        /// Rev that the key must have, [`Rev::NONE`] if it must not exist.
        rev: Rev,
    },
}

impl Compare {
    /// The key whose rev it compares.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Modified { key, .. } | Self::Created { key, .. } => key,
        }
    }

    /// True if the condition holds for this entry.
    #[must_use]
    pub fn holds(&self, entry: Option<&Entry>) -> bool {
        match self {
            Self::Modified { rev, .. } => entry.map_or(Rev::NONE, |entry| entry.modified) == *rev,
            Self::Created { rev, .. } => entry.map_or(Rev::NONE, |entry| entry.created) == *rev,
        }
    }
}

/// A transaction: all of `ops` if all of `compare` hold, else nothing. A key occurs in `ops` at most once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Txn {
    /// Conditions that must all hold; at most [`MAX_OPS`].
    pub compare: Vec<Compare>,
    /// Writes and removals, at most [`MAX_OPS`] of them with [`MAX_BYTES`] of keys and values.
    pub ops: Vec<Op>,
}

impl Txn {
    /// Refuses what etcd would refuse.
    fn check(&self) -> Result<(), StoreError> {
        let bytes: usize = self.ops.iter().map(Op::bytes).sum();
        if self.ops.len() > MAX_OPS || self.compare.len() > MAX_OPS || bytes > MAX_BYTES {
            return Err(StoreError::TooLarge { ops: self.ops.len().max(self.compare.len()), bytes });
        }
        let mut keys: Vec<&str> = self.ops.iter().map(Op::key).collect();
        keys.sort_unstable();
        match keys.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(StoreError::DuplicateKey(pair[0].to_owned())),
            None => Ok(()),
        }
    }
}

/// Outcome of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Committed and durable. A transaction that changes nothing gets the current revision.
    Committed(Rev),
    /// A comparison did not hold; nothing was done.
    Conflict,
}

/// Request for one page of [`Store::list`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// Only keys after this one: the last of the page before. `None`: from the first.
    pub after: Option<String>,
    /// At most so many entries; never more than [`MAX_PAGE`]. 0 means [`MAX_PAGE`].
    pub limit: usize,
    /// As of this rev, where the store keeps the past: give the first page's [`Listing::at`], so that all pages are of one
    /// moment. [`Rev::NONE`], or a store that keeps no past: as of now.
    pub at: Rev,
}

impl Page {
    fn size(&self) -> usize {
        if self.limit == 0 { MAX_PAGE } else { self.limit.min(MAX_PAGE) }
    }
}

/// One page of entries, from [`Store::list`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// The entries, in the order of their keys.
    pub entries: Vec<Entry>,
    /// The rev at which this was read. Pages that are read one after the other may differ in it ([`Page::at`]): watch
    /// from the first page's rev on to catch what happened between.
    pub at: Rev,
    /// True if more entries follow.
    pub more: bool,
}

/// Changes of one transaction, as far as a watch covers them. Without changes, nothing watched has changed up to the
/// revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The rev that it made.
    pub rev: Rev,
    /// Changes in the order of the operations.
    pub changes: Vec<Change>,
}

/// Change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Created or written.
    Put(Entry),
    /// Removed.
    Deleted {
        /// Key that was removed.
        key: String,
    },
}

impl Change {
    /// The key that was written or removed.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Put(entry) => &entry.key,
            Self::Deleted { key } => key,
        }
    }
}

/// Commits in order. It ends after an error.
pub type Watch = BoxStream<'static, Result<Commit, StoreError>>;

/// Strongly consistent, watchable key-value state.
pub trait Store: Send + Sync + 'static {
    /// Reads the entry under `key` as of the last commit; `None` if there is none.
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>>;

    /// Lists entries whose keys begin with `prefix`, in order of keys, a page at a time. Returns
    /// [`StoreError::Compacted`] if [`Page::at`] is no longer available: list again from the start, or continue at
    /// the current revision.
    fn list<'a>(&'a self, prefix: &'a str, page: Page) -> BoxFuture<'a, Result<Listing, StoreError>>;

    /// Does a transaction, all or nothing. When it returns [`Outcome::Committed`], a crash does not undo it.
    fn commit(&self, txn: Txn) -> BoxFuture<'_, Result<Outcome, StoreError>>;

    /// Does a transaction like [`commit`](Self::commit), but may answer before it is durable: a crash may undo it together
    /// with those that were committed like this after it. The next `commit` makes it durable. For what can be found out
    /// again. A store that others read has to be durable at once, as by default.
    fn commit_relaxed(&self, txn: Txn) -> BoxFuture<'_, Result<Outcome, StoreError>> {
        self.commit(txn)
    }

    /// Every commit at `from` or later that touches keys that begin with `prefix`: those that were, then those to come.
    fn watch<'a>(&'a self, prefix: &'a str, from: Rev) -> BoxFuture<'a, Result<Watch, StoreError>>;

    /// Reads the rev of the last commit; [`Rev::NONE`] in an empty store.
    fn rev(&self) -> BoxFuture<'_, Result<Rev, StoreError>>;

    /// Forgets the history before `before`; what is kept under keys stays. Watches from before it fail.
    fn compact(&self, before: Rev) -> BoxFuture<'_, Result<(), StoreError>>;
}
