//! Talks to the API server: watches, hands the brain its world, carries decisions out.
//!
//! One loop owns the mirror and the queue. Decisions are made in it, for they take microseconds; what must be written is
//! written by tasks, [`CONCURRENCY`] at once.

pub mod adoption;
mod attempt;
mod first_look;
pub mod gatekeeper;
mod kind;
mod lease;
pub mod migration;
mod mirror;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Client,
    core::{DynamicObject, Status},
    runtime::{
        WatchStreamExt,
        events::{Recorder, Reporter},
        watcher::{self, watcher},
    },
};
use serde_json::Value;
use tokio::{task::JoinSet, time};
use tokio_util::sync::CancellationToken;

use self::{
    attempt::Attempt,
    first_look::first_look,
    kind::{Key, Kind},
    lease::Leadership,
    mirror::Mirror,
};
use crate::{
    FIELD_MANAGER,
    brain::{self, ApplyError, Decision},
    line_pace::LinePace,
    metrics::OperatorMetrics,
    queue::Queue,
    render::{self, Installation, MANAGED_BY},
};

/// Attempts under way at once: enough to hide the way to the API server, too few to be a burden to it.
pub const CONCURRENCY: usize = 16;

/// Decisions in a row, before the lease and the answers to attempts have their turn: at a start all objects are due at once, and a lease
/// that is not renewed for 10 s ends the operator.
const TURN: usize = 16;

/// Time between two looks for a kind whose custom resource is not installed, or that there is no right to see: that may stay so.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Limit for one request that is no watch. An API server that is well answers in milliseconds; the client itself waits without an end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Limit for an attempt: as long as an API server itself takes for a request at most.
const ATTEMPT: Duration = Duration::from_mins(1);

/// Longest wait for the attempts under way when the operator ends. It is killed after 30 s. Nobody renews the Lease meanwhile, so the wait
/// ends with the leadership if that is sooner.
const FINISH_TIMEOUT: Duration = Duration::from_secs(15);

/// Settings of an operator.
#[derive(Debug, Clone)]
pub struct Config {
    /// The only namespace that is looked at; all where it is left out.
    pub namespace: Option<String>,
    /// The namespace of the Lease.
    pub lease_namespace: String,
    /// The operator's name in the election, unique.
    pub identity: String,
    /// Images and abilities for pods that are rendered from now on.
    pub installation: Installation,
}

/// Reason why an operator ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The custom resources are not there.
    #[error("the custom resources are missing, or older than this operator: berth operator crds | kubectl apply -f -")]
    NoDefinitions,
    /// Another operator leads.
    #[error("another operator leads now, or the API server was away for 10 s: this one ends, to start anew")]
    Deposed,
    /// A right is missing, in the API server's words.
    #[error(
        "{0}: the rights are those of another version, or were taken; apply all that `berth operator manifests` prints"
    )]
    Forbidden(String),
    /// The API server refuses to answer.
    #[error("the API server refuses: {0}")]
    Refused(String),
}

/// Runs an operator until it is told to stop.
///
/// # Errors
/// The custom resources or rights are missing, or the leadership was lost.
pub async fn run(
    client: Client,
    config: Config,
    metrics: OperatorMetrics,
    shutdown: CancellationToken,
) -> Result<(), RunError> {
    // The API server has said its version. Objects of other versions are read by way of this operator's own webhook, which a
    // Service leads to once it is ready.
    metrics.reached();
    if !first_look(&client, &config, &shutdown).await? {
        return Ok(());
    }
    let mut leadership = Leadership::new(&client, &config.lease_namespace, config.identity.clone());
    if !leadership.acquire(&shutdown).await {
        return Ok(());
    }
    metrics.leads(true);
    let mut reconciler = Reconciler::new(client, config, metrics.clone());
    let ended = tokio::select! {
        () = leadership.keep() => Err(RunError::Deposed),
        () = reconciler.run() => Ok(()),
        () = shutdown.cancelled() => Ok(()),
    };
    metrics.leads(false);
    if ended.is_ok() {
        reconciler.finish(FINISH_TIMEOUT.min(leadership.left())).await;
        leadership.release().await;
    }
    ended
}

/// The minor version of the cluster, 29 of `1.29`.
///
/// # Errors
/// The API server does not say.
pub async fn minor_version(client: &Client) -> Result<u32, kube::Error> {
    let version = answered(client.apiserver_version()).await?;
    // Some clusters say `29+`.
    Ok(version.minor.trim_end_matches(|letter: char| !letter.is_ascii_digit()).parse().unwrap_or_default())
}

