//! The one thread that writes. It takes all commits that wait, does them in one redb transaction, makes that durable
//! once, and then answers each: group commit.
//!
//! ```text
//! Clean ──group of relaxed commits──▶ Unflushed{since} ──other commit, a pause, or the end──▶ Clean
//! ```
//! Relaxed commits are visible at once and durable with the next flush. Where a flush fails, the file is opened again at
//! its last durable state: relaxed commits are lost as in a crash, and revs go on after the last that was acknowledged, so
//! that no watch takes a new commit for one that it has seen.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError, mpsc as ends},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use redb::{Database, Durability, ReadableTable, Table, WriteTransaction};
use tokio::sync::{mpsc, oneshot, watch};

use super::{KV, LOG, META, codec, failed, file::File};
use crate::store::{Change, Commit, Entry, Op, Outcome, Rev, StoreError, Txn};

/// The most commits in one group: beyond a few dozen the fsync no longer shows in what each costs, and the longest write stays
/// short.
pub(super) const GROUP: usize = 256;

/// The longest that a relaxed commit may wait to be made durable. An fsync takes some milliseconds, in which the next commit waits:
/// at this interval a steady stream of misses meets one rarely.
pub(super) const FLUSH_AFTER: Duration = Duration::from_millis(100);

/// The same as a multiple of the time that the last flush took: on a slow disk misses wait behind a flush for a tenth of the time, and
/// not always.
const REST: u32 = 10;

/// The longest, however slow the disk is: a crash undoes no more than a second of relaxed commits.
const MAX_FLUSH_PAUSE: Duration = Duration::from_secs(1);

/// Commits that stay in the log for watches to go back to: a client that missed fewer goes on, one that missed more lists again,
/// and the log on disk is bounded.
const LOG_KEPT: u64 = 20_000;

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// Request to the writer thread, which is the only one that writes.
pub(super) enum Command {
    Commit { txn: Txn, durability: Durability, reply: Reply<Outcome> },
    Compact { before: Rev, reply: Reply<()> },
}

impl Command {
    /// True if the caller no longer waits for the answer.
    fn is_abandoned(&self) -> bool {
        match self {
            Self::Commit { reply, .. } => reply.is_closed(),
            Self::Compact { reply, .. } => reply.is_closed(),
        }
    }

    /// Its answer may come before it is durable.
    fn is_relaxed(&self) -> bool {
        matches!(self, Self::Commit { durability: Durability::None, .. })
    }

    fn split(self) -> (Work, Answer) {
        match self {
            Self::Commit { txn, reply, .. } => (Work::Commit(txn), Answer::Commit(reply)),
            Self::Compact { before, reply } => (Work::Compact(before), Answer::Compact(reply)),
        }
    }
}

/// A command without its caller: whatever becomes of the work, the caller is still there to be answered.
enum Work {
    Commit(Txn),
    Compact(Rev),
}

/// A command's caller, answered once the group is durable or has failed.
enum Answer {
    Commit(Reply<Outcome>),
    Compact(Reply<()>),
}

impl Answer {
    fn send(self, outcome: Result<Outcome, StoreError>) {
        // A caller that has gone away no longer cares.
        let _gone = match self {
            Self::Commit(reply) => reply.send(outcome).is_err(),
            Self::Compact(reply) => reply.send(outcome.map(|_| ())).is_err(),
        };
    }
}

/// Handle of the running writer thread.
pub(super) struct Writer {
    thread: Option<JoinHandle<()>>,
    /// Closed when the thread has ended. Only [`Writer::join`] reads it; the mutex lets the store be shared.
    ended: Mutex<ends::Receiver<()>>,
}

