//! The queue in NATS JetStream (2.9 or later), shared by all executors that name the same key.
//!
//! ```text
//! submit: record ─▶ request ─▶ key ─▶ task          take:  task ─▶ record says "held" ─▶ request
//! end:    answer ─▶ record says "ended" ─▶ callback's task ─▶ task acknowledged
//! ```
//! The record of a job decides: it is replaced only by who has read the one before, so of several ends one counts. Each operation may
//! break off after any of its steps. Before the task is there, nobody was told that the job was accepted, and the sweep removes the
//! rest. After the record says that the job has ended, its task comes again, and whoever gets it does what is left.

mod api;
mod record;
mod store;
mod sweep;

use std::{sync::Arc, time::Duration};

use futures::FutureExt as _;
use serde_json::json;
use tokio::{
    sync::{Mutex, Notify, broadcast},
    task::JoinSet,
    time::{sleep, timeout},
};

use self::{
    api::{DeliveredMessage, JetStreamError},
    record::Record,
    store::{JobBody, Store, digest, lanes, now},
    sweep::Sweep,
};
use super::{
    job::{Answer, JobId, State, Status, Stored as _, StoredRequest},
    job_table::taken_too_often,
    queue::{
        Bounds, Cancelled, Completion, Depth, Kind, Lease, MOST_TAKEN, NewJob, Queue, QueueError, QueueFuture,
        Submitted, Task,
    },
};
use crate::{
    broker::{Broker, TIMEOUT},
    nats::Nats,
};

/// Longest wait of one [`Queue::take`]: tasks that come again are told by nobody.
const WAIT: Duration = Duration::from_secs(1);

/// Pause between two attempts to follow the queue: it only makes waiting shorter, and jobs run without.
const FOLLOW_AGAIN: Duration = Duration::from_secs(5);

/// Bytes of a request from which the room is asked for before it is stored.
const CHECK_ROOM_ABOVE: u64 = 64 << 10;

pub(crate) struct JetStreamQueue {
    broker: Broker,
    key: String,
    replicas: usize,
    bounds: Bounds,
    /// The place in NATS, once its streams are there.
    store: Mutex<Option<Store>>,
    wakes: Arc<Wakes>,
    ended: broadcast::Sender<JobId>,
    /// Aborted with the queue.
    tasks: Mutex<JoinSet<()>>,
}

/// Told when a task may wait.
#[derive(Default)]
struct Wakes {
    runs: Notify,
    callbacks: Notify,
}

impl Wakes {
    const fn of(&self, kind: Kind) -> &Notify {
        match kind {
            Kind::Run => &self.runs,
            Kind::Callback => &self.callbacks,
        }
    }
}

impl JetStreamQueue {
    /// Connects when it is first asked.
    pub(crate) fn new(broker: Broker, key: &str, replicas: usize, bounds: Bounds) -> Self {
        Self {
            broker,
            key: key.to_owned(),
            replicas,
            bounds,
            store: Mutex::default(),
            wakes: Arc::default(),
            ended: broadcast::Sender::new(1_024),
            tasks: Mutex::default(),
        }
    }

    /// The store, with its streams.
    async fn store(&self) -> Result<Store, QueueError> {
        let late = |_| QueueError("NATS: no connection in time".to_owned());
        let mut slot = timeout(TIMEOUT, self.store.lock()).await.map_err(late)?;
        if let Some(store) = &*slot {
            return Ok(store.clone());
        }
        let mut tasks = self.tasks.lock().await;
        *tasks = JoinSet::new();
        let (nats, connection) = Nats::new(self.broker.clone());
        tasks.spawn(connection);
        let store = Store::new(nats, &self.key).await?;
        store.prepare(&self.bounds, self.replicas).await?;
        tasks.spawn(Sweep::new(store.clone(), self.bounds.keep).run());
        tasks.spawn(follow(store.clone(), Arc::clone(&self.wakes), self.ended.clone()));
        Ok(slot.insert(store).clone())
    }

    /// Does something with the store. Where its streams have gone, the next one makes them again.
    async fn with<T, F: Future<Output = Result<T, JetStreamError>>>(
        &self,
        doing: impl FnOnce(Store) -> F,
    ) -> Result<T, QueueError> {
        match doing(self.store().await?).await {
            Err(error @ JetStreamError::Missing(_)) => {
                *self.store.lock().await = None;
                Err(error.into())
            }
            done => Ok(done?),
        }
    }

