//! Runs the [`Controller`]: one task that owns it, one loop, everything that happens in one place. It does what the
//! brain wants done and tells it what became of that.
//!
//! ```text
//! store watch ┐                                          ┌▶ one plan at a time ──▶ store ──▶ Committed | Refused
//! reports     ├──▶ Event ──▶ Controller::on ──▶ Effect ──┼▶ assignments, routes (mailboxes: latest wins)
//! demand      │        ▲                                 └▶ events, metrics, watches
//! questions ──┼─────── │ ── answered from the world
//! wake_at ────┘        └── Tick
//! ```
//! Nothing here waits for a worker, a gateway or the end of a write to the disk: each of those is a branch of the loop. One run is one term of
//! leadership: it ends when it is told to, or when the store says that the term is over.

mod answers;
mod audit;
mod connections;
mod members;
mod perform;
mod persist;
mod relist;
mod workers;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use berth_audit::AuditLog;
use berth_peer::Members;
use berth_plan::{Policy, TypeRules};
use berth_spec::{DeploymentName, Time, WorkerId, routes::Readiness};
use futures::{StreamExt, future::BoxFuture};
use prometheus_client::registry::Registry;
use tokio::sync::{broadcast, mpsc, watch};
use tokio_util::sync::CancellationToken;

pub use crate::controller::ChangeKind;
use crate::{
    controller::{Controller, Effect, Event},
    events::EventRing,
    functions::FunctionHost,
    handle::{DriverRequest, Handle},
    metrics::Metrics,
    resolve::Resolver,
    store::{Rev, Store, StoreError, Watch},
};
use audit::Audit;
use connections::{ConnectionEvent, Connections};
use members::MemberSync;
use persist::{BackgroundWrites, Failing, PlanKey, Stored};
use relist::{Relist, Relisted};

/// Changed deployments, for those who watch.
pub(crate) type DeploymentChanges = Arc<[(DeploymentName, ChangeKind)]>;

/// Tells the time; [`system_clock`] outside of tests.
pub type Clock = Arc<dyn Fn() -> Time + Send + Sync>;

/// The most questions that may wait: a burst of API calls fits, and the last of them still gets its answer soon.
const REQUESTS: usize = 256;

/// Changes that a watch may be behind before it must list again: beyond some thousand, a new list is less work.
const WATCH_BUFFER: usize = 4_096;

/// The interval of the gauges that need a walk over all workers, and the longest sleep of the loop.
const GAUGES_EVERY: Duration = Duration::from_secs(5);

/// The longest wait at the end for a plan on its way to the store: a slow disk ends within it, and a stuck one does not
/// hold up the shutdown for long.
const LAST_COMMIT: Duration = Duration::from_secs(5);

/// The pause after a failed watch of the store: one that is away is not asked in a loop, and its return is noticed soon.
const WATCH_AGAIN: Duration = Duration::from_secs(1);

/// Settings of the control plane.
#[derive(Clone)]
pub struct Config {
    /// Settings of the planner. [`type_rules`](Self::type_rules) changes a part of them.
    pub policy: Policy,
    /// Its selectors by type of model, where they change while this runs; `None`: they do not.
    pub type_rules: Option<watch::Receiver<TypeRules>>,
    /// Tells the time; [`system_clock`] outside of tests.
    pub clock: Clock,
    /// The members of the cluster; `None` if this process is alone.
    pub members: Option<Members>,
    /// The audit log.
    pub audit: AuditLog,
    /// Functions; `None`: this controller runs none.
    pub functions: Option<Arc<dyn FunctionHost>>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            type_rules: None,
            clock: system_clock(),
            members: None,
            audit: AuditLog::default(),
            functions: None,
        }
    }
}

/// The reason why a controller ended without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Stopped by its shutdown token.
    Stopped,
    /// Its term of leadership is over: another one may decide by now.
    Deposed,
}

/// The time of day at the start, advanced by the runtime's clock: it never jumps, and stands still where a test pauses
/// the runtime's.
#[must_use]
pub fn system_clock() -> Clock {
    let epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let (start, began) = (Time::ZERO + epoch, tokio::time::Instant::now());
    Arc::new(move || start + began.elapsed())
}

/// Puts the control plane of a process that is alone together; it begins to work when [`Control::run`] is awaited.
pub fn build(config: Config, store: Arc<dyn Store>, registry: &mut Registry) -> (Control, Handle) {
    build_with(config, store, Metrics::register(registry))
}

/// Puts the control plane of one term together; it begins to work when [`Control::run`] is awaited. `store` writes only
/// while the term lasts.
pub fn build_with(config: Config, store: Arc<dyn Store>, metrics: Metrics) -> (Control, Handle) {
    let (request_sender, requests) = mpsc::channel(REQUESTS);
    let (seen_sender, seen) = watch::channel(Rev::NONE);
    let (in_force_sender, in_force) = watch::channel(Rev::NONE);
    let (readiness_sender, readiness) = watch::channel(Readiness::default());
    let (deployment_changes, _) = broadcast::channel(WATCH_BUFFER);
    let handle = Handle {
        store: Arc::clone(&store),
        resolver: Arc::new(Resolver::default()),
        requests: request_sender,
        deployment_changes: deployment_changes.downgrade(),
        seen,
        in_force,
        readiness,
        clock: Arc::clone(&config.clock),
        sources: crate::source::Sources::default(),
        audit: config.audit.clone(),
        functions: config.functions.clone(),
    };
    let control = Control {
        config,
        store,
        metrics,
        inputs: Inputs { requests },
        outputs: Outputs {
            seen: seen_sender,
            in_force: in_force_sender,
            readiness: readiness_sender,
            deployment_changes,
        },
    };
    (control, handle)
}

