//! The file of the database, and what is read from it.
//!
//! After one failed write (a full disk) the database refuses everything, also reads, until its file is opened again.
//! Whoever comes next does that:
//!
//! ```text
//! Open ──something failed──▶ Closed ──the next read or write opens it──▶ Open
//!                              └──it cannot be opened: told so──▶ Closed
//! ```

use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard},
};

use futures::{FutureExt, future::BoxFuture};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, TableError};

use super::{FORMAT, KV, LOG, META, codec, failed, recent::RecentCommits};
use crate::store::{
    Commit, Entry, Listing, Page, Rev, StoreError,
    history::{CHUNK, CommitHistory},
};

/// Opens the database, the first time and after it failed.
pub(super) type Opener = Box<dyn Fn() -> Result<Database, StoreError> + Send + Sync>;

/// The file; `None` while it is closed.
pub(super) struct File {
    opener: Opener,
    database: RwLock<Option<Database>>,
    recent: Mutex<RecentCommits>,
}

impl File {
    /// Opens it, creating the tables where they are missing; gives the current rev as well. `path` is for messages.
    pub(super) fn open(opener: Opener, path: &Path) -> Result<(Self, Rev), StoreError> {
        let database = opener()?;
        let rev = prepare(&database, path)?;
        Ok((Self { opener, database: RwLock::new(Some(database)), recent: Mutex::default() }, rev))
    }

    /// The last commits, so that a watch that has seen the others reads no file.
    pub(super) fn recent(&self) -> MutexGuard<'_, RecentCommits> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works with the open database; opens it first if it failed before.
    pub(super) fn with<T>(&self, work: impl FnOnce(&Database) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let done = {
            let open = self.opened()?;
            let database = open.as_ref().ok_or_else(|| failed("it is being opened again, try again"))?;
            work(database)
        };
        if matches!(done, Err(StoreError::Failed(_))) {
            // What others read is finished first: they hold the lock.
            *self.database.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
        done
    }

    /// True if no reader or writer has to open it first.
    pub(super) fn is_open(&self) -> bool {
        self.database.try_read().is_ok_and(|open| open.is_some())
    }

    fn opened(&self) -> Result<RwLockReadGuard<'_, Option<Database>>, StoreError> {
        {
            let open = self.database.read().unwrap_or_else(PoisonError::into_inner);
            if open.is_some() {
                return Ok(open);
            }
        }
        {
            let mut open = self.database.write().unwrap_or_else(PoisonError::into_inner);
            if open.is_none() {
                *open = Some((self.opener)()?);
                tracing::info!(event = "store_reopened");
            }
        }
        Ok(self.database.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        self.with(|database| {
            let found = table(database, KV)?.get(key).map_err(failed)?;
            found.map(|value| codec::entry(key, value.value())).transpose()
        })
    }

    pub(super) fn list(&self, prefix: &str, page: &Page) -> Result<Listing, StoreError> {
        self.with(|database| list(database, prefix, page))
    }

    /// The oldest rev that a watch can start from.
    pub(super) fn oldest(&self) -> Result<Rev, StoreError> {
        self.with(oldest)
    }

    fn log(&self, from: Rev) -> Result<Vec<Commit>, StoreError> {
        self.with(|database| {
            let oldest = oldest(database)?;
            if from < oldest {
                return Err(StoreError::Compacted { oldest });
            }
            let rows = table(database, LOG)?.range(from.0..).map_err(failed)?.take(CHUNK);
            rows.map(|row| {
                let (rev, changes) = row.map_err(failed)?;
                Ok(Commit { rev: Rev(rev.value()), changes: codec::changes(changes.value())? })
            })
            .collect()
        })
    }
}

/// Creates the tables where they are missing and checks the format; gives the current rev.
fn prepare(database: &Database, path: &Path) -> Result<Rev, StoreError> {
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
            found => return Err(StoreError::Format { path: path.to_owned(), found, known: FORMAT }),
        }
        meta.get("rev").map_err(failed)?.map_or(0, |rev| rev.value())
    };
    write.commit().map_err(failed)?;
    Ok(Rev(rev))
}

fn table<K: redb::Key + 'static, V: redb::Value + 'static>(
    database: &Database,
    definition: TableDefinition<'static, K, V>,
) -> Result<redb::ReadOnlyTable<K, V>, StoreError> {
    let read = database.begin_read().map_err(failed)?;
    read.open_table(definition).map_err(|error: TableError| failed(error))
}

fn oldest(database: &Database) -> Result<Rev, StoreError> {
    Ok(Rev(table(database, META)?.get("oldest").map_err(failed)?.map_or(1, |rev| rev.value())))
}

fn list(database: &Database, prefix: &str, page: &Page) -> Result<Listing, StoreError> {
    let read = database.begin_read().map_err(failed)?;
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

/// Runs a read on a thread that may block.
pub(super) async fn blocking<T: Send + 'static>(
    file: &Arc<File>,
    read: impl FnOnce(&File) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let file = Arc::clone(file);
    tokio::task::spawn_blocking(move || read(&file)).await.map_err(failed)?
}

impl CommitHistory for File {
    fn read(self: Arc<Self>, from: Rev) -> BoxFuture<'static, Result<Vec<Commit>, StoreError>> {
        async move {
            let recent = self.recent().from(from);
            match recent.is_empty() {
                true => blocking(&self, move |file| file.log(from)).await,
                false => Ok(recent),
            }
        }
        .boxed()
    }
}
