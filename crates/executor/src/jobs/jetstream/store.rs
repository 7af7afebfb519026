//! The streams of a queue, and what is in them.
//!
//! ```text
//! NAME-jobs       NAME.j.ID.record         the job; replaced only by who has read the one before
//!                 NAME.j.ID.request.N      its request, in parts that a message may hold
//!                 NAME.j.ID.answer.A.N     the answer to attempt A
//!                 NAME.key.DIGEST          the job of an idempotency key, and the fingerprint of its request
//!                 NAME.dead.TIME.ID        one for each dead letter
//! NAME-runs       NAME.run.PRIORITY.ID     one for each job that has not ended: as many as the stream may hold
//! NAME-callbacks  NAME.call.callback.ID    one for each callback that waits
//! ```
//! The jobs are kept by number, and read from the leader of the stream, so nobody acts on an old record. The other two are work
//! queues: a message goes when it is acknowledged.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::Mutex;

use super::{
    super::{
        job::{JobId, Stored as _},
        queue::{Bounds, Kind},
    },
    api::{Api, DeliveredMessage, Expected, JetStreamError, StoredMessage},
    record::Record,
};
use crate::nats::{Inbox, Nats};

/// Largest part of a body: half of what a server takes by default, as a stored message is read in base64.
const PART: usize = 512 << 10;

/// Room for the subject and the headers of a message.
const HEAD: usize = 4 << 10;

/// Attempts to change a record while others do: each failed one means that somebody else succeeded, and a job has few
/// writers, so that more are a mistake.
const MOST_ATTEMPTS: usize = 50;

/// Shortest time between two deliveries of one message.
const SHORTEST_LEASE_MS: u128 = 1;

/// A queue's place in JetStream.
#[derive(Clone)]
pub(super) struct Store {
    pub(super) api: Api,
    /// Begin of all subjects.
    pub(super) name: String,
    /// The same for streams, whose names have no dots.
    stream: String,
    /// The inboxes of tasks, by kind.
    inboxes: Arc<[Mutex<Inbox>; 2]>,
}

/// Bodies of a job.
#[derive(Clone, Copy)]
pub(super) enum JobBody {
    Request,
    /// The answer to this attempt.
    Answer(u32),
}

impl Store {
    pub(super) async fn new(nats: Nats, key: &str) -> Result<Self, JetStreamError> {
        let inboxes = Arc::new([Mutex::new(nats.inbox().await?), Mutex::new(nats.inbox().await?)]);
        Ok(Self { api: Api(nats), name: format!("berth-jobs.{key}"), stream: format!("berth-jobs-{key}"), inboxes })
    }

    pub(super) fn jobs(&self) -> String {
        format!("{}-jobs", self.stream)
    }

    /// The stream of tasks of a kind.
    pub(super) fn tasks(&self, kind: Kind) -> String {
        match kind {
            Kind::Run => format!("{}-runs", self.stream),
            Kind::Callback => format!("{}-callbacks", self.stream),
        }
    }

    /// Subjects of all tasks of a kind.
    pub(super) fn subjects(&self, kind: Kind) -> String {
        match kind {
            Kind::Run => format!("{}.run.*.*", self.name),
            Kind::Callback => format!("{}.call.*.*", self.name),
        }
    }

    /// The subject at which ends are told. Nothing keeps it.
    pub(super) fn ended(&self) -> String {
        format!("{}.ended", self.name)
    }

    /// Makes the streams and their consumers, where they are not there. Replicas and storage of streams that are there stay.
    pub(super) async fn prepare(&self, bounds: &Bounds, replicas: usize) -> Result<(), JetStreamError> {
        let name = &self.name;
        let kept = [format!("{name}.j.>"), format!("{name}.key.*"), format!("{name}.dead.*.*")];
        let jobs = json!({ "subjects": kept, "retention": "limits", "max_msgs_per_subject": 1, "max_msgs": -1, "discard": "old" });
        self.stream(&self.jobs(), jobs, replicas).await?;
        let work = |kind, most: i64| json!({ "subjects": [self.subjects(kind)], "retention": "workqueue", "discard": "new", "max_msgs": most });
        let most = i64::try_from(bounds.most).unwrap_or(i64::MAX);
        self.stream(&self.tasks(Kind::Run), work(Kind::Run, most), replicas).await?;
        self.stream(&self.tasks(Kind::Callback), work(Kind::Callback, -1), replicas).await?;
        let wait = u64::try_from(bounds.lease.as_millis().max(SHORTEST_LEASE_MS) * 1_000_000).unwrap_or(u64::MAX);
        for kind in [Kind::Run, Kind::Callback] {
            for lane in lanes(kind) {
                let stream = self.tasks(kind);
                let config = json!({
                    "durable_name": lane, "ack_policy": "explicit", "deliver_policy": "all", "ack_wait": wait,
                    "max_deliver": -1, "max_ack_pending": -1, "filter_subject": self.task(kind, lane, "*"),
                });
                let request = json!({ "stream_name": stream, "config": config });
                self.api.call(format!("CONSUMER.DURABLE.CREATE.{stream}.{lane}"), &request).await?;
            }
        }
        Ok(())
    }

