//! One process with all that it starts: fed, read up to a bound, and ended as a group.

use std::{
    io::{self, Read, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::PathBuf,
    process::{Child, Command, ExitStatus},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::Stop;

/// Interval at which a waiting thread checks for cancellation: people do not notice it, and it costs no processor time.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Time for git to remove its lock files after the request to end. Locks left behind are removed at the next start.
const GRACE: Duration = Duration::from_millis(500);

/// Interval at which disk use is measured. Bounds how far a fast download can exceed the quota.
const MEASURE: Duration = Duration::from_millis(250);

/// Bytes of standard error that are kept: it is for people.
const MOST_WORDS: usize = 64 << 10;

/// Output of a process that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) out: Vec<u8>,
    pub(crate) words: String,
}

/// Limit for the total size of a folder while a process runs.
#[derive(Debug)]
pub(crate) struct DiskQuota {
    pub(crate) folder: PathBuf,
    pub(crate) most: u64,
}

impl DiskQuota {
    fn is_full(&self) -> bool {
        let files = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let sizes = files.filter_map(|file| file.metadata().ok()).map(|about| about.len());
        sizes.fold(0, u64::saturating_add) > self.most
    }
}

/// Reason why a run gave no result.
#[derive(Debug)]
pub(crate) enum RunError {
    /// Starting or watching the process failed.
    Io(io::Error),
    /// The output exceeded its limit.
    TooMuch,
    /// The folder exceeded its [`DiskQuota`].
    Full,
    /// The caller's [`Stop`] was triggered.
    Cancelled,
    /// The deadline passed. With the last words, which often say what it waited for.
    TimedOut,
}

/// Last message of a reading thread.
enum ReaderEnd {
    Done,
    TooMuch,
}

/// Runs `command`, whose standard output and error must be pipes (or a file, for the output), until it ends.
pub(crate) fn run(
    mut command: Command,
    input: Option<Vec<u8>>,
    most: usize,
    room: Option<&DiskQuota>,
    stop: &Stop,
) -> Result<Finished, RunError> {
    if stop.is_cancelled() {
        return Err(RunError::Cancelled);
    }
    let mut child = command.process_group(0).spawn().map_err(RunError::Io)?;
    // A sender stays here, so that the receiver waits for its time when all threads have ended.
    let (done, parts) = sync_channel(4);
    let watched = watch(&mut child, input, most, room, (&done, &parts), stop);
    if watched.is_err() {
        end(&mut child);
    }
    watched
}

fn watch(
    child: &mut Child,
    input: Option<Vec<u8>>,
    most: usize,
    room: Option<&DiskQuota>,
    (done, parts): (&SyncSender<ReaderEnd>, &Receiver<ReaderEnd>),
    stop: &Stop,
) -> Result<Finished, RunError> {
    if let (Some(mut pipe), Some(input)) = (child.stdin.take(), input) {
        // A process that does not read to the end has its reasons, and says so elsewhere.
        let feed = move || drop(pipe.write_all(&input));
        thread::Builder::new().name("git-in".to_owned()).spawn(feed).map_err(RunError::Io)?;
    }
    let out = child.stdout.take().map(|pipe| read(pipe, most, true, done)).transpose().map_err(RunError::Io)?;
    let err = child.stderr.take().map(|pipe| read(pipe, MOST_WORDS, false, done)).transpose().map_err(RunError::Io)?;
    let mut reading = usize::from(out.is_some()) + usize::from(err.is_some());
    let mut measured = Instant::now();
    let status = loop {
        if reading == 0
            && let Some(status) = child.try_wait().map_err(RunError::Io)?
        {
            break status;
        }
        if let Some(room) = room.filter(|_| measured.elapsed() >= MEASURE) {
            if room.is_full() {
                return Err(RunError::Full);
            }
            measured = Instant::now();
        }
        if stop.is_cancelled() {
            return Err(RunError::Cancelled);
        }
        let left = stop.left();
        if left.is_zero() {
            return Err(RunError::TimedOut);
        }
        // The pipes close a moment before the process can be collected.
        let pause = if reading == 0 { Duration::from_millis(1) } else { POLL_INTERVAL };
        match parts.recv_timeout(pause.min(left)) {
            Ok(ReaderEnd::Done) => reading -= 1,
            Ok(ReaderEnd::TooMuch) => return Err(RunError::TooMuch),
            Err(_) => {}
        }
    };
    // Also what came in less time than between two looks.
    if room.is_some_and(DiskQuota::is_full) {
        return Err(RunError::Full);
    }
    let whole = |thread: Option<JoinHandle<Vec<u8>>>| thread.and_then(|thread| thread.join().ok()).unwrap_or_default();
    Ok(Finished { status, out: whole(out), words: String::from_utf8_lossy(&whole(err)).into_owned() })
}

/// Reads a pipe to its end. What is above `most` is either too much, or read and forgotten.
fn read(
    mut pipe: impl Read + Send + 'static,
    most: usize,
    strict: bool,
    done: &SyncSender<ReaderEnd>,
) -> io::Result<JoinHandle<Vec<u8>>> {
    let done = done.clone();
    let work = move || {
        let mut kept = Vec::new();
        let ended = match (&mut pipe).take(most as u64 + 1).read_to_end(&mut kept) {
            Ok(read) if read > most && strict => ReaderEnd::TooMuch,
            Ok(read) if read > most => {
                kept.truncate(most);
                let _ = io::copy(&mut pipe, &mut io::sink());
                ReaderEnd::Done
            }
            _ => ReaderEnd::Done,
        };
        let _ = done.send(ended);
        kept
    };
    thread::Builder::new().name("git-out".to_owned()).spawn(work)
}

/// Asks the group to end, which lets git remove its lock files; then makes it.
fn end(child: &mut Child) {
    let group = Pid::from_child(child);
    let _ = kill_process_group(group, Signal::TERM);
    let until = Instant::now() + GRACE;
    while Instant::now() < until && matches!(child.try_wait(), Ok(None)) {
        thread::sleep(Duration::from_millis(5));
    }
    // Also when git itself has gone: what it started may still be there. The group's number cannot have been taken by
    // another group while a member of it lives, and without members this does nothing.
    let _ = kill_process_group(group, Signal::KILL);
    let _ = child.wait();
}

/// Describes the exit status for people.
pub(crate) fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("git ended with code {code} and said nothing"),
        (None, Some(signal)) => format!("git was ended by signal {signal}"),
        (None, None) => "git ended".to_owned(),
    }
}