    async fn handed_in(&self, store: Store, job: NewJob) -> Result<Submitted, JetStreamError> {
        let fingerprint = job.request.fingerprint();
        let key = job.key.as_deref().map(digest);
        loop {
            let before = match &key {
                None => 0,
                Some(key) => match store.keyed(key).await? {
                    None => 0,
                    Some((id, print, number)) => match known(&store, id, print == fingerprint).await? {
                        Some(submitted) => return Ok(submitted),
                        // An executor was killed before its job was accepted.
                        None => number,
                    },
                },
            };
            if job.request.bytes() > CHECK_ROOM_ABOVE
                && depth(&store).await?.jobs.iter().sum::<u64>() >= self.bounds.most as u64
            {
                return Ok(Submitted::Full);
            }
            let (request, size) = (job.request.to_bytes(), store.part_size());
            let parts = u32::try_from(request.len().div_ceil(size)).unwrap_or(u32::MAX);
            store.write(&job.id, &Record::new(&job, key.clone(), parts, now()), 0).await?;
            store.store(&job.id, JobBody::Request, &request, size).await?;
            let keyed = match &key {
                None => Ok(()),
                Some(key) => store.give_key(key, &job.id, &fingerprint, Some(before)).await,
            };
            let enqueued = match keyed {
                Ok(()) => store.enqueue(Kind::Run, job.priority.as_str(), &job.id).await,
                Err(error) => Err(error),
            };
            match enqueued {
                Ok(()) => return Ok(Submitted::New),
                // Another one was handed in with the same key, at the same time.
                Err(JetStreamError::Changed) => store.forget(&job.id).await?,
                Err(JetStreamError::Full) => {
                    store.forget(&job.id).await?;
                    return Ok(Submitted::Full);
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn next(&self, store: Store, kind: Kind) -> Result<Option<Task>, JetStreamError> {
        let woken = self.wakes.of(kind).notified();
        if let Some(task) = try_take(&store, kind).await? {
            return Ok(Some(task));
        }
        // Whoever waits here is told, or looks again.
        let _ = timeout(WAIT, woken).await;
        try_take(&store, kind).await
    }
}

/// The outcome for a request whose key has a job already. `None`: that has gone, or was never accepted.
async fn known(store: &Store, id: JobId, is_same: bool) -> Result<Option<Submitted>, JetStreamError> {
    let Some((record, _)) = store.read(&id).await? else { return Ok(None) };
    if !is_same {
        return Ok(Some(Submitted::Conflict));
    }
    if record.state == State::Queued && !record.run.held {
        // There already, unless its executor was killed just before.
        match store.enqueue(Kind::Run, record.priority.as_str(), &id).await {
            Err(JetStreamError::Full) => return Ok(Some(Submitted::Full)),
            enqueued => enqueued?,
        }
    }
    Ok(Some(Submitted::Known(id)))
}

async fn try_take(store: &Store, kind: Kind) -> Result<Option<Task>, JetStreamError> {
    while let Some((id, DeliveredMessage { reply, .. })) = store.take(kind).await? {
        let turned = store.change(&id, |record| {
            if !record.is_open(kind) {
                return None;
            }
            let turns = record.turns(kind);
            (turns.attempts, turns.held) = (turns.attempts + 1, true);
            let attempt = turns.attempts;
            if kind == Kind::Run {
                record.state = State::Running;
            }
            Some(attempt)
        });
        let Some((attempt, record)) = turned.await? else {
            // It has ended, and its executor was killed before all was done; or it was never accepted.
            if let Some((record, _)) = store.read(&id).await?
                && record.state.is_end()
            {
                after_end(store, &id, &record).await?;
            }
            store.api.acknowledge(&reply, "+ACK".to_owned()).await?;
            continue;
        };
        let lease = Lease { id, kind, attempt, entry: reply };
        let stored = store.load(&lease.id, JobBody::Request, record.request).await?;
        let why = match stored.as_deref().and_then(StoredRequest::of_bytes) {
            Some(request) if attempt <= MOST_TAKEN => {
                return Ok(Some(Task { lease, request, callback: record.callback }));
            }
            Some(_) => taken_too_often(),
            None => "the stored request cannot be read: a newer version of the executor has written it".to_owned(),
        };
        finish(store, &lease, Completion::Dead { why, answer: None }).await?;
    }
    Ok(None)
}

/// Ends a task, once.
async fn finish(store: &Store, lease: &Lease, end: Completion) -> Result<bool, JetStreamError> {
    let Lease { id, kind, attempt, entry } = lease;
    let (state, why, answer) = match end {
        Completion::Answered(answer) => (State::Done, None, Some(answer)),
        Completion::Delivered => (State::Done, None, None),
        Completion::Dead { why, answer } => (State::Dead, Some(why), answer),
    };
    // Another answer of the same attempt would take the place of the first.
    if !store.read(id).await?.is_some_and(|(record, _)| record.is_open(*kind)) {
        store.api.acknowledge(entry, "+ACK".to_owned()).await?;
        return Ok(false);
    }
    let parts = match &answer {
        Some(answer) => store.store(id, JobBody::Answer(*attempt), &answer.to_bytes(), store.part_size()).await?,
        None => 0,
    };
    let ended = store.change(id, |record| {
        if !record.is_open(*kind) {
            return None;
        }
        record.turns(*kind).held = false;
        match kind {
            Kind::Callback => record.told(state == State::Done),
            Kind::Run => {
                record.end(state, why.clone(), now());
                record.answer = (parts > 0).then_some((*attempt, parts));
            }
        }
        Some(())
    });
    let ended = ended.await?;
    if let (Some(((), record)), Kind::Run) = (&ended, kind) {
        after_end(store, id, record).await?;
    }
    if ended.is_none() && parts > 0 {
        store.drop_body(id, JobBody::Answer(*attempt)).await?;
    }
    store.api.acknowledge(entry, "+ACK".to_owned()).await?;
    Ok(ended.is_some())
}

/// All that follows from the end of a job. Done again where it was broken off.
async fn after_end(store: &Store, id: &JobId, record: &Record) -> Result<(), JetStreamError> {
    if record.is_open(Kind::Callback) {
        store.enqueue(Kind::Callback, "callback", id).await?;
    }
    if record.state == State::Dead {
        store.api.publish(store.dead(record.ended, id.as_str()), bytes::Bytes::new(), None).await?;
    }
    // Nobody may hear it: it is a hint.
    let _ = store.api.0.publish(store.ended(), id.to_string().into()).await;
    Ok(())
}

async fn again(store: &Store, lease: &Lease, after: Duration, why: &str) -> Result<bool, JetStreamError> {
    let put_back = store.change(&lease.id, |record| {
        record.held(lease)?.held = false;
        if lease.kind == Kind::Run {
            (record.state, record.error) = (State::Queued, Some(why.to_owned()));
        }
        Some(())
    });
    let put_back = put_back.await?.is_some();
    if put_back {
        let delay = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        let how = if delay == 0 { "-NAK".to_owned() } else { format!("-NAK {}", json!({ "delay": delay })) };
        store.api.acknowledge(&lease.entry, how).await?;
    }
    Ok(put_back)
}

async fn revive(store: &Store, id: &JobId) -> Result<bool, JetStreamError> {
    let Some((before, number)) = store.read(id).await? else { return Ok(false) };
    if before.state != State::Dead {
        return Ok(false);
    }
    let (marker, record) = (store.dead(before.ended, id.as_str()), before.clone().revived());
    match store.write(id, &record, number).await {
        Err(JetStreamError::Changed) => return Ok(false),
        written => written?,
    }
    if let Err(error) = store.enqueue(Kind::Run, record.priority.as_str(), id).await {
        store.change(id, |record| (*record != before).then(|| *record = before.clone())).await?;
        return Err(error);
    }
    store.api.purge(&store.jobs(), &marker).await?;
    Ok(true)
}

async fn cancel(store: &Store, id: &JobId) -> Result<Cancelled, JetStreamError> {
    let cancelled = store.change(id, |record| {
        let open = record.is_open(Kind::Run);
        open.then(|| record.end(State::Cancelled, None, now()))
    });
    match cancelled.await? {
        Some(((), record)) => {
            after_end(store, id, &record).await?;
            // Its task goes at once, so that there is room for another one. Whoever has it finds that the job has ended.
            let subject = store.task(Kind::Run, record.priority.as_str(), id.as_str());
            store.api.purge(&store.tasks(Kind::Run), &subject).await?;
            Ok(Cancelled::Now)
        }
        None => Ok(match store.read(id).await? {
            None => Cancelled::Unknown,
            Some((record, _)) => Cancelled::Ended(record.state),
        }),
    }
}

async fn depth(store: &Store) -> Result<Depth, JetStreamError> {
    let mut jobs = [0; 3];
    for (count, lane) in jobs.iter_mut().zip(lanes(Kind::Run)) {
        *count = store.count(Kind::Run, lane).await?;
    }
    let callbacks = store.count(Kind::Callback, "callback").await?;
    Ok(Depth { jobs, callbacks, dead: store.dead_letters().await?.len() as u64 })
}

/// Wakes takers, and tells of ends, of this executor's jobs and of others'.
async fn follow(store: Store, wakes: Arc<Wakes>, ended: broadcast::Sender<JobId>) {
    let nats = &store.api.0;
    let (mut runs, mut callbacks, mut ends) = loop {
        let subscribed = tokio::try_join!(
            nats.subscribe(store.subjects(Kind::Run)),
            nats.subscribe(store.subjects(Kind::Callback)),
            nats.subscribe(store.ended()),
        );
        match subscribed {
            Ok(subscribed) => break subscribed,
            Err(_) => sleep(FOLLOW_AGAIN).await,
        }
    };
    loop {
        tokio::select! {
            Some(_) = runs.recv() => wakes.runs.notify_one(),
            Some(_) = callbacks.recv() => wakes.callbacks.notify_one(),
            Some(message) = ends.recv() => {
                if let Some(id) = std::str::from_utf8(&message.payload).ok().and_then(JobId::parse) {
                    // Nobody may be waiting for it.
                    let _ = ended.send(id);
                }
            }
            else => return,
        }
    }
}

impl Queue for JetStreamQueue {
    fn submit(&self, job: NewJob) -> QueueFuture<'_, Submitted> {
        self.with(|store| self.handed_in(store, job)).boxed()
    }

    fn take(&self, kind: Kind) -> QueueFuture<'_, Option<Task>> {
        self.with(move |store| self.next(store, kind)).boxed()
    }

    fn extend<'a>(&'a self, lease: &'a Lease) -> QueueFuture<'a, bool> {
        self.with(async |store| {
            let Some((mut record, _)) = store.read(&lease.id).await? else { return Ok(false) };
            let held = record.held(lease).is_some();
            if held {
                store.api.acknowledge(&lease.entry, "+WPI".to_owned()).await?;
            }
            Ok(held)
        })
        .boxed()
    }

    fn end<'a>(&'a self, lease: &'a Lease, end: Completion) -> QueueFuture<'a, bool> {
        self.with(async move |store| finish(&store, lease, end).await).boxed()
    }

    fn again<'a>(&'a self, lease: &'a Lease, after: Duration, why: &'a str) -> QueueFuture<'a, bool> {
        self.with(async move |store| again(&store, lease, after, why).await).boxed()
    }

