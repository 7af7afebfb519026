//! One deployment in the gateway: its route, resolved to what can be called, and its use.
//!
//! A cold deployment costs its name, its one version, and a share in [`Terms`](crate::resolved::Terms) that others have as well; everything else
//! is made by its first request ([`DeploymentState::hot`]).

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use berth_spec::{DeploymentName, RevisionId, meter::Meter};

use crate::resolved::NoLease;
use crate::{
    accounts::Keys,
    endpoint::{
        choose::{Choice, TriedEndpoints},
        target::{LocalTarget, NextTarget, RemoteTarget},
    },
    local::{Lease, LocalReplicas, Replica, Statistics},
    metrics::Stats,
    outcomes::OutcomeCounters,
    overload::Pressure,
    resolved::{Resolved, RevisionSelector, Target},
    wait_queue::WaitQueue,
};

/// The state that requests for a deployment share: its route, and from the first request on all else.
pub(crate) struct DeploymentState {
    pub(crate) name: DeploymentName,
    route: ArcSwap<Resolved>,
    hot: OnceLock<Box<HotState>>,
}

/// The part of a deployment that its first request makes.
pub(crate) struct HotState {
    /// The name as responses carry it; shared, never copied.
    pub(crate) model_name: Arc<str>,
    /// Requests that wait for a replica of it to be ready.
    pub(crate) queue: WaitQueue,
    pub(crate) usage: Usage,
    pub(crate) stats: Stats,
    pub(crate) outcomes: OutcomeCounters,
    /// Its use, where it has limits.
    pub(crate) meter: Meter,
    /// A key for each of its callers, by which places and memory are shared out.
    pub(crate) keys: Keys,
    pub(crate) pressure: Pressure,
    /// Draws for the split between revisions.
    draws: AtomicU32,
}

/// The use of a deployment, for the controller. Relaxed throughout: every number is right on its own, and nothing is
/// decided here by two of them together.
#[derive(Default)]
pub(crate) struct Usage {
    /// Requests that hold a lease.
    pub(crate) in_flight: AtomicU32,
    /// Requests since the controller was told last.
    pub(crate) requests: AtomicU64,
    /// When the last one came, nanoseconds since the Unix epoch.
    pub(crate) last_used: AtomicU64,
    /// True while the controller is to be told about it.
    pub(crate) listed: AtomicBool,
    /// True while its results by revision are to be reported.
    pub(crate) unreported: AtomicBool,
}

/// The right to run one request, and the version that will answer it.
pub(crate) struct VersionLease {
    pub(crate) lease: Lease,
    pub(crate) version: Arc<str>,
}

impl DeploymentState {
    pub(crate) fn new(name: DeploymentName, route: Arc<Resolved>) -> Self {
        Self { name, route: ArcSwap::new(route), hot: OnceLock::new() }
    }

    /// The route as it is now. Cheap; hold it briefly.
    pub(crate) fn route(&self) -> arc_swap::Guard<Arc<Resolved>> {
        self.route.load()
    }

    /// Puts a new route in force and wakes who waits for one.
    pub(crate) fn set_route(&self, route: Arc<Resolved>) {
        self.route.store(route);
        if let Some(hot) = self.used() {
            hot.queue.wake();
        }
    }

    /// The part that the first request makes.
    pub(crate) fn hot(&self) -> &HotState {
        self.hot.get_or_init(|| {
            Box::new(HotState {
                model_name: self.name.name().into(),
                queue: WaitQueue::default(),
                usage: Usage::default(),
                stats: Stats::default(),
                outcomes: OutcomeCounters::default(),
                meter: Meter::default(),
                keys: Keys::default(),
                pressure: Pressure::default(),
                draws: AtomicU32::new(0),
            })
        })
    }

    /// The same, if a request has come.
    pub(crate) fn used(&self) -> Option<&HotState> {
        self.hot.get().map(|hot| &**hot)
    }

    /// The right to run one request, if it can be had now. Takes no lock.
    ///
    /// A replica that refuses (it drains) may have been replaced by one of the same revision that the route does not
    /// hold yet: `replicas` is asked again before this is a miss. So it is where a request would only wait for the controller to
    /// plan once more and say that the replica is ready.
    pub(crate) fn lease(
        &self,
        wanted: RevisionSelector<'_>,
        replicas: &LocalReplicas,
    ) -> Result<VersionLease, NoLease> {
        let (lease, version) = self.taken(wanted, replicas, Replica::acquire)?;
        Ok(VersionLease { lease, version })
    }

    /// Fine if there would be a lease. Takes none: a question is no request, and is not counted as one.
    pub(crate) fn would_lease(&self, version: Option<&str>, replicas: &LocalReplicas) -> Result<(), NoLease> {
        self.taken(RevisionSelector::of(version), replicas, |replica| (!replica.is_draining()).then_some(())).map(drop)
    }

    fn taken<T>(
        &self,
        wanted: RevisionSelector<'_>,
        replicas: &LocalReplicas,
        take: impl Fn(&Arc<Replica>) -> Option<T>,
    ) -> Result<(T, Arc<str>), NoLease> {
        let route = self.route();
        let or_gone = |no: NoLease| if route.terms.gone { NoLease::Gone } else { no };
        let draw = || self.hot().draws.fetch_add(1, Ordering::Relaxed);
        let (target, may_be_here) = route.seek(wanted, draw).map_err(or_gone)?;
        let held = target.replica.as_ref().and_then(&take);
        let again = || may_be_here.then(|| take(&target.replica_in(replicas)?)).flatten();
        match held.or_else(again) {
            Some(taken) => Ok((taken, Arc::clone(&target.version))),
            None if route.terms.gone => Err(NoLease::Gone),
            None if wanted.version.is_some() && route.any_ready() => Err(NoLease::VersionNotReady),
            None => Err(NoLease::Miss(route.terms.on_miss.clone())),
        }
    }

