//! The queue in Redis (6.2 or later) or Valkey: streams with a consumer group, shared by all executors that name the same key.
//!
//! Each change is one script, so it happens whole or not at all. Keys, below a prefix with a hash tag (a cluster keeps them on one
//! node): `job:ID` a hash; `key:KEY` the job of an idempotency key; `high`, `normal`, `low`, `callback` the streams of tasks;
//! `later` tasks by the time of their next attempt; `open` the jobs that have not ended; `dead` dead letters; `ended` a short
//! stream of ends.

use std::{collections::HashMap, path::PathBuf, time::Duration};

use futures::FutureExt as _;
use redis::{
    AsyncCommands as _, AsyncConnectionConfig, Client, ClientTlsConfig, FromRedisValue, IntoConnectionInfo as _,
    RedisError, Script, TlsCertificates, Value,
    aio::MultiplexedConnection,
    streams::{StreamReadOptions, StreamReadReply},
};
use tokio::{
    sync::{Mutex, broadcast},
    task::JoinSet,
    time::sleep,
};

use super::{
    job::{Answer, CallbackState, JobId, Priority, State, Status, Stored as _, StoredRequest},
    queue::{
        Bounds, Cancelled, Completion, Depth, Kind, Lease, MOST_TAKEN, NewJob, Queue, QueueError, QueueFuture,
        Submitted, Task,
    },
};
use crate::{
    broker::{Broker, TIMEOUT},
    tls::TlsFiles,
};

/// Longest wait of one [`Queue::take`], in milliseconds.
const WAIT: usize = 1_000;

/// Longest wait for an answer to a question that Redis itself lets wait for [`WAIT`]: one that has gone without a word is left then.
const WAIT_AND_ANSWER: Duration = Duration::from_secs(1).saturating_add(TIMEOUT);

struct Scripts {
    submit: Script,
    take: Script,
    extend: Script,
    end: Script,
    again: Script,
    revive: Script,
    cancel: Script,
}

pub(crate) struct RedisQueue {
    client: Client,
    prefix: String,
    /// This process, among the consumers of the group.
    consumer: String,
    bounds: Bounds,
    scripts: Scripts,
    /// For what does not wait. `None`: it is made with the next question.
    connection: Mutex<Option<MultiplexedConnection>>,
    /// Connections that wait for tasks, by kind.
    runs: Mutex<Option<MultiplexedConnection>>,
    callbacks: Mutex<Option<MultiplexedConnection>>,
    ended: broadcast::Sender<JobId>,
    /// Aborted with the queue.
    _follower: JoinSet<()>,
}

impl From<RedisError> for QueueError {
    fn from(error: RedisError) -> Self {
        Self(format!("Redis: {error}"))
    }
}

impl RedisQueue {
    /// Connects when it is first asked.
    ///
    /// # Errors
    /// The URL is none of Redis, or a file cannot be used.
    pub(crate) fn new(broker: &Broker, key: &str, bounds: Bounds) -> Result<Self, QueueError> {
        let mut about = broker.url.as_str().into_connection_info()?;
        if let Some(password) = broker.login.password().map_err(QueueError)? {
            let settings = about.redis_settings().clone().set_password(password);
            about = about.set_redis_settings(settings);
        }
        let client = match &broker.tls {
            None => Client::open(about)?,
            Some(tls) => Client::build_with_tls(about, certificates(tls)?)?,
        };
        let prefix = format!("{{{key}}}:");
        let ended = broadcast::Sender::new(1_024);
        let mut follower = JoinSet::new();
        follower.spawn(follow(client.clone(), format!("{prefix}ended"), ended.clone()));
        Ok(Self {
            client,
            prefix,
            consumer: JobId::generate().to_string(),
            bounds,
            scripts: Scripts {
                submit: Script::new(include_str!("redis/submit.lua")),
                take: Script::new(include_str!("redis/take.lua")),
                extend: Script::new(include_str!("redis/extend.lua")),
                end: Script::new(include_str!("redis/end.lua")),
                again: Script::new(include_str!("redis/again.lua")),
                revive: Script::new(include_str!("redis/revive.lua")),
                cancel: Script::new(include_str!("redis/cancel.lua")),
            },
            connection: Mutex::default(),
            runs: Mutex::default(),
            callbacks: Mutex::default(),
            ended,
            _follower: follower,
        })
    }

    fn job(&self, id: &JobId) -> String {
        format!("{}job:{id}", self.prefix)
    }

    async fn connected(&self) -> Result<MultiplexedConnection, QueueError> {
        connected(&self.client, &self.connection, TIMEOUT).await
    }

