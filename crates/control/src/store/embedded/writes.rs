//! Writes to the file, one at a time: by the writer thread, and of relaxed commits by their callers while that one is idle.
//!
//! ```text
//! Clean ──group of relaxed commits──▶ Unflushed{since} ──other commit, a pause, or the end──▶ Clean
//! ```
//! Relaxed commits are visible at once and durable with the next flush. Where a flush fails, the file is opened again at
//! its last durable state: relaxed commits are lost as in a crash, and revs go on after the last that was acknowledged, so
//! that no watch takes a new commit for one that it has seen.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError},
    time::Instant,
};

use redb::{Database, Durability, ReadableTable, Table, WriteTransaction};
use tokio::sync::{Notify, watch};

use super::{KV, LOG, META, codec, failed, file::File};
use crate::store::{Change, Commit, Entry, Op, Outcome, Rev, StoreError, Txn};

/// Commits that stay in the log for watches to go back to: a client that missed fewer goes on, one that missed more lists again,
/// and the log on disk is bounded.
const LOG_KEPT: u64 = 20_000;

/// The side of the store that writes.
pub(super) struct Writes {
    file: Arc<File>,
    current: watch::Sender<Rev>,
    /// Held while something is written.
    writing: Mutex<()>,
    /// Since when a relaxed commit waits to be made durable. Locked for a moment; changed by who writes.
    unflushed: Mutex<Option<Instant>>,
    /// Told when a caller's own commit is the first that waits.
    begun: Notify,
}

/// A command without its caller: whatever becomes of the work, the caller is still there to be answered.
pub(super) enum Work {
    Commit(Txn),
    Compact(Rev),
}

impl Writes {
    pub(super) fn new(file: Arc<File>, current: watch::Sender<Rev>) -> Self {
        Self { file, current, writing: Mutex::default(), unflushed: Mutex::default(), begun: Notify::new() }
    }

    /// Since when a relaxed commit waits to be made durable.
    pub(super) fn unflushed(&self) -> Option<Instant> {
        *locked(&self.unflushed)
    }

    /// Waits until a caller's own commit is the first that waits to be made durable.
    pub(super) async fn begun(&self) {
        self.begun.notified().await;
    }

    /// Does all of the work in one transaction. On an error nothing of it was acknowledged.
    pub(super) fn write(&self, works: Vec<Work>, durability: Durability) -> Result<Vec<Outcome>, StoreError> {
        let held = locked(&self.writing);
        self.write_alone(works, durability, &held)
    }

    /// Does a relaxed commit on this thread: two switches of threads less in a miss. Gives it back while something else is written or the
    /// file is closed, for which a caller should not wait.
    pub(super) fn try_relaxed(&self, txn: Txn) -> Result<Result<Outcome, StoreError>, Txn> {
        let held = match self.writing.try_lock() {
            Ok(held) if self.file.is_open() => held,
            Ok(_) | Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => return Err(txn),
        };
        let first = self.unflushed().is_none();
        let outcomes = self.write_alone(vec![Work::Commit(txn)], Durability::None, &held);
        if first && self.unflushed().is_some() {
            self.begun.notify_one();
        }
        Ok(outcomes.and_then(|outcomes| outcomes.into_iter().next().ok_or_else(|| failed("a commit has no outcome"))))
    }

    /// Makes relaxed commits durable, if there are any; true if there were.
    pub(super) fn flush(&self) -> bool {
        let _held = locked(&self.writing);
        if self.unflushed().is_none() {
            return false;
        }
        let flushed = self.file.with(|database| database.begin_write().map_err(failed)?.commit().map_err(failed));
        if let Err(error) = flushed {
            tracing::error!(event = "store_flush_failed", %error, "the last plans of on-demand models are not stored");
        }
        *locked(&self.unflushed) = None;
        true
    }