/// The answer to a request, or an error where none comes.
async fn answered<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, kube::Error> {
    let silent = || Err(kube::Error::Service("no answer within 10 s".into()));
    time::timeout(PATIENCE, request).await.unwrap_or_else(|_| silent())
}

/// An attempt that ended: of which object, of which generation of its spec, and how.
type Ended = (Key, i64, Result<(), ApplyError>);

/// The loop.
struct Reconciler {
    client: Client,
    config: Config,
    recorder: Recorder,
    kinds: Vec<Kind>,
    mirror: Mirror,
    queue: Queue<Key>,
    /// The last failure, and the generation of the spec that it concerns.
    troubles: BTreeMap<Key, (i64, ApplyError)>,
    told: LinePace,
    attempts: JoinSet<Option<Ended>>,
    written: u64,
    metrics: OperatorMetrics,
}

impl Reconciler {
    fn new(client: Client, config: Config, metrics: OperatorMetrics) -> Self {
        let reporter = Reporter { controller: FIELD_MANAGER.to_owned(), instance: Some(config.identity.clone()) };
        Self {
            recorder: Recorder::new(client.clone(), reporter),
            client,
            kinds: Kind::of_cluster(&config.installation),
            config,
            mirror: Mirror::default(),
            queue: Queue::default(),
            troubles: BTreeMap::new(),
            told: LinePace::default(),
            attempts: JoinSet::new(),
            written: 0,
            metrics,
        }
    }

    async fn run(&mut self) {
        let started = Instant::now();
        let namespace = self.config.namespace.as_deref();
        let mut watches = stream::select_all(self.kinds.iter().map(|&kind| {
            let config = match kind.is_own() {
                true => watcher::Config::default(),
                false => watcher::Config::default().labels(&format!("{}={}", MANAGED_BY.0, MANAGED_BY.1)),
            };
            let events = watcher(kind.api(&self.client, namespace), config).default_backoff();
            let mut was_missing = false;
            let events = events.then(move |event| {
                let waits = still_missing(&mut was_missing, &event);
                async move {
                    if waits {
                        time::sleep(LOOK_AGAIN).await;
                    }
                    (kind, event)
                }
            });
            events.boxed()
        }));
        let mut told = false;
        loop {
            self.start_due();
            tokio::task::yield_now().await;
            self.metrics.waiting(self.queue.len());
            if self.mirror.is_complete(&self.kinds) && self.queue.is_empty() && !std::mem::replace(&mut told, true) {
                let objects: Vec<usize> = self.kinds.iter().map(|&kind| self.mirror.count(kind)).collect();
                let took = started.elapsed().as_millis();
                tracing::info!(event = "ready", ?objects, writes = self.written, duration_ms = took);
            }
            let due = self
                .queue
                .wake_at()
                .filter(|_| self.mirror.is_complete(&self.kinds) && self.attempts.len() < CONCURRENCY);
            tokio::select! {
                Some((kind, event)) = watches.next() => self.watched(kind, event),
                Some(ended) = self.attempts.join_next() => {
                    if let Ok(Some((key, generation, result))) = ended {
                        self.ended(key, generation, result);
                    }
                }
                () = time::sleep_until(due.unwrap_or(started).into()), if due.is_some() => {}
            }
        }
    }

    /// Waits for the attempts under way, and ends those that take longer: they are left to the next operator.
    async fn finish(&mut self, limit: Duration) {
        let left = end(&mut self.attempts, limit).await;
        if left > 0 {
            tracing::warn!(event = "attempts_cut", left, "the API server did not answer in time");
        }
    }

    fn watched(&mut self, kind: Kind, event: Result<watcher::Event<DynamicObject>, watcher::Error>) {
        match event {
            Ok(event) => {
                let listed = matches!(event, watcher::Event::InitDone);
                let changed = self.mirror.on(kind, event);
                self.metrics.watched(kind.name(), self.mirror.count(kind));
                self.changed(&changed);
                if listed && self.mirror.is_back(kind) {
                    tracing::info!(event = "kind_found", kind = kind.name());
                    self.all_models();
                }
            }
            Err(error) => self.broke(kind, &error),
        }
    }

    /// A watch broke. Models of a cluster that lacks a kind of pools, or of an operator without a right to it, are served all the same.
    fn broke(&mut self, kind: Kind, error: &watcher::Error) {
        match refusal(error) {
            Some(Status { code: 404, .. }) if kind.is_optional() => {
                let (is_new, gone) = self.mirror.on_absent(kind);
                self.metrics.watched(kind.name(), 0);
                self.changed(&gone);
                if is_new {
                    tracing::debug!(event = "kind_absent", kind = kind.name());
                    self.all_models();
                }
            }
            // An API server that starts may refuse for a moment what it has shown before.
            Some(Status { code: 403, message, .. }) if kind.is_of_pools() && !self.mirror.is_listed(kind) => {
                self.metrics.watch_failed(kind.name());
                if self.mirror.on_forbidden(kind) {
                    let remedy =
                        "models have no pools; apply all that `berth operator manifests` of this version prints";
                    tracing::warn!(event = "right_missing", kind = kind.name(), error = message, remedy);
                    self.all_models();
                }
            }
            _ => {
                self.metrics.watch_failed(kind.name());
                tracing::warn!(event = "watch_broke", kind = kind.name(), %error);
            }
        }
    }

