//! The thread that writes. It takes all commits that wait, does them in one redb transaction, makes that durable
//! once, and then answers each: group commit. It also makes durable what was not yet.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError, mpsc as ends},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use redb::Durability;
use tokio::sync::{mpsc, oneshot};

use super::writes::{Work, Writes};
use crate::store::{Outcome, Rev, StoreError, Txn};

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

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// Request to the writer thread.
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
    pub(super) fn start(writes: Arc<Writes>, mut queue: mpsc::Receiver<Command>) -> io::Result<Self> {
        let (ending, ended) = ends::sync_channel::<()>(1);
        // For waiting with a deadline; nothing else runs on it.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let thread = std::thread::Builder::new().name("berth-store".to_owned()).spawn(move || {
            let _ending = ending;
            let mut group = Vec::with_capacity(GROUP);
            let mut pause = FLUSH_AFTER;
            loop {
                match runtime.block_on(next(&mut queue, &writes, pause)) {
                    Next::Command(first) => {
                        group.push(first);
                        while group.len() < GROUP
                            && let Ok(next) = queue.try_recv()
                        {
                            group.push(next);
                        }
                        commit_group(&writes, &mut group);
                    }
                    Next::Flush => pause = flush(&writes),
                    Next::End => break,
                }
            }
            flush(&writes);
            // Before the end is told: whoever waits for it may want to open the file.
            drop(writes);
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

/// Waits for a command, but no longer than until a flush is due: `pause` after the first commit that waits for it.
async fn next(queue: &mut mpsc::Receiver<Command>, writes: &Writes, pause: Duration) -> Next {
    loop {
        let flush_at = writes.unflushed().map(|since| since + pause);
        let due = async {
            match flush_at {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            command = queue.recv() => return command.map_or(Next::End, Next::Command),
            () = due => return Next::Flush,
            () = writes.begun() => {}
        }
    }
}

/// Makes relaxed commits durable. Gives how long the next ones may wait for that.
fn flush(writes: &Writes) -> Duration {
    let began = Instant::now();
    match writes.flush() {
        true => (began.elapsed() * REST).clamp(FLUSH_AFTER, MAX_FLUSH_PAUSE),
        false => FLUSH_AFTER,
    }
}

/// Runs the waiting commands and answers all of them in every case. A command whose caller has gone is not run,
/// because the caller was told that it failed.
pub(super) fn commit_group(writes: &Writes, group: &mut Vec<Command>) {
    group.retain(|command| !command.is_abandoned());
    let durability = if group.iter().all(Command::is_relaxed) { Durability::None } else { Durability::Immediate };
    let (works, answers): (Vec<Work>, Vec<Answer>) = group.drain(..).map(Command::split).unzip();
    if works.is_empty() {
        return;
    }
    match writes.write(works, durability) {
        Ok(outcomes) => answers.into_iter().zip(outcomes).for_each(|(answer, outcome)| answer.send(Ok(outcome))),
        Err(error) => answers.into_iter().for_each(|answer| answer.send(Err(error.clone()))),
    }
}