    fn write_alone(
        &self,
        works: Vec<Work>,
        durability: Durability,
        _held: &MutexGuard<'_, ()>,
    ) -> Result<Vec<Outcome>, StoreError> {
        let (acknowledged, count) = (*self.current.borrow(), works.len());
        match self.file.with(|database| write_group(database, works, acknowledged, durability)) {
            Ok(Written { rev, outcomes, commits, compacted }) => {
                let mut unflushed = locked(&self.unflushed);
                match durability {
                    Durability::None => drop(unflushed.get_or_insert_with(Instant::now)),
                    _ => *unflushed = None,
                }
                drop(unflushed);
                let mut recent = self.file.recent();
                commits.into_iter().for_each(|commit| recent.push(commit));
                if compacted {
                    recent.clear();
                }
                drop(recent);
                self.current.send_replace(rev);
                Ok(outcomes)
            }
            Err(error) => {
                // The file goes back to its last durable state.
                *locked(&self.unflushed) = None;
                self.file.recent().clear();
                tracing::error!(event = "store_commit_failed", %error, commands = count, "the store could not commit");
                Err(error)
            }
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A group that was written.
struct Written {
    /// The rev after it.
    rev: Rev,
    /// One for each of its commands.
    outcomes: Vec<Outcome>,
    commits: Vec<Commit>,
    /// Earlier commits may have been forgotten because somebody asked.
    compacted: bool,
}

/// Does the whole group in one transaction. On an error nothing of it was acknowledged.
fn write_group(
    database: &Database,
    works: Vec<Work>,
    acknowledged: Rev,
    durability: Durability,
) -> Result<Written, StoreError> {
    let mut write = database.begin_write().map_err(failed)?;
    write.set_durability(durability).map_err(failed)?;
    let (mut outcomes, mut commits, mut compacted) = (Vec::with_capacity(works.len()), Vec::new(), false);
    let rev = {
        let mut tables = Tables::open(&write)?;
        // From the file: a commit that failed may have reached the disk all the same. Not below what was acknowledged:
        // relaxed commits may be lost.
        let mut rev = tables.rev()?.max(acknowledged);
        let mut before = rev.0.saturating_sub(LOG_KEPT);
        for work in works {
            let outcome = match work {
                Work::Commit(txn) => tables.commit(txn, rev, &mut commits)?,
                Work::Compact(asked) => {
                    compacted = true;
                    before = before.max(asked.0.min(rev.0 + 1));
                    Outcome::Committed(rev)
                }
            };
            if let Outcome::Committed(after) = outcome {
                rev = after;
            }
            outcomes.push(outcome);
        }
        tables.finish(rev, before)?;
        rev
    };
    write.commit().map_err(failed)?;
    Ok(Written { rev, outcomes, commits, compacted })
}

struct Tables<'txn> {
    kv: Table<'txn, &'static str, &'static [u8]>,
    log: Table<'txn, u64, &'static [u8]>,
    meta: Table<'txn, &'static str, u64>,
}

impl<'txn> Tables<'txn> {
    fn open(write: &'txn WriteTransaction) -> Result<Self, StoreError> {
        Ok(Self {
            kv: write.open_table(KV).map_err(failed)?,
            log: write.open_table(LOG).map_err(failed)?,
            meta: write.open_table(META).map_err(failed)?,
        })
    }

    fn rev(&self) -> Result<Rev, StoreError> {
        Ok(Rev(self.meta.get("rev").map_err(failed)?.map_or(0, |rev| rev.value())))
    }

    fn entry(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        self.kv.get(key).map_err(failed)?.map(|value| codec::entry(key, value.value())).transpose()
    }

    fn commit(&mut self, txn: Txn, rev: Rev, commits: &mut Vec<Commit>) -> Result<Outcome, StoreError> {
        for compare in &txn.compare {
            if !compare.holds(self.entry(compare.key())?.as_ref()) {
                return Ok(Outcome::Conflict);
            }
        }
        let next = rev.next();
        let mut changes = Vec::with_capacity(txn.ops.len());
        for op in txn.ops {
            match op {
                Op::Put { key, value } => {
                    let old = self.entry(&key)?;
                    let (created, version) = old.map_or((next, 1), |old| (old.created, old.version + 1));
                    let entry = Entry { key, value, created, modified: next, version };
                    self.kv.insert(entry.key.as_str(), codec::encode_entry(&entry).as_slice()).map_err(failed)?;
                    changes.push(Change::Put(entry));
                }
                Op::Delete { key } => {
                    if self.kv.remove(key.as_str()).map_err(failed)?.is_some() {
                        changes.push(Change::Deleted { key });
                    }
                }
            }
        }
        if changes.is_empty() {
            return Ok(Outcome::Committed(rev));
        }
        self.log.insert(next.0, codec::encode_changes(&changes).as_slice()).map_err(failed)?;
        commits.push(Commit { rev: next, changes });
        Ok(Outcome::Committed(next))
    }

    /// Writes the rev down and forgets the log before `before`.
    fn finish(&mut self, rev: Rev, before: u64) -> Result<(), StoreError> {
        self.meta.insert("rev", rev.0).map_err(failed)?;
        let oldest = self.meta.get("oldest").map_err(failed)?.map_or(1, |oldest| oldest.value());
        for gone in oldest..before {
            self.log.remove(gone).map_err(failed)?;
        }
        if before > oldest {
            self.meta.insert("oldest", before).map_err(failed)?;
        }
        Ok(())
    }
}