    /// Has the objects looked at whose decisions look at these.
    fn changed(&mut self, keys: &[Key]) {
        let now = Instant::now();
        for key in keys {
            // Those of a model tell its state.
            let below = self.mirror.async_apis(key).map(|(below, _)| below.clone());
            for dependent in key.dependents().into_iter().chain(below) {
                self.queue.add(dependent, now);
            }
        }
    }

    /// Has all models looked at.
    fn all_models(&mut self) {
        let models: Vec<Key> = self.mirror.of_kind(Kind::Model).cloned().collect();
        self.changed(&models);
    }

    /// Starts attempts for what is due, as far as one turn goes.
    fn start_due(&mut self) {
        for _ in 0..TURN {
            if !self.mirror.is_complete(&self.kinds) || self.attempts.len() >= CONCURRENCY {
                return;
            }
            let Some(key) = self.queue.take(Instant::now()) else { return };
            match self.decide(&key) {
                Some(attempt) => self.start(attempt),
                None => {
                    if self.mirror.get(&key).is_none() {
                        // It says nothing about an object that is made anew under this name.
                        self.troubles.remove(&key);
                    }
                    self.queue.done(&key, Instant::now());
                }
            }
        }
    }

    fn start(&mut self, attempt: Attempt) {
        let (client, recorder) = (self.client.clone(), self.recorder.clone());
        let generation = attempt.object["metadata"]["generation"].as_i64().unwrap_or_default();
        self.written += 1;
        let metrics = self.metrics.clone();
        self.attempts.spawn(async move {
            let (key, started) = (attempt.key.clone(), Instant::now());
            let result = attempt.run(&client, &recorder).await;
            metrics.attempted(key.kind.name(), result.is_ok(), started.elapsed().as_secs_f64());
            Some((key, generation, result))
        });
    }

    fn ended(&mut self, key: Key, generation: i64, result: Result<(), ApplyError>) {
        let now = Instant::now();
        let Err(trouble) = result else {
            let relieved = self.troubles.remove(&key).is_some();
            self.queue.done(&key, now);
            if relieved {
                self.queue.add(key, now);
            }
            return;
        };
        let wait = self.queue.failed(&key, now);
        if let Some(left_out) = self.told.tell(now) {
            tracing::warn!(event = "attempt_failed", object = %key, ?trouble, retry_in = ?wait, left_out);
        }
        self.troubles.insert(key.clone(), (generation, trouble));
        self.report(&key);
    }

    /// Writes the status of an object whose attempt failed, at once; its children are tried again later.
    fn report(&mut self, key: &Key) {
        let Some(attempt) = self.decide(key) else { return };
        let decision = Decision { apply: Vec::new(), delete: Vec::new(), kept_replicas: None, ..attempt.decision };
        if decision.is_empty() {
            return;
        }
        let attempt = Attempt { decision, unseen: Vec::new(), ..attempt };
        let (client, recorder, key) = (self.client.clone(), self.recorder.clone(), key.clone());
        self.attempts.spawn(async move {
            if let Err(trouble) = attempt.run(&client, &recorder).await {
                tracing::warn!(event = "status_not_written", object = %key, ?trouble);
            }
            None
        });
    }

    /// The decision about an object that is here, if anything is to be done.
    fn decide(&self, key: &Key) -> Option<Attempt> {
        let object = Arc::clone(self.mirror.get(key)?);
        let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
        let trouble = self.troubles.get(key).filter(|(of, _)| *of == generation).map(|(_, trouble)| trouble);
        let now = format!("{:.0}", Timestamp::now());
        let child = |kind| self.mirror.get(&key.sibling(kind)).map(|child| &**child);
        let decision = match key.kind {
            Kind::CLOps => {
                let object = read(key, &object)?;
                brain::clops_deployment(&object, child(Kind::Model), trouble, &now).written()
            }
            Kind::Model => {
                let object = read(key, &object)?;
                let world = brain::World {
                    live: &self.mirror.of_model(key),
                    rules: render::SHIPPED,
                    installation: &self.config.installation,
                    absent: &self.mirror.absent(),
                    forbidden: &self.mirror.forbidden(),
                    trouble,
                    now: &now,
                };
                brain::model_deployment(&object, world).written()
            }
            Kind::AsyncApi => {
                let object = read(key, &object)?;
                let model = key.model_of_async_api().and_then(|model| self.mirror.get(&model));
                brain::async_api(&object, model.map(|model| &**model), trouble, &now).written()
            }
            // What is rendered has no decisions of its own.
            _ => return None,
        };
        if decision.is_empty() {
            return None;
        }
        let children = decision.apply.iter().filter_map(|wanted| Some(Key::of(Kind::of(wanted)?, wanted)));
        let unseen = children.filter(|child| self.mirror.get(child).is_none()).collect();
        Some(Attempt { key: key.clone(), object, decision, unseen })
    }
}

