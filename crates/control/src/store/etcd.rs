//! The store of several machines: etcd (3.4 and later), through a small client of our own.
//!
//! ```text
//! EtcdStore ──▶ keys: prefix added and stripped ──▶ cluster ──▶ one endpoint after another, each a lazy HTTP/2 channel
//!   get, list ▶ read          repeated elsewhere until its time is up            token, require-leader, deadline
//!   commit    ▶ transaction   sent once; a lost answer is resolved by looking    checks: cluster id, revision, errors
//!   watch     ▶ following     one stream; a new one from where it was
//!                 └ assembly  (brain) answers → whole commits
//!   grant, keep_alive, revoke, claim ▶ lease (for leadership)
//! ```
//!
//! What etcd promises (its "KV API guarantees") and this relies on: linearizable reads and transactions, watches that tell
//! every revision in order and whole. What it does not promise and this provides for: an answer that is lost leaves open
//! whether a write was done; a stream may fall silent without an end; old revisions go away by compaction, which is left
//! to the operator. What versions in use get wrong is named where it is dealt with.

mod assembly;
mod auth;
mod cluster;
mod config;
mod error;
mod keys;
mod lease;
mod read;
mod resolve;
mod transaction;
mod version;
mod watch;

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};

pub use config::{Address, ConfigError, EtcdConfig, EtcdCredentials, EtcdTls, Timeouts};
pub use lease::{Claim, Lease, LeaseId};

use super::{Entry, Listing, Outcome, Page, Rev, Store, StoreError, Txn, Watch};
use cluster::Cluster;
use keys::Keys;

/// A [`Store`] in etcd. Clones share connections and what has been seen.
#[derive(Clone)]
pub struct EtcdStore {
    cluster: Arc<Cluster>,
    keys: Keys,
    patience: Timeouts,
}

impl EtcdStore {
    /// Makes the store and reads its revision once, so that a wrong address, certificate or password shows at once.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] where no endpoint answers in time, [`StoreError::Refused`] where it does not let us in.
    pub async fn connect(config: EtcdConfig) -> Result<Self, StoreError> {
        let store = Self {
            keys: Keys::new(&config.prefix),
            patience: config.patience,
            cluster: Arc::new(Cluster::new(&config)?),
        };
        let rev = store.rev().await?;
        tracing::info!(event = "store_connected", endpoints = %store.cluster.addresses(), rev = rev.0);
        Ok(store)
    }

    /// The same store with other timeouts.
    #[must_use]
    pub fn with_patience(&self, patience: Timeouts) -> Self {
        Self { patience, ..self.clone() }
    }
}

impl Store for EtcdStore {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        self.read_one(key).boxed()
    }

    fn list<'a>(&'a self, prefix: &'a str, page: Page) -> BoxFuture<'a, Result<Listing, StoreError>> {
        self.read_page(prefix, page).boxed()
    }

    fn commit(&self, txn: Txn) -> BoxFuture<'_, Result<Outcome, StoreError>> {
        self.transact(txn).boxed()
    }

    fn watch<'a>(&'a self, prefix: &'a str, from: Rev) -> BoxFuture<'a, Result<Watch, StoreError>> {
        self.follow(prefix, from).boxed()
    }

    fn rev(&self) -> BoxFuture<'_, Result<Rev, StoreError>> {
        self.read_rev().boxed()
    }

    /// Compacts up to the last revision at most: etcd always remembers that one.
    fn compact(&self, before: Rev) -> BoxFuture<'_, Result<(), StoreError>> {
        self.forget(before).boxed()
    }
}
