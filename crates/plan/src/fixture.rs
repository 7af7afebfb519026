//! Fluent worlds for tests.
//!
//! ```
//! use berth_plan::fixture::{gib, world};
//! let mut w = world().worker("a", gib(16)).resident("iris", gib(1));
//! w.settle();
//! assert_eq!(w.placed("iris"), ["a"]);
//! ```

mod happen;

pub use self::happen::died;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use berth_spec::{
    ByteSize, Demand, Deployment, DeploymentName, Digest, Failure, FailureCategory, GatewayId, Generation,
    InventoryChange, Load, Origin, Replicas, Residency, RevisionId, RuntimeInfo, Spec, Time, UseLimits, WorkerId,
    WorkerInfo,
    deployment::{
        Batching, Concurrency, Labels, ModelDetails, ModelFormat, ModelSource, Rollout, RuntimeOptions, Scaling,
        Selector, Settings, Spread, Strategy, Warmup, WhenFull,
    },
    member::{REGION, ZONE},
    residency::{Phases, Ready},
    status::Status,
};

use crate::{Planned, Policy, Scope, World, lint, plan, report};

/// A world under a test's hands, with its own clock. Every plan is linted.
#[derive(Debug, Clone)]
pub struct Fixture {
    /// The world, to be looked at and changed directly.
    pub world: World,
    /// The time that events and plans get.
    pub now: Time,
    /// Everything that the plans told, by reason.
    pub told: Vec<(&'static str, String)>,
}

/// An empty world at a time well after the beginning.
#[must_use]
pub fn world() -> Fixture {
    // Stories are told without waiting between their steps.
    world_with(Policy { min_residence: Duration::ZERO, ..Policy::default() })
}

/// The same with settings of its own.
#[must_use]
pub fn world_with(policy: Policy) -> Fixture {
    Fixture { world: World::new(policy), now: Time(1_000_000_000_000), told: Vec::new() }
}

/// `n` times 2^30 bytes.
#[must_use]
pub const fn gib(n: u64) -> ByteSize {
    ByteSize::gib(n)
}

/// A name; panics if it is none.
#[must_use]
pub fn name(name: &str) -> DeploymentName {
    DeploymentName::new(name).expect("a test's name")
}

/// A worker's name; panics if it is none.
#[must_use]
pub fn worker_id(name: &str) -> WorkerId {
    WorkerId::new(name).expect("a test's name")
}

/// A deployment with one resident replica; change its fields for others.
#[must_use]
pub fn deployment(called: &str) -> Deployment {
    let details = ModelDetails { format: ModelFormat::ONNX, sha256: None, version: None, signature: None, card: None };
    let model = ModelSource::new(format!("file:///models/{called}/1"), details);
    let settings = Settings {
        replicas: Replicas { min: 1, max: 1 },
        idle_after: None,
        priority: 50,
        memory: None,
        cpu: None,
        selector: Selector::default(),
        rollout: Rollout {
            strategy: Strategy::BlueGreen,
            when_full: WhenFull::Wait,
            drain_timeout: Duration::from_secs(30),
            deadline: Duration::from_secs(600),
            canary: None,
        },
        warmup: Warmup::Generated,
        timeout: Duration::from_secs(30),
        concurrency: Concurrency { max: None, queue: 100 },
        limits: UseLimits::default(),
        batching: Batching { max_rows: 1, max_delay: Duration::ZERO },
        runtime: RuntimeOptions::default(),
        gpu: None,
        model_type: None,
        regions: std::collections::BTreeMap::new(),
        spread: Spread::default(),
        pinned: false,
        scaling: Scaling::default(),
        idempotent: true,
        restart: None,
        endpoint: None,
    };
    Deployment {
        name: name(called),
        generation: Generation(1),
        labels: Labels::default(),
        origin: Origin::API,
        created: Time::ZERO,
        deleting: false,
        resource_version: 0,
        spec: Spec::new(model, settings),
        digest: None,
        artifact: None,
    }
}

/// A worker that can run everything.
#[must_use]
pub fn worker(called: &str, memory: ByteSize) -> WorkerInfo {
    WorkerInfo {
        id: worker_id(called),
        incarnation: 1,
        labels: BTreeMap::new(),
        memory,
        cpus: 4.0,
        gpus: Vec::new(),
        max_models: None,
        runtimes: RuntimeInfo::built_in(),
        schema_versions: berth_spec::card::SCHEMA_VERSIONS.map(str::to_owned).to_vec(),
        version: "test".to_owned(),
    }
}

/// A replica that is ready and takes what was measured.
#[must_use]
pub fn ready(memory: ByteSize, digest: Digest, since: Time) -> Residency {
    loaded_in(Duration::ZERO, memory, digest, since)
}

/// The same, after a load of so long.
#[must_use]
pub fn loaded_in(load: Duration, memory: ByteSize, digest: Digest, since: Time) -> Residency {
    let phases = Phases { load_ms: load.as_secs_f64() * 1e3, ..Phases::default() };
    Residency::Ready(Arc::new(Ready {
        since,
        memory,
        measured: true,
        digest,
        signature: None,
        devices: Vec::new(),
        phases,
        note: None,
        unvalidated: None,
        deaths: None,
    }))
}

impl Fixture {
    /// Adds a worker that can run everything.
    #[must_use]
    pub fn worker(mut self, called: &str, memory: ByteSize) -> Self {
        self.world.set_worker(worker(called, memory));
        self.report(called, true, Vec::new());
        self
    }