/// True if the kind of this watch was absent or forbidden at the last look, and still is. Each look begins anew, so that the pauses of a
/// watch that fails never get longer.
fn still_missing(was: &mut bool, event: &Result<watcher::Event<DynamicObject>, watcher::Error>) -> bool {
    match event {
        Ok(watcher::Event::Init) => false,
        Ok(_) => {
            *was = false;
            false
        }
        Err(error) => std::mem::replace(was, is_missing(error)) && *was,
    }
}

/// True if a watch fails because there is no such kind, or no right to it.
fn is_missing(error: &watcher::Error) -> bool {
    refusal(error).is_some_and(|refusal| matches!(refusal.code, 403 | 404))
}

/// The answer by which the API server refuses to list or to watch.
fn refusal(error: &watcher::Error) -> Option<&Status> {
    use watcher::Error::{InitialListFailed, WatchStartFailed};

    match error {
        InitialListFailed(kube::Error::Api(refusal)) | WatchStartFailed(kube::Error::Api(refusal)) => Some(refusal),
        _ => None,
    }
}

/// Waits for tasks, and ends those that take longer than `limit`. None runs when it returns; says how many were cut.
async fn end<T: 'static>(tasks: &mut JoinSet<T>, limit: Duration) -> usize {
    let ended = async { while tasks.join_next().await.is_some() {} };
    if time::timeout(limit, ended).await.is_ok() {
        return 0;
    }
    let left = tasks.len();
    tasks.shutdown().await;
    left
}

/// An object as its type. The API server checked it; one of an older schema may still not fit.
fn read<T: serde::de::DeserializeOwned>(key: &Key, object: &Value) -> Option<T> {
    match serde_json::from_value(object.clone()) {
        Ok(object) => Some(object),
        Err(error) => {
            tracing::error!(event = "object_unreadable", object = %key, %error);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    /// Counts what runs.
    struct Runs(Arc<AtomicUsize>);

    impl Drop for Runs {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Relaxed);
        }
    }

    #[test]
    fn a_kind_that_stays_missing_is_looked_for_now_and_then() {
        let refused = |code| {
            let status = Status::failure("no", "Refused").with_code(code);
            Err(watcher::Error::InitialListFailed(kube::Error::Api(status.boxed())))
        };
        let mut was = false;
        let mut waits = |event| still_missing(&mut was, &event);
        assert!(!waits(refused(404)), "the first time it is told at once");
        assert!(!waits(Ok(watcher::Event::Init)));
        assert!(waits(refused(404)));
        assert!(!waits(Ok(watcher::Event::Init)));
        assert!(!waits(Ok(watcher::Event::InitDone)), "it is there");
        assert!(!waits(refused(404)) && !waits(refused(500)) && !waits(refused(404)));
        assert!(waits(refused(403)) && waits(refused(403)), "a right that is missing");
    }

    #[tokio::test]
    async fn nothing_writes_any_more_when_the_leadership_ends() {
        let running = Arc::new(AtomicUsize::new(0));
        let mut attempts = JoinSet::new();
        let begin = |attempts: &mut JoinSet<()>, answered: bool| {
            running.fetch_add(1, Relaxed);
            let runs = Runs(Arc::clone(&running));
            attempts.spawn(async move {
                let _runs = runs;
                if !answered {
                    std::future::pending::<()>().await;
                }
            });
        };
        begin(&mut attempts, true);
        assert_eq!(end(&mut attempts, FINISH_TIMEOUT).await, 0);
        begin(&mut attempts, false);
        begin(&mut attempts, false);
        assert_eq!(end(&mut attempts, Duration::from_millis(20)).await, 2);
        assert_eq!((running.load(Relaxed), attempts.len()), (0, 0));
        // A leadership that is over leaves no time.
        begin(&mut attempts, false);
        assert_eq!(end(&mut attempts, Duration::ZERO).await, 1);
        assert_eq!(running.load(Relaxed), 0);
    }
}
