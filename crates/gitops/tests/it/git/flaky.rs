//! A store that now and then does not say how far the source has got.

use std::sync::atomic::{AtomicUsize, Ordering};

use berth_control::store::{Entry, Listing, Outcome, Page, Rev, Store, StoreError, Txn, Watch, memory::MemoryStore};
use futures::future::BoxFuture;

pub(super) struct Flaky {
    store: MemoryStore,
    /// Questions that fail, counted from 1.
    fails: Vec<usize>,
    asked: AtomicUsize,
}

impl Flaky {
    pub(super) fn new(fails: &[usize]) -> Self {
        Self { store: MemoryStore::default(), fails: fails.to_vec(), asked: AtomicUsize::new(0) }
    }

    /// The number of failures so far.
    pub(super) fn failed(&self) -> usize {
        let asked = self.asked.load(Ordering::Relaxed);
        self.fails.iter().filter(|nth| **nth <= asked).count()
    }
}

impl Store for Flaky {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        if key == "/sources/git/checkpoint" && self.fails.contains(&(self.asked.fetch_add(1, Ordering::Relaxed) + 1)) {
            return Box::pin(async { Err(StoreError::Busy { retry_in: std::time::Duration::from_millis(1) }) });
        }
        self.store.get(key)
    }

    fn list<'a>(&'a self, prefix: &'a str, page: Page) -> BoxFuture<'a, Result<Listing, StoreError>> {
        self.store.list(prefix, page)
    }

    fn commit(&self, txn: Txn) -> BoxFuture<'_, Result<Outcome, StoreError>> {
        self.store.commit(txn)
    }

    fn watch<'a>(&'a self, prefix: &'a str, from: Rev) -> BoxFuture<'a, Result<Watch, StoreError>> {
        self.store.watch(prefix, from)
    }

    fn rev(&self) -> BoxFuture<'_, Result<Rev, StoreError>> {
        self.store.rev()
    }

    fn compact(&self, before: Rev) -> BoxFuture<'_, Result<(), StoreError>> {
        self.store.compact(before)
    }
}