    /// Answer of Redis; after an error of the connection the next question makes a new one.
    async fn checked<T>(&self, answer: Result<T, RedisError>) -> Result<T, QueueError> {
        if let Err(error) = &answer
            && (error.is_unrecoverable_error() || error.is_io_error())
        {
            *self.connection.lock().await = None;
        }
        Ok(answer?)
    }

    async fn call<T: FromRedisValue>(&self, script: &Script, arguments: &[&[u8]]) -> Result<T, QueueError> {
        let mut connection = self.connected().await?;
        let mut call = script.prepare_invoke();
        call.arg(&self.prefix);
        for argument in arguments {
            call.arg(*argument);
        }
        let answer = call.invoke_async(&mut connection).await;
        self.checked(answer).await
    }

    async fn next(&self, kind: Kind) -> Result<Option<Task>, QueueError> {
        let last = match self.try_take(kind).await? {
            TakeResult::Task(task) => return Ok(Some(task)),
            TakeResult::Nothing { last } => last,
        };
        let slot = if kind == Kind::Run { &self.runs } else { &self.callbacks };
        let mut connection = connected(&self.client, slot, WAIT_AND_ANSWER).await?;
        let streams: Vec<_> = lanes(kind).iter().map(|lane| format!("{}{lane}", self.prefix)).collect();
        // Without the group: this only wakes.
        let options = StreamReadOptions::default().block(WAIT).count(1);
        let woken: Result<Option<StreamReadReply>, _> = connection.xread_options(&streams, &last, &options).await;
        if let Err(error) = woken {
            *slot.lock().await = None;
            return Err(error.into());
        }
        match self.try_take(kind).await? {
            TakeResult::Task(task) => Ok(Some(task)),
            TakeResult::Nothing { .. } => Ok(None),
        }
    }

    async fn try_take(&self, kind: Kind) -> Result<TakeResult, QueueError> {
        loop {
            let lease = self.bounds.lease.as_millis().to_string();
            let mut arguments = vec![self.consumer.as_bytes(), lease.as_bytes(), counter(kind).as_bytes()];
            arguments.extend(lanes(kind).iter().map(|lane| lane.as_bytes()));
            let mut answer: Vec<Value> = self.call(&self.scripts.take, &arguments).await?;
            if answer.len() != 7 {
                let last = answer.drain(1..).map(text).collect::<Result<_, _>>()?;
                return Ok(TakeResult::Nothing { last });
            }
            let callback = Some(text(answer.remove(6))?).filter(|callback| !callback.is_empty());
            let request =
                Vec::<u8>::from_redis_value(answer.remove(5)).map_err(|error| QueueError(error.to_string()))?;
            let attempt = u32::from_redis_value(answer.remove(4)).map_err(|error| QueueError(error.to_string()))?;
            let id = JobId::parse(&text(answer.remove(3))?).ok_or_else(|| QueueError("a job has no id".to_owned()))?;
            let (entry, lane) = (text(answer.remove(2))?, text(answer.remove(1))?);
            let lease = Lease { id, kind, attempt, entry: format!("{lane} {entry}") };
            let why = match StoredRequest::of_bytes(&request) {
                Some(request) if attempt <= MOST_TAKEN => {
                    return Ok(TakeResult::Task(Task { lease, request, callback }));
                }
                Some(_) => super::job_table::taken_too_often(),
                None => "the stored request cannot be read: a newer version of the executor has written it".to_owned(),
            };
            self.finish(&lease, Completion::Dead { why, answer: None }).await?;
        }
    }

    async fn finish(&self, lease: &Lease, end: Completion) -> Result<bool, QueueError> {
        let (lane, entry) = place(lease);
        let (state, why, answer) = match end {
            Completion::Answered(answer) => ("done", String::new(), Some(answer)),
            Completion::Delivered => ("done", String::new(), None),
            Completion::Dead { why, answer } => ("dead", why, answer),
        };
        let answer = answer.map(|answer| answer.to_bytes()).unwrap_or_default();
        let keep = self.bounds.keep.as_millis().to_string();
        let id = lease.id.as_str();
        let arguments = [lane, entry, id, counter(lease.kind), state, &why].map(str::as_bytes);
        let arguments = [&arguments[..], &[&answer, keep.as_bytes()]].concat();
        self.call(&self.scripts.end, &arguments).await
    }
}

enum TakeResult {
    Task(Task),
    Nothing { last: Vec<String> },
}

