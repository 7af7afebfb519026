//! A store that forgets everything when it goes: for tests and simulations.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use tokio::sync::watch;

use super::{
    Change, Commit, Entry, Listing, Op, Outcome, Page, Rev, Store, StoreError, Txn, Watch,
    history::{self, CHUNK, CommitHistory},
};

/// Commits that watches can go back to. A test that needs [`StoreError::Compacted`] calls [`Store::compact`].
const HISTORY: usize = 100_000;

/// A [`Store`] in memory, which ends with the process: for tests and simulations.
pub struct MemoryStore {
    shared: Arc<Shared>,
    current: watch::Sender<Rev>,
}

struct Shared(Mutex<State>);

#[derive(Default)]
struct State {
    rev: Rev,
    entries: BTreeMap<String, Entry>,
    history: VecDeque<Commit>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self { shared: Arc::new(Shared(Mutex::default())), current: watch::Sender::new(Rev::NONE) }
    }
}

impl Shared {
    /// Nothing panics under the lock, and a half-done commit cannot be seen: a poisoned lock is as good as another.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn commit(&mut self, txn: Txn) -> Outcome {
        if !txn.compare.iter().all(|compare| compare.holds(self.entries.get(compare.key()))) {
            return Outcome::Conflict;
        }
        let rev = self.rev.next();
        let changes: Vec<Change> = txn.ops.into_iter().filter_map(|op| self.apply(op, rev)).collect();
        if !changes.is_empty() {
            self.rev = rev;
            self.history.push_back(Commit { rev, changes });
            if self.history.len() > HISTORY {
                self.history.pop_front();
            }
        }
        Outcome::Committed(self.rev)
    }

    fn apply(&mut self, op: Op, rev: Rev) -> Option<Change> {
        match op {
            Op::Put { key, value } => Some(Change::Put(self.put(key, value, rev))),
            Op::Delete { key } => self.entries.remove(&key).map(|_| Change::Deleted { key }),
        }
    }

    fn put(&mut self, key: String, value: Bytes, rev: Rev) -> Entry {
        let (created, version) = self.entries.get(&key).map_or((rev, 1), |old| (old.created, old.version + 1));
        let entry = Entry { key: key.clone(), value, created, modified: rev, version };
        self.entries.insert(key, entry.clone());
        entry
    }

    /// The oldest rev that a watch can start from.
    fn oldest(&self) -> Rev {
        self.history.front().map_or(self.rev.next(), |commit| commit.rev)
    }

    fn read(&self, from: Rev) -> Result<Vec<Commit>, StoreError> {
        let oldest = self.oldest();
        if from < oldest {
            return Err(StoreError::Compacted { oldest });
        }
        let skip = usize::try_from(from.0 - oldest.0).unwrap_or(usize::MAX);
        Ok(self.history.iter().skip(skip).take(CHUNK).cloned().collect())
    }
}

impl CommitHistory for Shared {
    fn read(self: Arc<Self>, from: Rev) -> BoxFuture<'static, Result<Vec<Commit>, StoreError>> {
        async move { self.lock().read(from) }.boxed()
    }
}

impl Store for MemoryStore {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        async move { Ok(self.shared.lock().entries.get(key).cloned()) }.boxed()
    }

    fn list<'a>(&'a self, prefix: &'a str, page: Page) -> BoxFuture<'a, Result<Listing, StoreError>> {
        async move {
            let state = self.shared.lock();
            let from = page.after.as_deref().map_or(prefix, |after| after.max(prefix)).to_owned();
            let mut found = state
                .entries
                .range(from..)
                .filter(|(key, _)| page.after.as_ref() != Some(key))
                .take_while(|(key, _)| key.starts_with(prefix))
                .map(|(_, entry)| entry);
            let entries: Vec<Entry> = found.by_ref().take(page.size()).cloned().collect();
            Ok(Listing { entries, at: state.rev, more: found.next().is_some() })
        }
        .boxed()
    }

    fn commit(&self, txn: Txn) -> BoxFuture<'_, Result<Outcome, StoreError>> {
        async move {
            txn.check()?;
            let mut state = self.shared.lock();
            let outcome = state.commit(txn);
            self.current.send_replace(state.rev);
            Ok(outcome)
        }
        .boxed()
    }

    fn watch<'a>(&'a self, prefix: &'a str, from: Rev) -> BoxFuture<'a, Result<Watch, StoreError>> {
        async move {
            let oldest = self.shared.lock().oldest();
            if Rev(from.0.max(1)) < oldest {
                return Err(StoreError::Compacted { oldest });
            }
            Ok(history::follow(Arc::clone(&self.shared), self.current.subscribe(), prefix, from))
        }
        .boxed()
    }

    fn rev(&self) -> BoxFuture<'_, Result<Rev, StoreError>> {
        async move { Ok(self.shared.lock().rev) }.boxed()
    }

    fn compact(&self, before: Rev) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            let mut state = self.shared.lock();
            while state.history.front().is_some_and(|commit| commit.rev < before) {
                state.history.pop_front();
            }
            Ok(())
        }
        .boxed()
    }
}
