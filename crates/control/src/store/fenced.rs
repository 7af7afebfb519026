//! A store for one term of leadership: what it writes lands only while the term lasts.
//!
//! Every transaction carries the condition that the leader's key is still the one that began the term. A leader that was
//! paused, cut off or slow may believe in its term after another has begun; the store does not. Before anything is sent
//! the fence is also asked whether the term can still last by this machine's own clock, so that a leader that wakes up
//! after a pause does not even try.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};

use super::{Compare, Entry, Listing, Outcome, Page, Rev, Store, StoreError, Txn, Watch};
use crate::leadership::Fence;

/// A [`Store`] whose writes succeed only within one term.
pub struct Fenced {
    store: Arc<dyn Store>,
    fence: Fence,
}

impl Fenced {
    /// A view of `store` for the term that `fence` stands for.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, fence: Fence) -> Self {
        Self { store, fence }
    }

    /// Adds the condition that the term lasts.
    fn fenced(&self, mut txn: Txn) -> Result<Txn, StoreError> {
        if !self.fence.holds() {
            return Err(StoreError::Deposed);
        }
        let fence: Compare = self.fence.compare();
        txn.compare.push(fence);
        Ok(txn)
    }

    /// Tells a conflict of the caller's from the end of the term.
    async fn outcome(&self, outcome: Outcome) -> Result<Outcome, StoreError> {
        if outcome != Outcome::Conflict {
            return Ok(outcome);
        }
        let leader = self.store.get(self.fence.key()).await?;
        if self.fence.compare().holds(leader.as_ref()) { Ok(Outcome::Conflict) } else { Err(StoreError::Deposed) }
    }
}

impl Store for Fenced {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        self.store.get(key)
    }

    fn list<'a>(&'a self, prefix: &'a str, page: Page) -> BoxFuture<'a, Result<Listing, StoreError>> {
        self.store.list(prefix, page)
    }

    /// [`StoreError::Deposed`] where the term is over. The fence is one comparison more: give at most
    /// [`MAX_OPS`](super::MAX_OPS) - 1.
    fn commit(&self, txn: Txn) -> BoxFuture<'_, Result<Outcome, StoreError>> {
        async move { self.outcome(self.store.commit(self.fenced(txn)?).await?).await }.boxed()
    }

    fn commit_relaxed(&self, txn: Txn) -> BoxFuture<'_, Result<Outcome, StoreError>> {
        async move { self.outcome(self.store.commit_relaxed(self.fenced(txn)?).await?).await }.boxed()
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