impl Queue for RedisQueue {
    fn submit(&self, job: NewJob) -> QueueFuture<'_, Submitted> {
        async move {
            let NewJob { id, priority, key, callback, request } = job;
            let most = self.bounds.most.to_string();
            let (key, callback) = (key.unwrap_or_default(), callback.unwrap_or_default());
            let (fingerprint, request) = (request.fingerprint(), request.to_bytes());
            let arguments: [&[u8]; 7] = [
                id.as_str().as_bytes(),
                priority.as_str().as_bytes(),
                key.as_bytes(),
                &fingerprint,
                &request,
                callback.as_bytes(),
                most.as_bytes(),
            ];
            let (what, id): (String, String) = self.call(&self.scripts.submit, &arguments).await?;
            match (what.as_str(), JobId::parse(&id)) {
                ("new", _) => Ok(Submitted::New),
                ("known", Some(id)) => Ok(Submitted::Known(id)),
                ("conflict", _) => Ok(Submitted::Conflict),
                ("full", _) => Ok(Submitted::Full),
                _ => Err(QueueError(format!("Redis answered {what:?} to a submission"))),
            }
        }
        .boxed()
    }

    fn take(&self, kind: Kind) -> QueueFuture<'_, Option<Task>> {
        self.next(kind).boxed()
    }

    fn extend<'a>(&'a self, lease: &'a Lease) -> QueueFuture<'a, bool> {
        async move {
            let ((lane, entry), attempt) = (place(lease), lease.attempt.to_string());
            let arguments = [&self.consumer, lane, entry, lease.id.as_str(), counter(lease.kind), &attempt];
            self.call(&self.scripts.extend, &arguments.map(str::as_bytes)).await
        }
        .boxed()
    }

    fn end<'a>(&'a self, lease: &'a Lease, end: Completion) -> QueueFuture<'a, bool> {
        self.finish(lease, end).boxed()
    }

    fn again<'a>(&'a self, lease: &'a Lease, after: Duration, why: &'a str) -> QueueFuture<'a, bool> {
        async move {
            let ((lane, entry), attempt) = (place(lease), lease.attempt.to_string());
            let after = after.as_millis().to_string();
            let arguments =
                [&self.consumer, lane, entry, lease.id.as_str(), counter(lease.kind), &attempt, &after, why];
            self.call(&self.scripts.again, &arguments.map(str::as_bytes)).await
        }
        .boxed()
    }

    fn cancel<'a>(&'a self, id: &'a JobId) -> QueueFuture<'a, Cancelled> {
        async move {
            let keep = self.bounds.keep.as_millis().to_string();
            let answer: String = self.call(&self.scripts.cancel, &[id.as_str(), &keep].map(str::as_bytes)).await?;
            match (answer.as_str(), state_of(&answer)) {
                ("now", _) => Ok(Cancelled::Now),
                ("unknown", _) => Ok(Cancelled::Unknown),
                (_, Some(state)) => Ok(Cancelled::Ended(state)),
                _ => Err(QueueError(format!("Redis answered {answer:?} to a cancellation"))),
            }
        }
        .boxed()
    }

    fn status<'a>(&'a self, id: &'a JobId) -> QueueFuture<'a, Option<Status>> {
        async move {
            let mut connection = self.connected().await?;
            let fields = ["state", "run", "error", "callback_state"];
            let answer: Result<[Option<String>; 4], _> = connection.hmget(self.job(id), &fields[..]).await;
            let [state, runs, error, callback] = self.checked(answer).await?;
            let Some(state) = state.as_deref().and_then(state_of) else { return Ok(None) };
            let callback = match callback.as_deref() {
                Some("pending") => Some(CallbackState::Pending),
                Some("delivered") => Some(CallbackState::Delivered),
                Some("failed") => Some(CallbackState::Failed),
                _ => None,
            };
            let attempts = runs.and_then(|runs| runs.parse().ok()).unwrap_or(0);
            Ok(Some(Status { state, attempts, error: error.filter(|error| !error.is_empty()), callback }))
        }
        .boxed()
    }

    fn answer<'a>(&'a self, id: &'a JobId) -> QueueFuture<'a, Option<Answer>> {
        async move {
            let mut connection = self.connected().await?;
            let answer: Result<Option<Vec<u8>>, _> = connection.hget(self.job(id), "answer").await;
            Ok(self.checked(answer).await?.as_deref().and_then(Answer::of_bytes))
        }
        .boxed()
    }

    fn dead(&self) -> QueueFuture<'_, Vec<JobId>> {
        async move {
            let mut connection = self.connected().await?;
            let answer: Result<Vec<String>, _> = connection.zrevrange(format!("{}dead", self.prefix), 0, 99).await;
            Ok(self.checked(answer).await?.iter().filter_map(|id| JobId::parse(id)).collect())
        }
        .boxed()
    }

    fn revive<'a>(&'a self, id: &'a JobId) -> QueueFuture<'a, bool> {
        async move { self.call(&self.scripts.revive, &[id.as_str().as_bytes()]).await }.boxed()
    }

    fn depth(&self) -> QueueFuture<'_, Depth> {
        async move {
            let mut connection = self.connected().await?;
            let name = |name: &str| format!("{}{name}", self.prefix);
            let answer = redis::pipe()
                .hvals(name("open"))
                .xlen(name("callback"))
                .zcard(name("dead"))
                .query_async(&mut connection)
                .await;
            let (open, callbacks, dead): (Vec<String>, u64, u64) = self.checked(answer).await?;
            let counts =
                open.iter().filter_map(|name| Priority::parse(name)).fold(HashMap::new(), |mut counts, priority| {
                    *counts.entry(priority as usize).or_insert(0) += 1;
                    counts
                });
            let jobs = Priority::ALL.map(|priority| counts.get(&(priority as usize)).copied().unwrap_or(0));
            Ok(Depth { jobs, callbacks, dead })
        }
        .boxed()
    }

    fn ends_with_process(&self) -> bool {
        false
    }

    fn ended(&self) -> broadcast::Receiver<JobId> {
        self.ended.subscribe()
    }
}

