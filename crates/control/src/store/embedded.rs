//! A store in one file beside the process: redb, with a log of commits beside the entries so that it can be watched.
//!
//! ```text
//! commit() ──bounded queue──▶ writer thread: take all that wait → one redb transaction → fsync → answer each, move `current`
//! get/list ──▶ a snapshot read on a blocking thread                                                   │
//! watch    ──▶ pulls log[next..] whenever `current` moves ◀──────────────────────────────────────────┘
//! ```
//!
//! Tables: `kv` key → created, modified, version, value; `log` rev → the commit's changes; `meta` the format's number,
//! the current rev and the oldest rev in the log. An acknowledged commit is on disk; `tests/it/crash.rs` kills the
//! process to see.

mod codec;
mod writer;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, TableError};
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    Commit, Entry, Listing, Outcome, Page, Rev, Store, StoreError, Txn, Watch,
    history::{self, CHUNK, History},
};
use writer::Command;

/// The number of the file's form. A change that an older Berth cannot read makes it one more.
const FORMAT: u64 = 1;

const KV: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("kv");
const LOG: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("log");
const META: TableDefinition<'static, &str, u64> = TableDefinition::new("meta");

/// Commits that may wait for the writer. One fsync takes well under a millisecond on an SSD and serves up to
/// [`writer::GROUP`] of them: doubling this doubles the worst wait, halving it turns bursts away.
const QUEUE: usize = 1_024;

/// How long a commit waits for a place in the queue before it is told that the store is busy.
const QUEUE_WAIT: Duration = Duration::from_secs(5);

/// Bytes of the file that are kept in memory: what is not there comes from the system's own cache. The database's default
/// of 1 GiB would be more than all that is served weighs. Halved, applies of 100,000 deployments read more; doubled,
/// every process is that much larger.
const CACHE: usize = 16 << 20;

/// A [`Store`] in one file.
pub struct EmbeddedStore {
    file: Arc<File>,
    commands: Option<mpsc::Sender<Command>>,
    current: watch::Receiver<Rev>,
    writer: Option<JoinHandle<()>>,
}

struct File(Database);

impl EmbeddedStore {
    /// Opens the store in `directory`, creating both as needed. Blocks: reads the disk.
    ///
    /// # Errors
    /// [`StoreError::InUse`] if another process has it, [`StoreError::Format`] if another version of Berth wrote it.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        fs_err::create_dir_all(directory).map_err(failed)?;
        let path = directory.join("state.redb");
        let database = Database::builder().set_cache_size(CACHE).create(&path).map_err(|error| match error {
            redb::DatabaseError::DatabaseAlreadyOpen => StoreError::InUse(directory.to_owned()),
            other => StoreError::Failed(format!("cannot open {}: {other}", path.display())),
        })?;
        let rev = prepare(&database, path)?;
        let file = Arc::new(File(database));
        let (commands, queue) = mpsc::channel(QUEUE);
        let (moved, current) = watch::channel(rev);
        let writer = writer::start(Arc::clone(&file), queue, moved).map_err(failed)?;
        Ok(Self { file, commands: Some(commands), current, writer: Some(writer) })
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
    /// Lets the writer finish what it has accepted. Blocks for one commit at most: the queue is closed first.
    fn drop(&mut self) {
        self.commands = None;
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("the store's writer panicked");
        }
    }
}

/// Creates the tables where they are missing and checks the format; gives the current rev.
fn prepare(database: &Database, path: PathBuf) -> Result<Rev, StoreError> {
    let write = database.begin_write().map_err(failed)?;
    let rev = {
        let mut meta = write.open_table(META).map_err(failed)?;
        write.open_table(KV).map_err(failed)?;
        write.open_table(LOG).map_err(failed)?;
        let found = meta.get("format").map_err(failed)?.map_or(0, |format| format.value());
        match found {
            0 => {
                meta.insert("format", FORMAT).map_err(failed)?;
            }
            FORMAT => {}
            found => return Err(StoreError::Format { path, found, known: FORMAT }),
        }
        meta.get("rev").map_err(failed)?.map_or(0, |rev| rev.value())
    };
    write.commit().map_err(failed)?;
    Ok(Rev(rev))
}

/// What redb says, in words.
fn failed(error: impl std::fmt::Display) -> StoreError {
    StoreError::Failed(error.to_string())
}

impl File {
    fn table<K: redb::Key + 'static, V: redb::Value + 'static>(
        &self,
        definition: TableDefinition<'static, K, V>,
    ) -> Result<redb::ReadOnlyTable<K, V>, StoreError> {
        let read = self.0.begin_read().map_err(failed)?;
        read.open_table(definition).map_err(|error: TableError| failed(error))
    }

    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let found = self.table(KV)?.get(key).map_err(failed)?;
        found.map(|value| codec::entry(key, value.value())).transpose()
    }

    fn list(&self, prefix: &str, page: &Page) -> Result<Listing, StoreError> {
        let read = self.0.begin_read().map_err(failed)?;
        let meta = read.open_table(META).map_err(failed)?;
        let at = Rev(meta.get("rev").map_err(failed)?.map_or(0, |rev| rev.value()));
        let table = read.open_table(KV).map_err(failed)?;
        let from = page.after.as_deref().map_or(prefix, |after| after.max(prefix));
        let mut listing = Listing { entries: Vec::new(), at, more: false };
        for row in table.range(from..).map_err(failed)? {
            let (key, value) = row.map_err(failed)?;
            let key = key.value();
            if Some(key) == page.after.as_deref() {
                continue;
            }
            if !key.starts_with(prefix) {
                break;
            }
            if listing.entries.len() == page.size() {
                listing.more = true;
                break;
            }
            listing.entries.push(codec::entry(key, value.value())?);
        }
        Ok(listing)
    }

    /// The oldest rev that a watch can start from.
    fn oldest(&self) -> Result<Rev, StoreError> {
        Ok(Rev(self.table(META)?.get("oldest").map_err(failed)?.map_or(1, |rev| rev.value())))
    }

    fn log(&self, from: Rev) -> Result<Vec<Commit>, StoreError> {
        let oldest = self.oldest()?;
        if from < oldest {
            return Err(StoreError::Compacted { oldest });
        }
        let rows = self.table(LOG)?.range(from.0..).map_err(failed)?.take(CHUNK);
        rows.map(|row| {
            let (rev, changes) = row.map_err(failed)?;
            Ok(Commit { rev: Rev(rev.value()), changes: codec::changes(changes.value())? })
        })
        .collect()
    }
}

/// Runs a read on a thread that may block.
async fn blocking<T: Send + 'static>(
    file: &Arc<File>,
    read: impl FnOnce(&File) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let file = Arc::clone(file);
    tokio::task::spawn_blocking(move || read(&file)).await.map_err(failed)?
}

impl History for File {
    fn read(self: Arc<Self>, from: Rev) -> BoxFuture<'static, Result<Vec<Commit>, StoreError>> {
        async move { blocking(&self, move |file| file.log(from)).await }.boxed()
    }
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
        async move {
            txn.check()?;
            let (reply, answer) = oneshot::channel();
            self.send(Command::Commit { txn, reply }).await?;
            answer.await.map_err(|_| StoreError::Closed)?
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