/// The control plane, not yet running.
pub struct Control {
    config: Config,
    store: Arc<dyn Store>,
    metrics: Metrics,
    inputs: Inputs,
    outputs: Outputs,
}

struct Inputs {
    requests: mpsc::Receiver<DriverRequest>,
}

struct Outputs {
    /// The revision of the store that the controller has taken in.
    seen: watch::Sender<Rev>,
    /// The revision that gateways route by.
    in_force: watch::Sender<Rev>,
    readiness: watch::Sender<Readiness>,
    deployment_changes: broadcast::Sender<DeploymentChanges>,
}

impl Control {
    /// Restores what the store holds, then works until `shutdown` or the end of its term. What was stored stays; nothing is
    /// undone.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be read at the start. Later failures are retried.
    pub async fn run(self, shutdown: CancellationToken) -> Result<Ended, StoreError> {
        let Self { mut config, store, metrics, inputs, outputs } = self;
        let mut events = EventRing::default();
        let now = (config.clock)();
        let (restored, key) = persist::restore(&*store, &mut events, now).await?;
        tracing::info!(
            event = "controller_restored",
            deployments = restored.deployments.len(),
            records = restored.records.len(),
            rev = restored.rev.0
        );
        let _leading = metrics.leading();
        outputs.seen.send_replace(restored.rev);
        let watch = store.watch("/", restored.rev.next()).await?;
        if let Some(rules) = &mut config.type_rules {
            let rules = rules.borrow_and_update().clone();
            config.policy = config.policy.with_types(rules);
        }
        let mut driver = Driver {
            cycles: 0,
            ticked: false,
            brain: Controller::new(config.policy, restored, now),
            clock: config.clock,
            type_rules: config.type_rules,
            commit: None,
            background: BackgroundWrites::new(Arc::clone(&store)),
            key,
            failing: Failing::default(),
            store,
            watch: Some(watch),
            relist: None,
            audit: config.members.is_some().then(Audit::new),
            member_sync: config.members.as_ref().map(MemberSync::new),
            connections: Connections::new(),
            events,
            metrics,
            outputs,
            cycle: None,
            refused: BTreeMap::new(),
        };
        driver.sync_members();
        Ok(driver.run(inputs, shutdown).await)
    }
}

struct Driver {
    brain: Controller,
    clock: Clock,
    /// `None`: they do not change.
    type_rules: Option<watch::Receiver<TypeRules>>,
    store: Arc<dyn Store>,
    /// Every commit from where the world is on; `None` after a failure, until it is watched again.
    watch: Option<Watch>,
    /// Reads the store again after such a failure.
    relist: Option<Relist>,
    /// Compares the store with what is known of it; `None`: this process is alone with a store of its own.
    audit: Option<Audit>,
    /// `None`: this process is alone.
    member_sync: Option<MemberSync>,
    /// The plan that is being stored.
    commit: Option<BoxFuture<'static, Stored>>,
    key: PlanKey,
    failing: Failing,
    background: BackgroundWrites,
    connections: Connections,
    events: EventRing,
    metrics: Metrics,
    outputs: Outputs,
    /// Since when the plan that is being stored was in the making.
    cycle: Option<Instant>,
    /// Workers that were turned away, with the start of them that this was told of.
    refused: BTreeMap<WorkerId, u64>,
    /// Plans that were made.
    cycles: u64,
    /// The loop woke up for a tick last.
    ticked: bool,
}

/// The reason why the loop woke up.
enum Wake {
    Shutdown,
    Stored(Stored),
    Changes(Option<Result<crate::store::Commit, StoreError>>),
    Event(Event),
    Connection(ConnectionEvent),
    Request(DriverRequest),
    Background,
    WatchAgain,
    Relisted(Result<Relisted, StoreError>),
    Audit(audit::AuditEvent),
    Members,
    Gauges,
}