    /// Adds a worker, with changes to its description.
    #[must_use]
    pub fn worker_with(mut self, called: &str, memory: ByteSize, change: impl FnOnce(&mut WorkerInfo)) -> Self {
        let mut info = worker(called, memory);
        change(&mut info);
        self.world.set_worker(info);
        self.report(called, true, Vec::new());
        self
    }

    /// Adds a worker with the labels of a region and of a zone in it.
    #[must_use]
    pub fn worker_in(self, called: &str, memory: ByteSize, region: &str, zone: &str) -> Self {
        self.worker_with(called, memory, |info| {
            info.labels.insert(REGION.to_owned(), region.to_owned());
            info.labels.insert(ZONE.to_owned(), zone.to_owned());
        })
    }

    /// A worker says how loaded it is.
    pub fn loaded(&mut self, called: &str, load: Load) {
        let change = InventoryChange { load: Some(load), ..self.word(called) };
        let _ = self.world.observe(&change, self.now);
    }

    /// With a deployment of one resident replica that declares its memory.
    #[must_use]
    pub fn resident(self, called: &str, memory: ByteSize) -> Self {
        self.deploy(called, |spec| spec.memory = Some(memory))
    }

    /// With an on-demand deployment that declares its memory.
    #[must_use]
    pub fn on_demand(self, called: &str, memory: ByteSize) -> Self {
        self.deploy(called, |spec| {
            spec.memory = Some(memory);
            spec.replicas = Replicas { min: 0, max: 1 };
        })
    }

    /// Adds a deployment with one resident replica, with changes to its spec.
    #[must_use]
    pub fn deploy(mut self, called: &str, change: impl FnOnce(&mut Spec)) -> Self {
        self.change(called, change);
        self
    }

    /// Declares or changes a deployment; the generation goes up.
    pub fn change(&mut self, called: &str, change: impl FnOnce(&mut Spec)) {
        let known = self.world.deployment(&name(called)).map(|known| known.as_ref().clone());
        let mut deployment = match known {
            Some(known) => Deployment { generation: known.generation.next(), ..known },
            None => deployment(called),
        };
        change(&mut deployment.spec);
        self.world.set_deployment(Arc::new(deployment));
    }

    /// Points a deployment at another artifact.
    pub fn update(&mut self, called: &str, version: &str) {
        self.change(called, |spec| spec.model.uri = format!("file:///models/{called}/{version}").into());
    }

    /// Requests are parked, or no longer.
    pub fn demand(&mut self, called: &str, waiting: u32) {
        let demand =
            Demand { deployment: name(called), waiting, in_flight: 0, last_used: self.now, requests: waiting.into() };
        self.world.demand(GatewayId(1), &demand, self.now);
    }

    /// The destinations of requests for a deployment.
    #[must_use]
    pub fn answers(&self, called: &str) -> Vec<String> {
        let routes = self.world.whole_routes(self.now).set;
        let route = routes.into_iter().find(|route| route.deployment.as_str() == called);
        let ready = route.into_iter().flat_map(|route| route.versions.into_iter().next()).flat_map(|first| first.ready);
        ready.map(|worker| worker.to_string()).collect()
    }

    /// Progress of a worker that leaves.
    #[must_use]
    pub fn leaving(&self, called: &str) -> report::Leaving {
        self.world.leaving(&worker_id(called), self.now).expect("it leaves")
    }

    /// Time passes.
    pub fn after(&mut self, duration: Duration) {
        self.now = self.now + duration;
    }

    /// A worker says something.
    pub fn report(&mut self, called: &str, whole: bool, replicas: Vec<(RevisionId, Option<Residency>)>) {
        let change = InventoryChange { whole, replicas, ..self.word(called) };
        let _ = self.world.observe(&change, self.now);
    }

