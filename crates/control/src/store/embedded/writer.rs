//! The one thread that writes. It takes all commits that wait, does them in one redb transaction, makes that durable
//! once, and then answers each: group commit.

use std::{io, sync::Arc, thread::JoinHandle};

use redb::{ReadableTable, Table, WriteTransaction};
use tokio::sync::{mpsc, oneshot, watch};

use super::{File, KV, LOG, META, codec, failed};
use crate::store::{Change, Entry, Op, Outcome, Rev, StoreError, Txn};

/// The most commits in one group. Beyond a few dozen the fsync no longer shows; doubling it lengthens the longest
/// write, halving it costs fsyncs under load.
pub(super) const GROUP: usize = 256;

/// Commits that stay in the log for watches to go back to. Halving it makes a client that was away list again sooner;
/// doubling it doubles what the log takes on disk.
const LOG_KEPT: u64 = 20_000;

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// What the writer is asked for.
pub(super) enum Command {
    Commit { txn: Txn, reply: Reply<Outcome> },
    Compact { before: Rev, reply: Reply<()> },
}

/// Starts the thread; it ends when the queue is closed and empty.
pub(super) fn start(
    file: Arc<File>,
    mut queue: mpsc::Receiver<Command>,
    current: watch::Sender<Rev>,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("berth-store".to_owned()).spawn(move || {
        let mut group = Vec::with_capacity(GROUP);
        while let Some(first) = queue.blocking_recv() {
            group.push(first);
            while group.len() < GROUP
                && let Ok(next) = queue.try_recv()
            {
                group.push(next);
            }
            commit_group(&file, &mut group, &current);
        }
    })
}

/// One command's answer, given once the group is durable.
enum Answer {
    Commit(Reply<Outcome>, Outcome),
    Compact(Reply<()>),
}

fn commit_group(file: &File, group: &mut Vec<Command>, current: &watch::Sender<Rev>) {
    let mut replies = Vec::with_capacity(group.len());
    // Copied out first: held through the `match`, the borrow would keep `send_replace` waiting for ever.
    let rev = *current.borrow();
    match write_group(file, group, &mut replies, rev) {
        Ok(rev) => {
            current.send_replace(rev);
            for answer in replies {
                // A caller that has gone away no longer cares.
                let _gone = match answer {
                    Answer::Commit(reply, outcome) => reply.send(Ok(outcome)).is_err(),
                    Answer::Compact(reply) => reply.send(Ok(())).is_err(),
                };
            }
        }
        Err(error) => {
            tracing::error!(%error, "the store could not commit");
            for answer in replies {
                let _gone = match answer {
                    Answer::Commit(reply, _) => reply.send(Err(error.clone())).is_err(),
                    Answer::Compact(reply) => reply.send(Err(error.clone())).is_err(),
                };
            }
        }
    }
}

/// Does the whole group in one durable transaction and gives the rev after it. On an error nothing of it was done;
/// commands that were not reached lose their reply channel, which their callers read as [`StoreError::Closed`].
fn write_group(file: &File, group: &mut Vec<Command>, replies: &mut Vec<Answer>, rev: Rev) -> Result<Rev, StoreError> {
    let write = file.0.begin_write().map_err(failed);
    let mut rev = rev;
    let mut before = rev.0.saturating_sub(LOG_KEPT);
    let done = write.and_then(|write| {
        {
            let mut tables = Tables::open(&write)?;
            for command in group.drain(..) {
                match command {
                    Command::Commit { txn, reply } => {
                        let outcome = tables.commit(txn, rev);
                        let answer = outcome.as_ref().ok().copied().unwrap_or(Outcome::Conflict);
                        replies.push(Answer::Commit(reply, answer));
                        if let Outcome::Committed(after) = outcome? {
                            rev = after;
                        }
                    }
                    Command::Compact { before: asked, reply } => {
                        before = before.max(asked.0.min(rev.0 + 1));
                        replies.push(Answer::Compact(reply));
                    }
                }
            }
            tables.finish(rev, before)?;
        }
        write.commit().map_err(failed)
    });
    done.map(|()| rev)
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

    fn entry(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        self.kv.get(key).map_err(failed)?.map(|value| codec::entry(key, value.value())).transpose()
    }

    fn commit(&mut self, txn: Txn, rev: Rev) -> Result<Outcome, StoreError> {
        for compare in &txn.compare {
            if self.entry(&compare.key)?.map_or(Rev::NONE, |entry| entry.modified) != compare.modified {
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
