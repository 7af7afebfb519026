//! The handle of the audit log. Cheap to clone; clones are one log.

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc, PoisonError,
        atomic::Ordering::Relaxed,
        mpsc::{SyncSender, TrySendError, sync_channel},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use berth_spec::Time;
use berth_wire::api::{AuditOutcome, AuditPort, AuditRecord, NodeAudit, Timestamp};
use prometheus_client::registry::Registry;

use crate::{
    file::{self, RotatedFile},
    ring::Ring,
    writer::{Message, Output, Shared, Writer},
};

/// Records in the queue: a burst of a script. Whoever does more waits for the disk.
const QUEUE: usize = 1_024;

/// Bytes of the file that are read at start, for `berth audit`.
const READ_AT_START: u64 = 2 << 20;

/// Bytes of the records of one node in an answer, less than what one node takes from another at once.
const MOST_BYTES: usize = 1 << 20;

/// Settings of the audit log of a node.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name of this node, which every record has.
    pub node: String,
    /// Place that it is written to.
    pub target: Target,
    /// Bytes of one file.
    pub size: u64,
    /// Files before the current one that are kept.
    pub keep: u32,
    /// Changes are refused while the log cannot be written.
    pub required: bool,
}

/// Place that the log is written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A file at this path, with older ones beside it.
    File(PathBuf),
    /// Standard output; what reads it keeps it.
    Stdout,
}

/// Refusal of a change that could not be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the audit log cannot be written, and --audit-required lets nothing be changed without it: the log of the node says why"
)]
pub struct Unwritable;

/// A question for records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query {
    /// Only records after this number.
    pub after: u64,
    /// Only records since this time.
    pub since: Option<Time>,
    /// Only records of this principal.
    pub principal: Option<String>,
    /// The most records, the latest.
    pub limit: usize,
}

/// The audit log of a process. Clones share it.
#[derive(Clone)]
pub struct AuditLog(Arc<Inner>);

struct Inner {
    node: String,
    /// `None`: it is kept in memory alone.
    messages: Option<SyncSender<Message>>,
    required: bool,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuditLog").field("node", &self.0.node).finish_non_exhaustive()
    }
}

impl Default for AuditLog {
    /// In memory alone.
    fn default() -> Self {
        Self(Arc::new(Inner { node: "local".to_owned(), messages: None, required: false, shared: Arc::default() }))
    }
}

impl AuditLog {
    /// Opens the file, reads its last records, and starts the thread that writes.
    ///
    /// # Errors
    /// [`io::Error`]: it cannot be read or written.
    pub fn open(settings: Settings, registry: &mut Registry) -> io::Result<Self> {
        let Settings { node, target, size, keep, required } = settings;
        let shared = Arc::new(Shared::default());
        shared.metrics.register(registry);
        let output = match target {
            Target::Stdout => Output::Stdout,
            Target::File(path) => {
                let mut ring = Ring::default();
                // Lines of a later version are left out.
                for record in
                    file::tail(&path, READ_AT_START)?.lines().filter_map(|line| serde_json::from_str(line).ok())
                {
                    ring.push(record);
                }
                *shared.ring.lock().unwrap_or_else(PoisonError::into_inner) = ring;
                let mut file = RotatedFile::new(path, size, keep);
                // What is wrong with it is told now.
                file.append(b"")?;
                Output::File(file)
            }
        };
        let (messages, received) = sync_channel(QUEUE);
        let writer =
            Writer { messages: received, output, shared: Arc::clone(&shared), held: Default::default(), warned: None };
        std::thread::Builder::new().name("audit".to_owned()).spawn(move || writer.run())?;
        Ok(Self(Arc::new(Inner { node, messages: Some(messages), required, shared })))
    }

    /// Now, by the machine's clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        now()
    }

    /// A record of now, on this node, to be completed: an action of a principal.
    #[must_use]
    pub fn begin(&self, port: AuditPort, principal: &str, action: &str, operation: impl Into<String>) -> AuditRecord {
        AuditRecord {
            at: now(),
            node: self.0.node.clone(),
            port,
            request_id: None,
            principal: principal.to_owned(),
            address: None,
            action: action.to_owned(),
            operation: operation.into(),
            resources: Vec::new(),
            more_resources: 0,
            outcome: AuditOutcome { status: 200, reason: String::new() },
            count: 1,
        }
    }

    /// Keeps a record. Waits while the queue is full: it is never lost while the process lives and the disk takes it.
    pub async fn record(&self, record: AuditRecord) {
        self.remember(&record);
        let Some(messages) = &self.0.messages else { return };
        let Err(TrySendError::Full(message)) = messages.try_send(Message::Record(Box::new(record))) else { return };
        let messages = messages.clone();
        // The thread that writes lives as long as this handle.
        let _ = tokio::task::spawn_blocking(move || messages.send(message)).await;
    }

    /// Keeps a refusal of somebody who may not do what was asked, damped. Never waits: where there is no room it is
    /// counted as lost.
    pub fn refuse(&self, record: AuditRecord) {
        let shared = &self.0.shared;
        shared.metrics.refused.inc();
        let taken = shared.refusals.lock().unwrap_or_else(PoisonError::into_inner).take(record, Instant::now());
        let Some(record) = taken else { return };
        self.remember(&record);
        if let Some(messages) = &self.0.messages
            && messages.try_send(Message::Record(Box::new(record))).is_err()
        {
            shared.metrics.dropped.inc();
        }
    }

    /// Asks if something may be changed now.
    ///
    /// # Errors
    /// [`Unwritable`] where records are required and cannot be written.
    pub fn check(&self) -> Result<(), Unwritable> {
        if self.0.required && self.0.shared.failing.load(Relaxed) { Err(Unwritable) } else { Ok(()) }
    }

    /// Recent records of this node.
    #[must_use]
    pub fn read(&self, query: &Query) -> NodeAudit {
        let ring = self.0.shared.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = 0;
        let mut records: Vec<AuditRecord> = ring
            .after(query.after)
            .take_while(|record| query.since.is_none_or(|since| record.at.0 >= since))
            .filter(|record| query.principal.as_ref().is_none_or(|principal| *principal == record.principal))
            .take(query.limit)
            .take_while(|record| {
                bytes += 512 + record.resources.len() * 256;
                bytes <= MOST_BYTES
            })
            .cloned()
            .collect();
        records.reverse();
        NodeAudit { node: self.0.node.clone(), records, last: ring.last() }
    }

    /// Waits until all that was recorded is written, for at most `patience`. Blocks.
    pub fn flush(&self, patience: Duration) {
        let Some(messages) = &self.0.messages else { return };
        let (done, written) = sync_channel(0);
        if messages.send(Message::Flush(done)).is_ok() {
            // Ends when the writer drops its end.
            let _ = written.recv_timeout(patience);
        }
    }

    fn remember(&self, record: &AuditRecord) {
        self.0.shared.ring.lock().unwrap_or_else(PoisonError::into_inner).push(record.clone());
    }
}