/// The files of TLS, read.
fn certificates(tls: &TlsFiles) -> Result<TlsCertificates, QueueError> {
    let read = |file: &PathBuf| fs_err::read(file).map_err(|error| QueueError(error.to_string()));
    let client_tls = match &tls.identity {
        None => None,
        Some((certificate, key)) => Some(ClientTlsConfig { client_cert: read(certificate)?, client_key: read(key)? }),
    };
    Ok(TlsCertificates { client_tls, root_cert: tls.ca.as_ref().map(read).transpose()? })
}

/// Tells of ends, of this executor's jobs and of others'.
async fn follow(client: Client, stream: String, ended: broadcast::Sender<JobId>) {
    let (slot, mut last) = (Mutex::default(), "$".to_owned());
    let options = StreamReadOptions::default().block(WAIT);
    loop {
        let Ok(mut connection) = connected(&client, &slot, WAIT_AND_ANSWER).await else {
            // Whoever asks the queue is told why; this one waits.
            sleep(TIMEOUT).await;
            continue;
        };
        let read: Result<Option<StreamReadReply>, _> = connection.xread_options(&[&stream], &[&last], &options).await;
        match read {
            Err(_) => *slot.lock().await = None,
            Ok(None) => {}
            Ok(Some(reply)) => {
                for entry in reply.keys.into_iter().flat_map(|key| key.ids) {
                    if let Some(id) = entry.get::<String>("id").and_then(|id| JobId::parse(&id)) {
                        // Nobody may be waiting for it.
                        let _ = ended.send(id);
                    }
                    last = entry.id;
                }
            }
        }
    }
}

/// The connection of a slot, made if there is none. `timeout`: for each answer.
async fn connected(
    client: &Client,
    slot: &Mutex<Option<MultiplexedConnection>>,
    timeout: Duration,
) -> Result<MultiplexedConnection, QueueError> {
    let mut slot = slot.lock().await;
    if let Some(connection) = &*slot {
        return Ok(connection.clone());
    }
    let settings =
        AsyncConnectionConfig::new().set_connection_timeout(Some(TIMEOUT)).set_response_timeout(Some(timeout));
    let connection = client.get_multiplexed_async_connection_with_config(&settings).await?;
    Ok(slot.insert(connection).clone())
}

const fn lanes(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Run => &["high", "normal", "low"],
        Kind::Callback => &["callback"],
    }
}

const fn counter(kind: Kind) -> &'static str {
    match kind {
        Kind::Run => "run",
        Kind::Callback => "call",
    }
}

/// Stream and entry of a lease.
fn place(lease: &Lease) -> (&str, &str) {
    lease.entry.split_once(' ').unwrap_or((&lease.entry, ""))
}

fn state_of(text: &str) -> Option<State> {
    [
        ("queued", State::Queued),
        ("running", State::Running),
        ("done", State::Done),
        ("dead", State::Dead),
        ("cancelled", State::Cancelled),
    ]
    .into_iter()
    .find_map(|(name, state)| (name == text).then_some(state))
}

fn text(value: Value) -> Result<String, QueueError> {
    String::from_redis_value(value).map_err(|error| QueueError(error.to_string()))
}
