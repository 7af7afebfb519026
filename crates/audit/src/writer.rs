//! The thread that writes: in batches, again each second where the disk does not take them.
//!
//! ```text
//! waiting ──a record──▶ writing ──done──▶ waiting
//!                          └──failed──▶ holding (at most BACKLOG records, the oldest go first) ──each second──▶ writing
//! ```

use std::{
    collections::VecDeque,
    io::{self, Write as _},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError, SyncSender},
    },
    time::{Duration, Instant},
};

use berth_wire::api::AuditRecord;

use crate::{file::RotatedFile, metrics::Metrics, refusals::Refusals, ring::Ring};

/// Records that are held while they cannot be written, some 2 MiB.
const BACKLOG: usize = 4_096;

/// Records that are written at once: few writes while many come, and a bounded buffer.
const BATCH: usize = 256;

/// Pause before what failed is tried again, and between looks at what was counted.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Pause between two warnings that nothing can be written: a full disk stays full for long.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// A message to the writer's thread.
pub(crate) enum Message {
    Record(Box<AuditRecord>),
    /// Answered once all before it is written, or cannot be.
    Flush(SyncSender<()>),
}

/// Place that lines go to.
pub(crate) enum Output {
    File(RotatedFile),
    Stdout,
}

impl Output {
    /// Bytes that are appended at once at most, unless one line has more.
    fn most(&self) -> u64 {
        match self {
            Self::File(file) => file.size(),
            Self::Stdout => u64::MAX,
        }
    }

    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            Self::File(file) => file.append(lines),
            Self::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(lines)?;
                out.flush()
            }
        }
    }
}

/// State that the writer shares with the handle.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) refusals: Mutex<Refusals>,
    pub(crate) ring: Mutex<Ring>,
    /// The last attempt to write failed.
    pub(crate) failing: AtomicBool,
    pub(crate) metrics: Metrics,
}

pub(crate) struct Writer {
    pub(crate) messages: Receiver<Message>,
    pub(crate) output: Output,
    pub(crate) shared: Arc<Shared>,
    pub(crate) held: VecDeque<Vec<u8>>,
    pub(crate) warned: Option<Instant>,
}

impl Writer {
    /// Writes until every handle is gone.
    pub(crate) fn run(mut self) {
        loop {
            let message = match self.is_idle() {
                true => self.messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => self.messages.recv_timeout(RETRY_INTERVAL),
            };
            let mut flushed = Vec::new();
            match message {
                Ok(message) => self.take(message, &mut flushed),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            while self.held.len() < BATCH
                && flushed.is_empty()
                && let Ok(message) = self.messages.try_recv()
            {
                self.take(message, &mut flushed);
            }
            let now = Instant::now();
            let due = self.refusals(|refusals| if flushed.is_empty() { refusals.due(now) } else { refusals.all() });
            self.hold_counted(due);
            self.write();
            drop(flushed);
        }
        let left = self.refusals(Refusals::all);
        self.hold_counted(left);
        self.write();
    }

    fn is_idle(&self) -> bool {
        self.held.is_empty() && !self.refusals(|refusals| refusals.is_counting())
    }

    fn refusals<T>(&self, ask: impl FnOnce(&mut Refusals) -> T) -> T {
        ask(&mut self.shared.refusals.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn take(&mut self, message: Message, flushed: &mut Vec<SyncSender<()>>) {
        match message {
            Message::Record(record) => self.hold(&record),
            // Dropped, and so answered, once it is written.
            Message::Flush(done) => flushed.push(done),
        }
    }

    fn hold_counted(&mut self, records: Vec<AuditRecord>) {
        for record in records {
            self.hold(&record);
            self.shared.ring.lock().unwrap_or_else(PoisonError::into_inner).push(record);
        }
    }

    fn hold(&mut self, record: &AuditRecord) {
        if self.held.len() == BACKLOG {
            self.held.pop_front();
            self.shared.metrics.dropped.inc();
        }
        // Texts and numbers always are JSON.
        let Ok(mut line) = serde_json::to_vec(record) else { return };
        line.push(b'\n');
        self.held.push_back(line);
    }

    fn write(&mut self) {
        while !self.held.is_empty() {
            let (most, mut length) = (self.output.most(), 0);
            let fits = |line: &&Vec<u8>| {
                length += line.len() as u64;
                length <= most
            };
            let count = self.held.iter().take(BATCH).take_while(fits).count().max(1);
            let lines: Vec<u8> = self.held.iter().take(count).flatten().copied().collect();
            if let Err(error) = self.output.append(&lines) {
                self.failed(&error);
                return;
            }
            self.held.drain(..count);
            self.shared.metrics.records.inc_by(count as u64);
        }
        self.shared.metrics.unwritten.set(0);
        if self.shared.failing.swap(false, Relaxed) {
            tracing::info!(event = "audit_written_again", "the audit log is written again");
        }
    }

    fn failed(&mut self, error: &io::Error) {
        self.shared.failing.store(true, Relaxed);
        let held = self.held.len();
        self.shared.metrics.unwritten.set(i64::try_from(held).unwrap_or(i64::MAX));
        if self.warned.is_none_or(|warned| warned.elapsed() >= WARN_EVERY) {
            self.warned = Some(Instant::now());
            tracing::error!(event = "audit_unwritable", %error, held, "the audit log cannot be written: free space, or name another file with --audit-log");
        }
    }
}