impl Writer {
    /// Starts the thread; it ends when the queue is closed and empty.
    pub(super) fn start(
        file: Arc<File>,
        mut queue: mpsc::Receiver<Command>,
        current: watch::Sender<Rev>,
    ) -> io::Result<Self> {
        let (ending, ended) = ends::sync_channel::<()>(1);
        // For waiting with a deadline; nothing else runs on it.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let thread = std::thread::Builder::new().name("berth-store".to_owned()).spawn(move || {
            let _ending = ending;
            let mut group = Vec::with_capacity(GROUP);
            let (mut unflushed, mut pause): (Option<Instant>, _) = (None, FLUSH_AFTER);
            loop {
                match runtime.block_on(next(&mut queue, unflushed.map(|since| since + pause))) {
                    Next::Command(first) => {
                        group.push(first);
                        while group.len() < GROUP
                            && let Ok(next) = queue.try_recv()
                        {
                            group.push(next);
                        }
                        commit_group(&file, &mut group, &current, &mut unflushed);
                    }
                    Next::Flush => pause = flush(&file, &mut unflushed),
                    Next::End => break,
                }
            }
            flush(&file, &mut unflushed);
            // Before the end is told: whoever waits for it may want to open the file.
            drop(file);
        })?;
        Ok(Self { thread: Some(thread), ended: Mutex::new(ended) })
    }

    /// Waits until it has ended; a thread that does not, since its disk does not answer, is left behind.
    pub(super) fn join(&mut self, within: Duration) {
        let Some(thread) = self.thread.take() else { return };
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(within) == Err(ends::RecvTimeoutError::Timeout) {
            tracing::error!(
                event = "store_disk_silent",
                "the store's disk does not answer: what was not acknowledged may be lost"
            );
        } else if thread.join().is_err() {
            tracing::error!(event = "store_broke", "the store's writer panicked");
        }
    }
}

/// The next step of the thread.
enum Next {
    Command(Command),
    Flush,
    End,
}

/// Waits for a command, but no longer than until a flush is due.
async fn next(queue: &mut mpsc::Receiver<Command>, flush_at: Option<Instant>) -> Next {
    let command = match flush_at {
        None => queue.recv().await,
        Some(at) => match tokio::time::timeout_at(at.into(), queue.recv()).await {
            Ok(command) => command,
            Err(_) => return Next::Flush,
        },
    };
    command.map_or(Next::End, Next::Command)
}

/// Makes relaxed commits durable. Gives how long the next ones may wait for that.
fn flush(file: &File, unflushed: &mut Option<Instant>) -> Duration {
    if unflushed.take().is_none() {
        return FLUSH_AFTER;
    }
    let began = Instant::now();
    let flushed = file.with(|database| database.begin_write().map_err(failed)?.commit().map_err(failed));
    if let Err(error) = flushed {
        tracing::error!(event = "store_flush_failed", %error, "the last plans of on-demand models are not stored");
    }
    (began.elapsed() * REST).clamp(FLUSH_AFTER, MAX_FLUSH_PAUSE)
}

/// Runs the waiting commands and answers all of them in every case. A command whose caller has gone is not run,
/// because the caller was told that it failed.
pub(super) fn commit_group(
    file: &File,
    group: &mut Vec<Command>,
    current: &watch::Sender<Rev>,
    unflushed: &mut Option<Instant>,
) {
    group.retain(|command| !command.is_abandoned());
    let durability = if group.iter().all(Command::is_relaxed) { Durability::None } else { Durability::Immediate };
    let (works, answers): (Vec<Work>, Vec<Answer>) = group.drain(..).map(Command::split).unzip();
    if works.is_empty() {
        return;
    }
    let acknowledged = *current.borrow();
    match file.with(|database| write_group(database, works, acknowledged, durability)) {
        Ok(Written { rev, outcomes, commits, compacted }) => {
            match durability {
                Durability::None => drop(unflushed.get_or_insert_with(Instant::now)),
                _ => *unflushed = None,
            }
            let mut recent = file.recent();
            commits.into_iter().for_each(|commit| recent.push(commit));
            if compacted {
                recent.clear();
            }
            drop(recent);
            current.send_replace(rev);
            for (answer, outcome) in answers.into_iter().zip(outcomes) {
                answer.send(Ok(outcome));
            }
        }
        Err(error) => {
            // The file goes back to its last durable state.
            *unflushed = None;
            file.recent().clear();
            tracing::error!(event = "store_commit_failed", %error, commands = answers.len(), "the store could not commit");
            for answer in answers {
                answer.send(Err(error.clone()));
            }
        }
    }
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
