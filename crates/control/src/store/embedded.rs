//! A store in one file beside the process: redb, with a log of commits beside the entries so that it can be watched.
//!
//! ```text
//! commit() ──bounded queue──▶ writer thread: take all that wait → one redb transaction → fsync → answer each, move `current`
//! commit_relaxed() ──▶ at once on the caller's thread; while something is written, as above. The fsync follows within 100 ms,
//!                      on a slow disk 1 s
//! get/list ──▶ a snapshot read on a blocking thread                                                   │
//! watch    ──▶ pulls log[next..] whenever `current` moves, the last ones from memory ◀───────────────┘
//! ```
//!
//! Tables: `kv` key → created, modified, version, value; `log` rev → the commit's changes; `meta` the format's number,
//! the current rev and the oldest rev in the log. An acknowledged commit is on disk unless it was a relaxed one;
//! `tests/it/crash.rs` kills the process to see.

mod codec;
mod file;
mod recent;
#[cfg(test)]
mod tests;
mod writer;
mod writes;

use std::{
    path::Path,
    sync::{Arc, Weak},
    time::Duration,
};

use fs_err::os::unix::fs::OpenOptionsExt as _;
use futures::{FutureExt, future::BoxFuture};
use redb::{Database, Durability, TableDefinition};
use tokio::sync::{mpsc, oneshot, watch};

use super::{Entry, Listing, Outcome, Page, Rev, Store, StoreError, Txn, Watch, history};
use file::{File, Opener, blocking};
use writer::{Command, Writer};
use writes::Writes;

/// The number of the file's form. A change that an older Berth cannot read makes it one more.
const FORMAT: u64 = 1;

const KV: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("kv");
const LOG: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("log");
const META: TableDefinition<'static, &str, u64> = TableDefinition::new("meta");

/// Commits that may wait for the writer. One fsync takes well under a millisecond on an SSD and serves up to
/// [`writer::GROUP`] of them: the last of a full queue waits for four, and bursts are not turned away.
const QUEUE: usize = 1_024;

/// Wait for a place in the queue before a commit fails because the store is busy.
const QUEUE_WAIT: Duration = Duration::from_secs(5);

/// Database cache in bytes. Small, because the system's file cache serves the rest; the default of 1 GiB would exceed
/// all that is stored.
const CACHE: usize = 4 << 20;

/// Limit for finishing accepted commits when the store closes, so that a stuck disk cannot block the shutdown.
const LAST_WRITES: Duration = Duration::from_secs(10);

/// A [`Store`] in one file of this machine, by redb. One process has it open at a time.
pub struct EmbeddedStore {
    file: Arc<File>,
    /// The writer thread's: where that has ended, nothing is written any more, and watches end.
    writes: Weak<Writes>,
    commands: Option<mpsc::Sender<Command>>,
    current: watch::Receiver<Rev>,
    writer: Writer,
}