    /// A worker says that it was given an assignment of this number.
    pub fn claim_seen(&mut self, called: &str, seen: Generation) {
        let change = InventoryChange { seen, ..self.word(called) };
        let _ = self.world.observe(&change, self.now);
    }

    /// A report of a worker without changes.
    fn word(&self, called: &str) -> InventoryChange {
        let worker = worker_id(called);
        let tracked = self.world.worker(&worker);
        InventoryChange {
            incarnation: tracked.and_then(|tracked| tracked.info.as_ref()).map_or(0, |info| info.incarnation),
            seen: self.world.generation(),
            whole: false,
            replicas: Vec::new(),
            state: tracked.map(|tracked| tracked.state).unwrap_or_default(),
            load: None,
            breakers: None,
            credentials: tracked.map(|tracked| tracked.credentials).unwrap_or_default(),
            overhead: tracked.map(|tracked| tracked.overhead).unwrap_or_default(),
            usage: Vec::new(),
            worker,
        }
    }

    /// Plans for what is due, lints, commits.
    pub fn advance(&mut self) {
        let _ = self.plan();
    }

    /// Plans what is due, lints and commits the plan, and returns it.
    pub fn plan(&mut self) -> Planned {
        let scope = self.world.due(self.now);
        self.plan_for(&scope)
    }

    /// Plans for a scope, lints, commits.
    pub fn plan_for(&mut self, scope: &Scope) -> Planned {
        let planned = plan(&self.world, scope, self.now);
        let broken = lint::lint(&self.world, &planned);
        assert!(broken.is_empty(), "{broken:#?}");
        self.world.commit(&planned);
        self.told.extend(planned.events.iter().map(|event| (event.reason, event.message.clone())));
        planned
    }

    /// Every assigned replica becomes ready with the memory of its claim; what is not assigned is gone.
    pub fn load_all(&mut self) {
        for worker in self.world.workers().map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            let Some(tracked) = self.world.worker(&worker).filter(|tracked| tracked.alive()) else { continue };
            let replicas = tracked.assigned.iter().map(|(id, placed)| {
                let ready = match tracked.inventory.get(id) {
                    Some(residency @ Residency::Ready(_)) => residency.clone(),
                    _ => ready(placed.claim, digest_of(id), self.now),
                };
                (id.clone(), Some(ready))
            });
            let replicas = replicas.collect();
            self.report(worker.as_str(), true, replicas);
        }
    }

    /// Plans and loads until nothing is decided.
    pub fn settle(&mut self) {
        let mut scope = self.world.due(self.now);
        for _ in 0..20 {
            let planned = self.plan_for(&scope);
            self.load_all();
            scope = self.world.due(self.now);
            if !planned.decided() && scope.is_empty() {
                return;
            }
        }
        panic!("does not settle at {}: still {scope:?}, told {:?}", self.now, self.told);
    }

    /// The only revision of a deployment that has replicas, or the one that it wants.
    #[must_use]
    pub fn revision(&self, called: &str) -> RevisionId {
        self.world.deployment(&name(called)).expect("a deployment").revision_id()
    }

    /// A replica of what a deployment wants failed; `retry`: its worker tries again after this.
    pub fn fail(&mut self, called: &str, worker: &str, category: FailureCategory, retry: Option<Duration>) {
        let failure = Failure {
            category,
            message: "it broke".to_owned(),
            attempts: 1,
            at: self.now,
            retry_at: retry.map(|retry| self.now + retry),
            trace: None,
            history: Vec::new(),
            needs: None,
        };
        let revision = self.revision(called);
        self.report(worker, false, vec![(revision, Some(Residency::Failed(Arc::new(failure))))]);
    }

    /// The workers that a deployment's replicas are on, each once for each revision.
    #[must_use]
    pub fn placed(&self, called: &str) -> Vec<String> {
        let record = self.world.record(&name(called));
        record.iter().flat_map(|record| &record.replicas).map(|replica| replica.worker.to_string()).collect()
    }

    /// The status that people would see of a deployment now.
    #[must_use]
    pub fn status(&self, called: &str) -> Status {
        report::status(&self.world, &name(called), self.now).expect("a deployment")
    }

    /// Returns true if the plans emitted this event.
    #[must_use]
    pub fn was_told(&self, reason: &str) -> bool {
        self.told.iter().any(|(told, _)| *told == reason)
    }
}

/// A digest that stands for a revision's artifact.
#[must_use]
pub fn digest_of(revision: &RevisionId) -> Digest {
    let mut digest = [0; 32];
    for (byte, c) in digest.iter_mut().zip(revision.hash().bytes()) {
        *byte = c;
    }
    Digest(digest)
}
