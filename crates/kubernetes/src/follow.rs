//! The driver: follows the objects, declares what they say, writes their status. One loop owns all of it.
//!
//! ```text
//!            ┌── an object changed ──▶ quiet for 100 ms ──▶ plan ──▶ Context::apply ──┐
//! select ────┼── a deployment changed ──────────────────────────────────────────────────┼──▶ queue ──▶ write status ──▶ select
//!            └── a status was written, or could not be ─────────────────────────────────┘     (8 at once, one per object)
//! ```
//! A source that is paused declares nothing, and goes on telling the state of what it declared.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use berth_control::{
    handle::{Error, WatchEvent, WatchRequest, WatchStream},
    source::{Context, Counts, Problem, Request, Requests, SourceState},
};
use berth_operator::{FIELD_MANAGER, line_pace::LinePace, queue::Queue, render::MANAGED_BY};
use berth_spec::{DeploymentName, event::Severity};
use futures::{StreamExt, stream, stream::BoxStream};
use kube::{
    Client,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt, watcher, watcher::watcher as watch_objects},
};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time};

use crate::{
    KubernetesConfig,
    cluster::{PATIENCE, broke, connect},
    fleet_deployments::{Affected, FleetDeployments},
    kind::Kind,
    metrics::SourceMetrics,
    objects::{Effect, Key, KindState, Objects, WatchUpdate},
    plan::{Plan, Reason, Refusal, plan},
    routes::{self, Gateway, Ingress},
    state::state,
    status::{Facts, patch},
};

/// Quiet time before changed objects are declared, so that `kubectl apply` of a folder is one change.
const QUIET_TIME: Duration = Duration::from_millis(100);

/// Longest wait for objects that are never quiet: changes are applied within a second.
const QUIET_AT_MOST: Duration = Duration::from_secs(1);

/// Pause before a part that could not be declared, or a cluster that does not answer, is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Delay of a status: a model that loads passes through several states in less, and nobody reads faster.
const SETTLE: Duration = Duration::from_millis(200);

/// Problems that the source's status names, and the log each time; objects have the rest.
const MAX_NAMED_PROBLEMS: usize = 20;

/// Statuses that are written at once: enough to hide the way to the API server, too few to be a burden to it.
const WRITES: usize = 8;

type Watches = BoxStream<'static, (Kind, WatchUpdate)>;

/// Follows until the term ends.
pub(crate) async fn run(
    config: &KubernetesConfig,
    metrics: &SourceMetrics,
    context: Context,
    requests: Requests,
) -> Result<(), Error> {
    let mut requests = requests;
    loop {
        match connect(config).await {
            Ok(client) => return FollowedCluster::new(config, metrics, context, client).run(requests).await,
            Err(problem) => {
                tracing::warn!(event = "cluster_away", source = %context.name(), problem, "tried again in 5 s");
                context.update_status(|status| {
                    (status.state, status.problem) = (SourceState::Retrying, Some(problem));
                });
            }
        }
        tokio::select! {
            () = context.shutdown().cancelled() => return Ok(()),
            () = time::sleep(RETRY_INTERVAL) => {}
            _ = requests.next() => {}
        }
    }
}

struct FollowedCluster {
    metrics: SourceMetrics,
    context: Context,
    client: Client,
    namespace: Option<String>,
    selector: Option<String>,
    url: Option<String>,
    gateway: Option<Gateway>,
    objects: Objects,
    plan: Plan,
    watched: FleetDeployments,
    /// When the objects are declared next, and when the first of the changes came.
    due: Option<(Instant, Instant)>,
    queue: Queue<Key>,
    writes: JoinSet<(Key, Value, Result<Written, kube::Error>)>,
    /// The last patch of each object and the status that it led to: an API server drops fields that it does not know.
    written: BTreeMap<Key, (Value, Value)>,
    /// Problems that were told already.
    told: BTreeSet<String>,
    /// Statuses that could not be written, in the log.
    failures: LinePace,
}

impl FollowedCluster {
    fn new(config: &KubernetesConfig, metrics: &SourceMetrics, context: Context, client: Client) -> Self {
        Self {
            metrics: metrics.clone(),
            context,
            client,
            namespace: config.namespace.clone(),
            selector: config.selector.clone(),
            url: config.url.as_ref().map(|url| url.trim_end_matches('/').to_owned()),
            gateway: config.gateway.clone(),
            objects: Objects::of(Kind::followed(config.gateway.is_some())),
            plan: Plan::default(),
            watched: FleetDeployments::default(),
            due: None,
            queue: Queue::default(),
            writes: JoinSet::new(),
            written: BTreeMap::new(),
            told: BTreeSet::new(),
            failures: LinePace::default(),
        }
    }