impl Driver {
    async fn run(mut self, mut inputs: Inputs, shutdown: CancellationToken) -> Ended {
        let mut gauges = tokio::time::interval(GAUGES_EVERY);
        loop {
            let wake = self.next(&mut inputs, &mut gauges, &shutdown).await;
            self.ticked = matches!(wake, Wake::Event(Event::Tick));
            match wake {
                Wake::Shutdown => break,
                Wake::Stored(Stored { result: Err(StoreError::Deposed), .. })
                | Wake::Relisted(Err(StoreError::Deposed)) => {
                    tracing::warn!(event = "controller_deposed", "the term of this controller is over");
                    return Ended::Deposed;
                }
                Wake::Stored(stored) => self.stored(stored),
                Wake::Changes(changes) => self.changes(changes),
                Wake::Event(event) => self.feed(event),
                Wake::Connection(woke) => self.connection(woke),
                Wake::Request(request) => self.answer(request),
                Wake::Background => {}
                Wake::WatchAgain => self.relist = Some(relist::start(&self.store, &self.brain, (self.clock)())),
                Wake::Relisted(relisted) => self.relisted(relisted),
                Wake::Audit(woke) => self.audit(woke),
                Wake::Members => self.sync_members(),
                Wake::Gauges => self.metrics.gauges(self.brain.world(), (self.clock)()),
            }
        }
        // A plan on its way to the store is stored, so that the next start knows what workers may hold.
        if let Some(commit) = self.commit.take()
            && tokio::time::timeout(LAST_COMMIT, commit).await.is_err()
        {
            tracing::warn!(event = "plan_unstored", "the last plan was not stored in time");
        }
        Ended::Stopped
    }

    async fn next(
        &mut self,
        inputs: &mut Inputs,
        gauges: &mut tokio::time::Interval,
        shutdown: &CancellationToken,
    ) -> Wake {
        let now = (self.clock)();
        let tick = self.brain.wake_at().map(|at| tick(at.since(now), self.ticked));
        let listening = !self.brain.committing();
        let broken = self.watch.is_none() && self.relist.is_none();
        tokio::select! {
            () = shutdown.cancelled() => Wake::Shutdown,
            stored = optional(self.commit.as_mut()) => {
                self.commit = None;
                Wake::Stored(stored)
            }
            commit = optional(self.watch.as_mut().map(StreamExt::next)), if listening => Wake::Changes(commit),
            Some(request) = inputs.requests.recv() => Wake::Request(request),
            Some(woke) = self.connections.next() => Wake::Connection(woke),
            () = self.background.run() => Wake::Background,
            () = optional(tick) => Wake::Event(Event::Tick),
            relisted = optional(self.relist.as_mut()), if listening => {
                self.relist = None;
                Wake::Relisted(relisted)
            }
            woke = optional(self.audit.as_mut().map(Audit::next)), if listening => Wake::Audit(woke),
            () = optional(self.member_sync.as_mut().map(MemberSync::changed)) => Wake::Members,
            rules = optional(self.type_rules.as_mut().map(changed)) => Wake::Event(Event::TypeRules(rules)),
            () = tokio::time::sleep(WATCH_AGAIN), if broken => Wake::WatchAgain,
            _ = gauges.tick() => Wake::Gauges,
        }
    }

    fn feed(&mut self, event: Event) {
        let ticking = matches!(event, Event::Tick);
        let began = Instant::now();
        let effects = self.brain.on(event, (self.clock)());
        let is_plan = |effect: &Effect| matches!(effect, Effect::Planned(_) | Effect::Commit(_));
        if ticking && effects.iter().any(is_plan) {
            self.metrics.planned(began.elapsed(), &effects);
            self.cycle = Some(began);
        }
        let sent = effects.iter().any(|effect| matches!(effect, Effect::Planned(_)));
        self.perform(effects);
        if let Some(began) = self.cycle.take_if(|_| sent) {
            self.metrics.cycle(began.elapsed());
        }
    }

    fn stored(&mut self, stored: Stored) {
        self.metrics.store_commit.observe(stored.took.as_secs_f64());
        self.key = stored.key;
        self.failing.count(&stored.result);
        match stored.result {
            Ok(true) => self.feed(Event::Committed),
            Ok(false) => {
                tracing::info!(
                    event = "plan_outdated",
                    "a deployment changed while a plan was being stored; planning again"
                );
                self.feed(Event::Refused);
            }
            Err(error) => {
                tracing::error!(event = "plan_unstored", %error, "cannot store a plan; planning again");
                self.feed(Event::Refused);
            }
        }
    }

    fn changes(&mut self, changes: Option<Result<crate::store::Commit, StoreError>>) {
        match changes {
            Some(Ok(commit)) => {
                for event in persist::events_of(&commit, &mut self.events, (self.clock)()) {
                    self.feed(event);
                }
            }
            Some(Err(error)) => {
                tracing::warn!(event = "store_watch_ended", %error, "the watch of the store ended: reading it again");
                self.watch = None;
            }
            None => self.watch = None,
        }
    }
}

/// Waits until it is time for a tick. What is due now does not wait for the timer, whose steps of a millisecond a missing
/// model would pay for; a second tick in a row does, so that the loop cannot spin.
async fn tick(wait: Duration, ticked: bool) {
    if ticked || wait > Duration::ZERO {
        tokio::time::sleep(wait).await;
    }
}

/// Waits for another value; for ever if nobody can set one any more.
async fn changed<T: Clone>(watched: &mut watch::Receiver<T>) -> T {
    match watched.changed().await {
        Ok(()) => watched.borrow_and_update().clone(),
        Err(_) => std::future::pending().await,
    }
}

/// Waits for it; for ever if there is none.
async fn optional<F: Future>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