    async fn stream(&self, name: &str, mut config: Value, replicas: usize) -> Result<(), JetStreamError> {
        let found = match self.api.call(format!("STREAM.INFO.{name}"), &Value::Null).await {
            Ok(info) => info,
            Err(JetStreamError::Missing(_)) => {
                config["name"] = json!(name);
                config["num_replicas"] = json!(replicas);
                config["storage"] = json!("file");
                return self.api.call(format!("STREAM.CREATE.{name}"), &config).await.map(drop);
            }
            Err(error) => return Err(error),
        };
        if found["config"]["max_msgs"] == config["max_msgs"] {
            return Ok(());
        }
        let mut changed = found["config"].clone();
        changed["max_msgs"] = config["max_msgs"].take();
        self.api.call(format!("STREAM.UPDATE.{name}"), &changed).await.map(drop)
    }

    fn record_of(&self, id: &JobId) -> String {
        format!("{}.j.{id}.record", self.name)
    }

    pub(super) fn task(&self, kind: Kind, lane: &str, id: &str) -> String {
        let word = if kind == Kind::Run { "run" } else { "call" };
        format!("{}.{word}.{lane}.{id}", self.name)
    }

    /// The job, and the number of its record.
    pub(super) async fn read(&self, id: &JobId) -> Result<Option<(Record, u64)>, JetStreamError> {
        let Some(StoredMessage { data, sequence, .. }) = self.api.last(&self.jobs(), &self.record_of(id)).await? else {
            return Ok(None);
        };
        let unreadable =
            || JetStreamError::Other(format!("job {id} cannot be read: a newer version of the executor wrote it"));
        Ok(Some((Record::of_bytes(&data).ok_or_else(unreadable)?, sequence)))
    }

    /// Stores a record in the place of the one with this number; 0: where there is none.
    pub(super) async fn write(&self, id: &JobId, record: &Record, before: u64) -> Result<(), JetStreamError> {
        self.api.publish(self.record_of(id), record.to_bytes().into(), Some(before)).await.map(drop)
    }

    /// Changes a job as it is now. `change` is asked again when somebody else was faster; `None` leaves the job as it is.
    pub(super) async fn change<T>(
        &self,
        id: &JobId,
        change: impl Fn(&mut Record) -> Option<T>,
    ) -> Result<Option<(T, Record)>, JetStreamError> {
        for _ in 0..MOST_ATTEMPTS {
            let Some((mut record, number)) = self.read(id).await? else { return Ok(None) };
            let Some(told) = change(&mut record) else { return Ok(None) };
            match self.write(id, &record, number).await {
                Ok(()) => return Ok(Some((told, record))),
                Err(JetStreamError::Changed) => {}
                Err(error) => return Err(error),
            }
        }
        Err(JetStreamError::Changed)
    }

    /// Size of the parts that a body is stored in.
    pub(super) fn part_size(&self) -> usize {
        self.api.0.max_payload().saturating_sub(HEAD).clamp(1 << 10, PART)
    }

    /// Stores a body in parts of a size; their number.
    pub(super) async fn store(
        &self,
        id: &JobId,
        what: JobBody,
        body: &[u8],
        size: usize,
    ) -> Result<u32, JetStreamError> {
        let mut parts = 0;
        for part in body.chunks(size) {
            self.api.publish(self.part(id, what, parts), Bytes::copy_from_slice(part), None).await?;
            parts += 1;
        }
        Ok(parts)
    }

    /// The body of these parts. `None`: it has gone.
    pub(super) async fn load(&self, id: &JobId, what: JobBody, parts: u32) -> Result<Option<Vec<u8>>, JetStreamError> {
        let mut body = Vec::new();
        for part in 0..parts {
            let Some(kept) = self.api.last(&self.jobs(), &self.part(id, what, part)).await? else { return Ok(None) };
            body.extend_from_slice(&kept.data);
        }
        Ok(Some(body))
    }

    fn part(&self, id: &JobId, what: JobBody, part: u32) -> String {
        match what {
            JobBody::Request => format!("{}.j.{id}.request.{part}", self.name),
            JobBody::Answer(attempt) => format!("{}.j.{id}.answer.{attempt}.{part}", self.name),
        }
    }