    async fn run(mut self, mut requests: Requests) -> Result<(), Error> {
        let mut watches = self.watches();
        let mut deployments = self.context.handle().watch(WatchRequest::default()).await?;
        let shutdown = self.context.shutdown().clone();
        loop {
            let now = Instant::now();
            if self.due.is_some_and(|(due, _)| due <= now) && !requests.is_paused() {
                self.declare().await?;
            }
            self.start_writes();
            self.metrics.waiting(self.queue.len());
            let declares = self.due.map(|(due, _)| due).filter(|_| !requests.is_paused());
            let writes = self.queue.wake_at().filter(|_| self.writes.len() < WRITES);
            let wake = declares.into_iter().chain(writes).min();
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                Some((kind, news)) = watches.next() => self.heard(kind, news),
                event = deployments.next() => match event {
                    Some(Ok(event)) => self.changed(event),
                    Some(Err(Error::Lagged)) => deployments = self.watch_again().await?,
                    Some(Err(error)) => return Err(error),
                    None => return Err(Error::Stopped),
                },
                Some(Ok((key, before, result))) = self.writes.join_next() => self.wrote(&key, &before, result),
                request = requests.next() => match request {
                    Request::Pause => tracing::debug!(event = "cluster_paused", source = %self.context.name()),
                    Request::Sync | Request::Webhook | Request::Resume => self.due = Some((now, now)),
                },
                () = time::sleep_until(wake.unwrap_or(now).into()), if wake.is_some() => {}
            }
        }
    }

    /// Events of the objects of each kind.
    fn watches(&self) -> Watches {
        let one = |kind: Kind| {
            let mut config = watcher::Config::default();
            if let Some(selector) = self.selector.as_deref().filter(|_| kind.is_model()) {
                config = config.labels(selector);
            }
            if kind == Kind::Route {
                config = config.labels(&format!("{}={}", MANAGED_BY.0, MANAGED_BY.1));
            }
            let (client, namespace) = (self.client.clone(), self.namespace.clone());
            let events = watch_objects(kind.api(&client, namespace.as_deref()), config).default_backoff();
            events.then(move |event| {
                let (client, namespace) = (client.clone(), namespace.clone());
                async move {
                    match event {
                        Ok(event) => (kind, WatchUpdate::Event(event)),
                        Err(error) => (kind, broke(&client, kind, namespace.as_deref(), error).await),
                    }
                }
            })
        };
        stream::select_all(self.objects.kinds().iter().map(|kind| one(*kind).boxed())).boxed()
    }

    /// Watches deployments anew. What is known stays until all is told again: models that serve are not written as if they did not.
    async fn watch_again(&mut self) -> Result<WatchStream, Error> {
        self.watched.again();
        self.context.handle().watch(WatchRequest::default()).await
    }

    fn heard(&mut self, kind: Kind, news: WatchUpdate) {
        let (was, now) = (self.objects.known(kind).clone(), Instant::now());
        if let WatchUpdate::Failing(problem) = &news {
            tracing::debug!(event = "watch_broke", source = %self.context.name(), problem);
        }
        for (key, effect) in self.objects.on(kind, news) {
            if kind == Kind::Route {
                if let Some(owner) = routes::owner(&key) {
                    self.queue.add(owner, now + SETTLE);
                }
                continue;
            }
            match effect {
                Effect::Declares => self.declare_soon(now),
                Effect::Shows => self.queue.add(key, now + SETTLE),
            }
        }
        let is = self.objects.known(kind);
        if was == *is || !self.objects.is_answered() {
            return;
        }
        self.metrics.followed(&self.objects);
        if let KindState::Failing(problem) = is {
            tracing::warn!(event = "kind_unread", source = %self.context.name(), problem);
        }
        if kind == Kind::Route {
            // Each object may get its route now, or is told why it has none.
            for key in self.plan.objects.keys() {
                self.queue.add(key.clone(), now + SETTLE);
            }
        }
        self.declare_soon(now);
    }

    fn declare_soon(&mut self, now: Instant) {
        let first = self.due.map_or(now, |(_, first)| first);
        self.due = Some(((now + QUIET_TIME).min(first + QUIET_AT_MOST), first));
    }

    /// Declares what the objects say.
    async fn declare(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        self.due = None;
        if !self.objects.is_answered() {
            // What is not here yet would be deleted.
            return Ok(());
        }
        let mut next = plan(&self.objects);
        let done = match self.context.apply(&next.snapshot).await {
            Ok(done) => done,
            Err(Error::Stopped) => return Err(Error::Stopped),
            Err(error) => {
                self.show(SourceState::Retrying, &[error.to_string()], Vec::new());
                self.due = Some((now + RETRY_INTERVAL, now));
                return Ok(());
            }
        };
        let conflicts: Vec<String> = done.problems.iter().map(|problem| problem.message.clone()).collect();
        for Problem { deployment, message, .. } in &done.problems {
            let key = deployment.as_ref().and_then(|name| next.names.get(name));
            if let Some(declared) = key.and_then(|key| next.objects.get_mut(key)) {
                declared.refused = Some(Refusal { reason: Reason::NotDeclared, message: message.clone() });
            }
        }
        if !conflicts.is_empty() {
            // Whoever has the name may give it up.
            self.due = Some((now + RETRY_INTERVAL, now));
        }
        for (key, declared) in &next.objects {
            if self.plan.objects.get(key) != Some(declared) {
                self.queue.add(key.clone(), now);
            }
        }
        self.written.retain(|key, _| next.objects.contains_key(key));
        self.plan = next;
        self.tell(conflicts).await;
        Ok(())
    }

    /// Tells people what is wrong, each thing once.
    async fn tell(&mut self, conflicts: Vec<String>) {
        let kinds = self.objects.kinds().iter().filter_map(|kind| match self.objects.known(*kind) {
            KindState::Failing(problem) => Some((None, problem.clone())),
            _ => None,
        });
        let refused = self.plan.objects.iter().filter_map(|(key, declared)| {
            let refusal = declared.refused.as_ref()?;
            Some((declared.name.clone(), format!("{key}: {}", refusal.message)))
        });
        let problems: Vec<(Option<DeploymentName>, String)> = kinds.chain(refused).collect();
        let lines: Vec<String> = problems.iter().map(|(_, line)| line.clone()).collect();
        self.metrics.followed(&self.objects);
        self.metrics.refused(self.plan.objects.values().filter(|declared| declared.refused.is_some()).count());
        let complete = self.objects.is_complete();
        let state = if complete { SourceState::Synced } else { SourceState::Retrying };
        self.show(state, &lines, conflicts);
        let new: Vec<_> = problems.into_iter().filter(|(_, line)| !self.told.contains(line)).collect();
        let further = new.len().saturating_sub(MAX_NAMED_PROBLEMS);
        for (at, (deployment, line)) in new.into_iter().enumerate() {
            // Whoever may write objects in one namespace fills no log.
            if at < MAX_NAMED_PROBLEMS {
                tracing::warn!(event = "object_trouble", source = %self.context.name(), details = line);
            }
            self.context.event(Severity::Warning, "ObjectRefused", line, deployment, None).await;
        }
        if further > 0 {
            tracing::warn!(event = "objects_trouble", source = %self.context.name(), further, "their statuses have the reasons");
        }
        self.told = lines.into_iter().collect();
    }

    fn show(&self, state: SourceState, problems: &[String], conflicts: Vec<String>) {
        let (now, snapshot) = (self.context.now(), &self.plan.snapshot);
        let disabled = snapshot.deployments.iter().filter(|one| one.spec.replicas.max == 0).count();
        let mut lines: Vec<String> = problems.iter().take(MAX_NAMED_PROBLEMS).cloned().collect();
        if problems.len() > MAX_NAMED_PROBLEMS {
            lines.push(format!("… and {} more", problems.len() - MAX_NAMED_PROBLEMS));
        }
        self.context.update_status(|status| {
            let revision = (!snapshot.revision.is_empty()).then(|| snapshot.revision.clone());
            if status.revision != revision {
                status.applied_at = Some(now);
            }
            status.state = state;
            (status.seen, status.revision) = (revision.clone(), revision);
            status.checked_at = Some(now);
            status.counts = Counts { deployments: snapshot.deployments.len(), disabled };
            status.conflicts = conflicts;
            status.problem = (!lines.is_empty()).then(|| lines.join("\n"));
        });
    }

    /// A deployment changed, whosever it is.
    fn changed(&mut self, event: WatchEvent) {
        let due = Instant::now() + SETTLE;
        match self.watched.on(event) {
            Affected::One(name) => {
                if let Some(key) = self.plan.names.get(&name) {
                    self.queue.add(key.clone(), due);
                }
            }
            Affected::All => {
                for key in self.plan.objects.keys() {
                    self.queue.add(key.clone(), due);
                }
            }
        }
    }

    /// Writes what is due and not as it should be.
    fn start_writes(&mut self) {
        let now = Instant::now();
        while self.writes.len() < WRITES {
            let Some(key) = self.queue.take(now) else { return };
            let (route, patch) = (self.route(&key), self.patch(&key));
            if route.is_none() && patch.is_none() {
                self.queue.done(&key, now + SETTLE);
                continue;
            }
            let client = self.client.clone();
            let before = self.objects.get(&key).map(|object| object.status.clone()).unwrap_or_default();
            self.writes.spawn(async move {
                let written = time::timeout(PATIENCE, write(&client, &key, route, patch)).await;
                let written = written.unwrap_or_else(|_| Err(kube::Error::Service("no answer within 10 s".into())));
                (key, before, written)
            });
        }
    }

    /// The route to apply for an object, if it should have another one than it has.
    fn route(&self, key: &Key) -> Option<Value> {
        let (gateway, url) = (self.gateway.as_ref()?, self.url.as_ref()?);
        if *self.objects.known(Kind::Route) != KindState::Listed {
            return None;
        }
        self.plan.objects.get(key)?;
        let wanted = routes::route(gateway, url, key, self.objects.get(key)?)?;
        routes::missing(&self.objects, key, &wanted).then_some(wanted)
    }

    /// The patch of an object's status, unless it is true or cannot be made truer.
    fn patch(&self, key: &Key) -> Option<Value> {
        let (object, declared) = (self.objects.get(key)?, self.plan.objects.get(key)?);
        let name = declared.name.as_ref();
        if name.is_some_and(|name| self.watched.is_awaited(name)) {
            // It may serve; the bookmark queues it again.
            return None;
        }
        let observed = name.and_then(|name| self.watched.get(name));
        let state = state(declared, observed);
        let now = self.context.now().to_string();
        let ingress = self.gateway.as_ref().map_or(Ingress::Ready, |_| routes::ingress(&self.objects, key));
        let (url, ingress) = (self.url.as_deref(), &ingress);
        let facts = Facts { key, object, declared, state: &state, url, ingress, now: &now };
        let patch = patch(&facts)?;
        let known = |(before, after): &(Value, Value)| *before == patch && *after == object.status;
        (!self.written.get(key).is_some_and(known)).then_some(patch)
    }

    fn wrote(&mut self, key: &Key, before: &Value, result: Result<Written, kube::Error>) {
        let now = Instant::now();
        match result {
            Ok(written) => {
                self.metrics.wrote("written");
                if let Some((patch, status)) = written {
                    self.objects.wrote(key, before, status.clone());
                    self.written.insert(key.clone(), (patch, status));
                }
                self.queue.done(key, now + SETTLE);
            }
            // It was deleted meanwhile.
            Err(kube::Error::Api(refusal)) if refusal.code == 404 => self.queue.done(key, now),
            Err(error) => {
                self.metrics.wrote("failed");
                let wait = self.queue.failed(key, now);
                if let Some(left_out) = self.failures.tell(now) {
                    tracing::warn!(event = "object_not_written", object = %key, %error, retry_in = ?wait, left_out);
                }
            }
        }
    }
}

/// A patch of a status, and the status that it led to; `None`: the status was true.
type Written = Option<(Value, Value)>;

/// Applies a route, then the status.
async fn write(client: &Client, key: &Key, route: Option<Value>, patch: Option<Value>) -> Result<Written, kube::Error> {
    if let Some(route) = route {
        let name = route["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let api = Kind::Route.api(client, Some(&key.namespace));
        api.patch(&name, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(route)).await?;
        tracing::info!(event = "route_applied", object = %key, route = name);
    }
    let Some(patch) = patch else { return Ok(None) };
    let (api, body) = (key.kind.api(client, Some(&key.namespace)), Patch::Merge(json!({ "status": patch })));
    let object = api.patch_status(&key.name, &PatchParams::default(), &body).await?;
    Ok(Some((patch, object.data.get("status").cloned().unwrap_or_default())))
}