impl EmbeddedStore {
    /// Opens the store in `directory`, creating both as needed. Blocks: reads the disk.
    ///
    /// # Errors
    /// [`StoreError::InUse`] if another process has it, [`StoreError::Format`] if another version of Berth wrote it.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        fs_err::create_dir_all(directory).map_err(failed)?;
        let (directory, path) = (directory.to_owned(), directory.join("state.redb"));
        let opened = path.clone();
        let opener = move || {
            // An empty file becomes a store; deployments may name what is nobody else's business.
            let mut options = fs_err::OpenOptions::new();
            options.create(true).append(true).mode(0o600).open(&opened).map_err(failed)?;
            Database::builder().set_cache_size(CACHE).create(&opened).map_err(|error| match error {
                redb::DatabaseError::DatabaseAlreadyOpen => StoreError::InUse(directory.clone()),
                other => StoreError::Failed(format!("cannot open {}: {other}", opened.display())),
            })
        };
        Self::start(Box::new(opener), &path)
    }

    fn start(opener: Opener, path: &Path) -> Result<Self, StoreError> {
        let (file, rev) = File::open(opener, path)?;
        let file = Arc::new(file);
        let (commands, queue) = mpsc::channel(QUEUE);
        let (moved, current) = watch::channel(rev);
        let writes = Arc::new(Writes::new(Arc::clone(&file), moved));
        let (weak, writer) = (Arc::downgrade(&writes), Writer::start(writes, queue).map_err(failed)?);
        Ok(Self { file, writes: weak, commands: Some(commands), current, writer })
    }

    async fn transact(&self, txn: Txn, durability: Durability) -> Result<Outcome, StoreError> {
        txn.check()?;
        let (reply, answer) = oneshot::channel();
        self.send(Command::Commit { txn, durability, reply }).await?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    async fn send(&self, command: Command) -> Result<(), StoreError> {
        let commands = self.commands.as_ref().ok_or(StoreError::Closed)?;
        match commands.send_timeout(command, QUEUE_WAIT).await {
            Ok(()) => Ok(()),
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => Err(StoreError::Busy { retry_in: QUEUE_WAIT }),
            Err(mpsc::error::SendTimeoutError::Closed(_)) => Err(StoreError::Closed),
        }
    }
}

impl Drop for EmbeddedStore {
    /// Lets the writer finish what it has accepted, for [`LAST_WRITES`] at most: the queue is closed first.
    fn drop(&mut self) {
        self.commands = None;
        self.writer.join(LAST_WRITES);
    }
}

/// Converts an error of redb.
fn failed(error: impl std::fmt::Display) -> StoreError {
    StoreError::Failed(error.to_string())
}

impl Store for EmbeddedStore {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        let key = key.to_owned();
        async move { blocking(&self.file, move |file| file.get(&key)).await }.boxed()
    }

    fn list<'a>(&'a self, prefix: &'a str, page: Page) -> BoxFuture<'a, Result<Listing, StoreError>> {
        let prefix = prefix.to_owned();
        async move { blocking(&self.file, move |file| file.list(&prefix, &page)).await }.boxed()
    }

    fn commit(&self, txn: Txn) -> BoxFuture<'_, Result<Outcome, StoreError>> {
        self.transact(txn, Durability::Immediate).boxed()
    }

    /// Durable within [`writer::FLUSH_AFTER`], on a slow disk within a second. Nobody else reads this store: who was told of what a crash undoes, a worker
    /// or a gateway of this process, ended with it.
    fn commit_relaxed(&self, txn: Txn) -> BoxFuture<'_, Result<Outcome, StoreError>> {
        async move {
            txn.check()?;
            // While others wait it does, too: one transaction serves them all.
            let idle = self.commands.as_ref().is_some_and(|commands| commands.capacity() == commands.max_capacity());
            let txn = match self.writes.upgrade().filter(|_| idle) {
                Some(writes) => match writes.try_relaxed(txn) {
                    Ok(outcome) => return outcome,
                    Err(txn) => txn,
                },
                None => txn,
            };
            self.transact(txn, Durability::None).await
        }
        .boxed()
    }

    fn watch<'a>(&'a self, prefix: &'a str, from: Rev) -> BoxFuture<'a, Result<Watch, StoreError>> {
        async move {
            let oldest = blocking(&self.file, File::oldest).await?;
            if Rev(from.0.max(1)) < oldest {
                return Err(StoreError::Compacted { oldest });
            }
            Ok(history::follow(Arc::clone(&self.file), self.current.clone(), prefix, from))
        }
        .boxed()
    }

    fn rev(&self) -> BoxFuture<'_, Result<Rev, StoreError>> {
        async move { Ok(*self.current.borrow()) }.boxed()
    }

    fn compact(&self, before: Rev) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            let (reply, answer) = oneshot::channel();
            self.send(Command::Compact { before, reply }).await?;
            answer.await.map_err(|_| StoreError::Closed)?
        }
        .boxed()
    }
}