    /// Removes a body.
    pub(super) async fn drop_body(&self, id: &JobId, what: JobBody) -> Result<(), JetStreamError> {
        let subject = self.part(id, what, 0);
        let filter = format!("{}>", subject.trim_end_matches('0'));
        self.api.purge(&self.jobs(), &filter).await
    }

    /// Removes all of a job but its key.
    pub(super) async fn forget(&self, id: &JobId) -> Result<(), JetStreamError> {
        self.api.purge(&self.jobs(), &format!("{}.j.{id}.>", self.name)).await
    }

    /// Makes a task of a job wait to be taken. One that waits already stays as it is.
    pub(super) async fn enqueue(&self, kind: Kind, lane: &str, id: &JobId) -> Result<(), JetStreamError> {
        match self.api.publish(self.task(kind, lane, id.as_str()), Bytes::new(), Some(0)).await {
            Ok(_) | Err(JetStreamError::Changed) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// True if the task waits, or somebody has it.
    pub(super) async fn is_enqueued(&self, kind: Kind, lane: &str, id: &JobId) -> Result<bool, JetStreamError> {
        let subject = self.task(kind, lane, id.as_str());
        self.api.last(&self.tasks(kind), &subject).await.map(|kept| kept.is_some())
    }

    /// The next message of the first lane that has one.
    pub(super) async fn take(&self, kind: Kind) -> Result<Option<(JobId, DeliveredMessage)>, JetStreamError> {
        let mut inbox = self.inboxes[kind as usize].lock().await;
        for lane in lanes(kind) {
            if let Some(given) = self.api.take(&self.tasks(kind), lane, &mut inbox).await? {
                let id = given.subject.rsplit('.').next().and_then(JobId::parse);
                let id = id.ok_or_else(|| JetStreamError::Other(format!("{} is no task", given.subject)))?;
                return Ok(Some((id, given)));
            }
        }
        Ok(None)
    }

    /// Tasks of a lane, those that somebody has among them.
    pub(super) async fn count(&self, kind: Kind, lane: &str) -> Result<u64, JetStreamError> {
        let info = self.api.call(format!("CONSUMER.INFO.{}.{lane}", self.tasks(kind)), &Value::Null).await?;
        Ok(info["num_pending"].as_u64().unwrap_or(0) + info["num_ack_pending"].as_u64().unwrap_or(0))
    }

    /// The job of a key with the fingerprint of its request, and the number of the entry.
    pub(super) async fn keyed(&self, key: &str) -> Result<Option<(JobId, Vec<u8>, u64)>, JetStreamError> {
        let Some(kept) = self.api.last(&self.jobs(), &self.key(key)).await? else { return Ok(None) };
        let read = kept.data.split_at_checked(32).and_then(|(id, print)| {
            Some((std::str::from_utf8(id).ok().and_then(JobId::parse)?, print.to_vec(), kept.sequence))
        });
        read.map(Some).ok_or_else(|| JetStreamError::Other(format!("{} is no entry of a key", kept.subject)))
    }

    /// Gives a key to a job, in the place of the entry with this number.
    pub(super) async fn give_key(
        &self,
        key: &str,
        id: &JobId,
        fingerprint: &[u8],
        before: Expected,
    ) -> Result<(), JetStreamError> {
        let entry = [id.as_str().as_bytes(), fingerprint].concat();
        self.api.publish(self.key(key), entry.into(), before).await.map(drop)
    }

    pub(super) fn key(&self, digest: &str) -> String {
        format!("{}.key.{digest}", self.name)
    }

    pub(super) fn dead(&self, ended: u64, id: &str) -> String {
        format!("{}.dead.{ended:016x}.{id}", self.name)
    }

    /// Dead letters, the latest first.
    pub(super) async fn dead_letters(&self) -> Result<Vec<JobId>, JetStreamError> {
        let which = json!({ "subjects_filter": format!("{}.dead.*.*", self.name) });
        let info = self.api.call(format!("STREAM.INFO.{}", self.jobs()), &which).await?;
        let subjects = info["state"]["subjects"].as_object();
        let mut all: Vec<&str> = subjects.into_iter().flat_map(|all| all.keys()).map(String::as_str).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        Ok(all.into_iter().filter_map(|subject| JobId::parse(subject.rsplit('.').next()?)).collect())
    }
}

/// The lanes of a kind, in the order in which they are looked at.
pub(super) const fn lanes(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Run => &["high", "normal", "low"],
        Kind::Callback => &["callback"],
    }
}

/// A key as a subject may hold it.
pub(super) fn digest(key: &str) -> String {
    let digest: [u8; 32] = Sha256::digest(key.as_bytes()).into();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Milliseconds since the Unix epoch.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