    fn cancel<'a>(&'a self, id: &'a JobId) -> QueueFuture<'a, Cancelled> {
        self.with(async move |store| cancel(&store, id).await).boxed()
    }

    fn status<'a>(&'a self, id: &'a JobId) -> QueueFuture<'a, Option<Status>> {
        self.with(async move |store| Ok(store.read(id).await?.map(|(record, _)| record.status()))).boxed()
    }

    fn answer<'a>(&'a self, id: &'a JobId) -> QueueFuture<'a, Option<Answer>> {
        self.with(async move |store| {
            let read = store.read(id).await?;
            let Some((attempt, parts)) = read.and_then(|(record, _)| record.answer) else { return Ok(None) };
            let body = store.load(id, JobBody::Answer(attempt), parts).await?;
            Ok(body.as_deref().and_then(Answer::of_bytes))
        })
        .boxed()
    }

    fn dead(&self) -> QueueFuture<'_, Vec<JobId>> {
        self.with(async |store| {
            let mut ids = store.dead_letters().await?;
            ids.truncate(100);
            Ok(ids)
        })
        .boxed()
    }

    fn revive<'a>(&'a self, id: &'a JobId) -> QueueFuture<'a, bool> {
        self.with(async move |store| revive(&store, id).await).boxed()
    }

    fn depth(&self) -> QueueFuture<'_, Depth> {
        self.with(async |store| depth(&store).await).boxed()
    }

    fn ends_with_process(&self) -> bool {
        false
    }

    fn ended(&self) -> broadcast::Receiver<JobId> {
        self.ended.subscribe()
    }
}