    /// The right to run one request of one revision here, if it can be had now.
    pub(crate) fn lease_of(&self, here: &LocalTarget, replicas: &LocalReplicas) -> Option<VersionLease> {
        let lease = replicas.get(&here.revision)?.acquire()?;
        Some(VersionLease { lease, version: Arc::clone(&here.version) })
    }

    /// True if another node that is well holds this revision, too.
    pub(crate) fn is_elsewhere(&self, revision: &RevisionId) -> bool {
        let route = self.route();
        let target = route.targets.iter().find(|target| target.revision == *revision);
        target.and_then(|target| target.endpoints.as_deref()).is_some_and(|endpoints| endpoints.any_well())
    }

    /// Notes how long a run here took, where other nodes are an alternative.
    pub(crate) fn ran_here(&self, revision: &RevisionId, took: Duration) {
        let route = self.route();
        let target = route.targets.iter().find(|target| target.revision == *revision);
        if let Some(endpoints) = target.and_then(|target| target.endpoints.as_deref()) {
            endpoints.local.record(took, endpoints.now());
        }
    }

    /// Finds a place where a request can be answered now, here or elsewhere, but not where it was tried. Takes no lock.
    pub(crate) fn find(
        &self,
        wanted: RevisionSelector<'_>,
        replicas: &LocalReplicas,
        tried: &TriedEndpoints,
    ) -> Result<NextTarget, NoLease> {
        let route = self.route();
        if wanted.version.is_none() && route.only_here() {
            return Ok(NextTarget::Local(None));
        }
        let or_gone = |no: NoLease| if route.terms.gone { NoLease::Gone } else { no };
        let draw = || self.hot().draws.fetch_add(1, Ordering::Relaxed);
        let (target, may_be_here) = route.seek(wanted, draw).map_err(or_gone)?;
        let serving = |replica: Arc<Replica>| (!replica.is_draining()).then(|| replica.in_flight());
        let held = target.replica.clone().and_then(serving);
        let again = || may_be_here.then(|| target.replica_in(replicas).and_then(serving)).flatten();
        let local = held.or_else(again).filter(|_| !tried.has_here());
        let here = || {
            NextTarget::Local(Some(LocalTarget {
                revision: target.revision.clone(),
                version: Arc::clone(&target.version),
            }))
        };
        let found = match &target.endpoints {
            None => local.map(|_| here()),
            Some(endpoints) => match endpoints.choose(local, tried, endpoints.now()) {
                Some(Choice::Local) => Some(here()),
                Some(Choice::Remote(endpoint, known)) => Some(NextTarget::Remote(RemoteTarget {
                    revision: target.revision.clone(),
                    endpoint,
                    known,
                    endpoints: Arc::clone(endpoints),
                    or_here: local.is_some(),
                })),
                None => None,
            },
        };
        match found {
            Some(found) => Ok(found),
            None if route.terms.gone => Err(NoLease::Gone),
            None if wanted.version.is_some() && target.endpoints.is_none() && route.any_ready() => {
                Err(NoLease::VersionNotReady)
            }
            None => Err(NoLease::Miss(route.terms.on_miss.clone())),
        }
    }

    /// Fine if clients can ask for this version.
    pub(crate) fn knows(&self, version: Option<&str>) -> Result<(), NoLease> {
        let Some(version) = version else { return Ok(()) };
        let known = self.route().targets.iter().any(|target| &*target.version == version);
        if known { Ok(()) } else { Err(NoLease::NoSuchVersion) }
    }

    /// The statistics of the loaded replicas: of all of them, or of the one of this version.
    pub(crate) fn loaded(&self, version: Option<&str>) -> Vec<LoadedReplica> {
        let route = self.route();
        let asked = route.targets.iter().filter(|target| version.is_none_or(|version| &*target.version == version));
        let loaded = |target: &Target| {
            let statistics = target.replica.as_ref()?.model().statistics();
            Some(LoadedReplica { name: self.name.clone(), version: Arc::clone(&target.version), statistics })
        };
        asked.filter_map(loaded).collect()
    }
}

/// A replica of this node with its statistics, under the names that clients use.
pub(crate) struct LoadedReplica {
    pub(crate) name: DeploymentName,
    pub(crate) version: Arc<str>,
    pub(crate) statistics: Statistics,
}

#[cfg(test)]
impl DeploymentState {
    /// One that has no replica, and waits for a request.
    pub(crate) fn cold(name: DeploymentName) -> Self {
        let route = berth_spec::Route {
            deployment: name.clone(),
            split: Vec::new(),
            versions: Vec::new(),
            on_miss: berth_spec::routes::OnMiss::Park,
            on_demand: true,
            timeout: Duration::from_secs(10),
            concurrency: berth_spec::deployment::Concurrency { max: None, queue: 1 },
            limits: berth_spec::UseLimits::default(),
            idempotent: true,
            endpoint: None,
        };
        let terms = Arc::new(crate::resolved::Terms::of(&route));
        let targets = [].into_iter().collect();
        Self::new(name, Arc::new(Resolved { targets, split: Box::default(), schedule: None, terms }))
    }
}