/// Now, by the machine's clock.
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(Time(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use fs_err as fs;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn settings(path: PathBuf, required: bool) -> Settings {
        Settings { node: "a".to_owned(), target: Target::File(path), size: 1 << 20, keep: 1, required }
    }

    fn all() -> Query {
        Query { limit: 100_000, ..Query::default() }
    }

    #[tokio::test]
    async fn what_is_recorded_is_in_the_file_and_outlives_the_process() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.log");
        let log = AuditLog::open(settings(path.clone(), false), &mut Registry::default()).expect("it opens");
        for at in 0..3_000 {
            log.record(log.begin(AuditPort::Api, &format!("token:{at}"), "declare", "POST /v1/apply")).await;
        }
        log.flush(PATIENCE);
        let lines = fs::read_to_string(&path).expect("text");
        assert_eq!(lines.lines().count(), 3_000);
        let read = log.read(&Query { principal: Some("token:2999".to_owned()), ..all() });
        assert_eq!(read.records.len(), 1);
        assert_eq!(log.read(&Query { after: read.last, ..all() }).records, []);
        drop(log);
        let again = AuditLog::open(settings(path, false), &mut Registry::default()).expect("it opens");
        let kept = again.read(&Query { limit: 1, ..all() });
        assert_eq!(kept.records[0].principal, "token:2999");
        again.record(again.begin(AuditPort::Api, "token:new", "declare", "POST /v1/apply")).await;
        let new = again.read(&Query { after: read.last, ..all() }).records;
        assert_eq!(new.last().map(|record| record.principal.as_str()), Some("token:new"), "a cursor of before goes on");
    }

    #[tokio::test]
    async fn what_is_recorded_at_once_is_spread_over_files_of_the_size() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.log");
        let small = Settings { size: 4_096, keep: 2, ..settings(path, false) };
        let log = AuditLog::open(small, &mut Registry::default()).expect("it opens");
        for at in 0..1_000 {
            log.record(log.begin(AuditPort::Api, &format!("token:{at}"), "declare", "POST /v1/apply")).await;
        }
        log.flush(PATIENCE);
        for name in ["audit.log", "audit.log.1", "audit.log.2"] {
            let length = fs::metadata(folder.path().join(name)).expect("it is there").len();
            assert!((1..=4_096).contains(&length), "{name}: {length}");
        }
    }

    #[tokio::test]
    async fn where_the_disk_takes_nothing_changes_go_on_unless_records_are_required() {
        for required in [false, true] {
            let folder = tempfile::tempdir().expect("a folder");
            let inner = folder.path().join("inner");
            fs::create_dir(&inner).expect("a folder");
            let path = inner.join("audit.log");
            let mut one = settings(path.clone(), required);
            // Each record is a new file, which cannot be made once the folder is gone.
            one.size = 1;
            let log = AuditLog::open(one, &mut Registry::default()).expect("it opens");
            log.record(log.begin(AuditPort::Api, "first", "declare", "POST /v1/apply")).await;
            log.flush(PATIENCE);
            assert_eq!(log.check(), Ok(()));
            fs::remove_dir_all(&inner).expect("it goes");
            for _ in 0..3 {
                log.record(log.begin(AuditPort::Api, "second", "declare", "POST /v1/apply")).await;
            }
            log.flush(PATIENCE);
            assert_eq!(log.check().is_err(), required);
            fs::create_dir(&inner).expect("a folder");
            let deadline = Instant::now() + PATIENCE;
            while log.0.shared.failing.load(Relaxed) {
                assert!(Instant::now() < deadline, "it is tried again");
                log.flush(PATIENCE);
            }
            let written = fs::read_dir(&inner).expect("a folder").count();
            assert!(written >= 1 && log.check().is_ok());
        }
    }

    #[test]
    fn refusals_are_few_lines() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.log");
        let log = AuditLog::open(settings(path.clone(), false), &mut Registry::default()).expect("it opens");
        for _ in 0..10_000 {
            log.refuse(log.begin(AuditPort::Inference, "nobody", "infer", "POST /v2/models/{name}/infer"));
        }
        log.flush(PATIENCE);
        let text = fs::read_to_string(&path).expect("text");
        let counts: Vec<u64> =
            text.lines().map(|line| serde_json::from_str::<AuditRecord>(line).expect("a record").count).collect();
        assert_eq!(counts, [1, 9_999]);
    }
}
