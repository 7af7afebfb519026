//! One deployment in the gateway: its route, resolved to the replicas of this process, and its use.
//!
//! A cold deployment costs its name, its one version, and a share in [`Terms`] that others have as well; everything else
//! is made by its first request ([`Entry::hot`]).

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use berth_spec::{DeploymentName, RevisionId, Route, WorkerId, deployment::Concurrency, routes::OnMiss};

use crate::{
    local::{Lease, LocalReplicas, Replica, Statistics},
    metrics::Stats,
    parking::Lot,
};

/// One deployment.
pub(crate) struct Entry {
    pub(crate) name: DeploymentName,
    route: ArcSwap<Resolved>,
    hot: OnceLock<Box<Hot>>,
}

/// What a deployment has once a request has come.
pub(crate) struct Hot {
    /// The name as responses carry it; shared, never copied.
    pub(crate) model_name: Arc<str>,
    /// Requests that wait for it.
    pub(crate) lot: Lot,
    pub(crate) usage: Usage,
    pub(crate) stats: Stats,
    /// Draws for the split between revisions.
    draws: AtomicU32,
}

/// What the controller wants to know of it. Relaxed throughout: every number is right on its own, and nothing is
/// decided here by two of them together.
#[derive(Default)]
pub(crate) struct Usage {
    /// Requests that hold a lease.
    pub(crate) in_flight: AtomicU32,
    /// Requests since the controller was told last.
    pub(crate) requests: AtomicU64,
    /// When the last one came, nanoseconds since the Unix epoch.
    pub(crate) last_used: AtomicU64,
    /// It is in the list of what the controller is to be told about.
    pub(crate) listed: AtomicBool,
}

/// A route with the replicas that this process can call for it.
#[derive(Clone)]
pub(crate) struct Resolved {
    /// Every revision that clients can reach.
    pub(crate) targets: Targets,
    /// Indices into `targets` with their weights.
    split: Box<[(u32, u32)]>,
    pub(crate) terms: Arc<Terms>,
}

/// What a route says beside where it leads. Most of 100,000 cold deployments say the same, and share it.
#[derive(Clone, PartialEq)]
pub(crate) struct Terms {
    pub(crate) on_miss: OnMiss,
    pub(crate) on_demand: bool,
    pub(crate) timeout: Duration,
    pub(crate) concurrency: Concurrency,
    /// The deployment was deleted; whoever still waits for it is told so.
    pub(crate) gone: bool,
}

/// Reachable revisions. A cold deployment has one, and there are many of those: it is held in place.
#[derive(Clone)]
pub(crate) enum Targets {
    One(Target),
    Some(Box<[Target]>),
}

/// One reachable revision.
#[derive(Clone)]
pub(crate) struct Target {
    /// The version name that clients use.
    pub(crate) version: Arc<str>,
    pub(crate) revision: RevisionId,
    /// The route says that it is ready here.
    pub(crate) ready: bool,
    /// The replica, where it is ready and was found here when the route came.
    pub(crate) replica: Option<Arc<Replica>>,
}

/// The right to run one request, and the version that will answer it.
pub(crate) struct Leased {
    pub(crate) lease: Lease,
    pub(crate) version: Arc<str>,
}

/// Why there is no lease now.
#[derive(Debug)]
pub(crate) enum NoLease {
    /// The deployment was deleted.
    Gone,
    /// No version of that name.
    NoSuchVersion,
    /// That version is not ready, though others are: it will not be loaded by waiting.
    VersionNotReady,
    /// Nothing is ready, and the route says what to do.
    Miss(OnMiss),
}

impl FromIterator<Target> for Targets {
    fn from_iter<I: IntoIterator<Item = Target>>(targets: I) -> Self {
        let mut targets = targets.into_iter();
        match (targets.next(), targets.next()) {
            (Some(only), None) => Self::One(only),
            (first, second) => Self::Some(first.into_iter().chain(second).chain(targets).collect()),
        }
    }
}

impl std::ops::Deref for Targets {
    type Target = [Target];
    fn deref(&self) -> &[Target] {
        match self {
            Self::One(only) => std::slice::from_ref(only),
            Self::Some(targets) => targets,
        }
    }
}

impl Terms {
    pub(crate) fn of(route: &Route) -> Self {
        Self {
            on_miss: route.on_miss.clone(),
            on_demand: route.on_demand,
            timeout: route.timeout,
            concurrency: route.concurrency,
            gone: false,
        }
    }
}

impl Resolved {
    /// Looks up the replicas of a route.
    pub(crate) fn new(route: &Route, terms: Arc<Terms>, me: &WorkerId, replicas: &LocalReplicas) -> Self {
        let target = |version: &berth_spec::routes::Version| {
            let ready = version.ready.contains(me);
            Target {
                version: version.name.as_str().into(),
                revision: version.revision.clone(),
                ready,
                replica: ready.then(|| replicas.get(&version.revision)).flatten(),
            }
        };
        let targets: Targets = route.versions.iter().map(target).collect();
        let index = |revision: &RevisionId| targets.iter().position(|target| target.revision == *revision);
        let split = route
            .split
            .iter()
            .filter_map(|(revision, weight)| Some((u32::try_from(index(revision)?).ok()?, *weight)))
            .collect();
        Self { targets, split, terms }
    }

    /// The same route, if a replica of it has come back since it was resolved.
    pub(crate) fn refreshed(&self, replicas: &LocalReplicas) -> Option<Self> {
        let stale = |target: &Target| target.ready && target.replica.as_ref().is_none_or(|r| r.is_draining());
        if self.terms.gone || !self.targets.iter().any(stale) {
            return None;
        }
        let refresh = |target: &Target| Target {
            replica: if stale(target) { replicas.get(&target.revision) } else { target.replica.clone() },
            ..target.clone()
        };
        let targets = self.targets.iter().map(refresh).collect();
        Some(Self { targets, ..self.clone() })
    }

    /// The state of a deployment that was deleted: who was let in before may still have a replica until it drains. It
    /// holds none itself, as a deleted entry is freed some time later.
    pub(crate) fn gone(&self) -> Self {
        let targets = self.targets.iter().map(|target| Target { replica: None, ..target.clone() }).collect();
        let terms = Arc::new(Terms { gone: true, ..self.terms.as_ref().clone() });
        Self { targets, terms, split: self.split.clone() }
    }

    /// A replica answers here now.
    pub(crate) fn any_ready(&self) -> bool {
        self.targets.iter().any(|target| target.replica.as_ref().is_some_and(|replica| !replica.is_draining()))
    }

    /// The target of a version, or the one that `draw` falls on: one of the split that is ready if there is any.
    fn pick(&self, version: Option<&str>, draw: impl FnOnce() -> u32) -> Result<&Target, NoLease> {
        if let Some(version) = version {
            return self.targets.iter().find(|t| &*t.version == version).ok_or(NoLease::NoSuchVersion);
        }
        let at = |&(index, _): &(u32, u32)| &self.targets[index as usize];
        let ready = || self.split.iter().filter(|share| at(share).ready);
        match &*self.split {
            [] => Err(NoLease::Miss(self.terms.on_miss.clone())),
            [only] => Ok(at(only)),
            _ => {
                let total: u32 = ready().map(|(_, weight)| *weight).sum();
                let mut left = draw().checked_rem(total).unwrap_or(0);
                ready()
                    .find(|(_, weight)| left.checked_sub(*weight).map(|rest| left = rest).is_none())
                    .or_else(|| ready().next())
                    .map(at)
                    .ok_or_else(|| NoLease::Miss(self.terms.on_miss.clone()))
            }
        }
    }
}

impl Entry {
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
            hot.lot.wake();
        }
    }

    /// The part that the first request makes.
    pub(crate) fn hot(&self) -> &Hot {
        self.hot.get_or_init(|| {
            Box::new(Hot {
                model_name: self.name.as_str().into(),
                lot: Lot::default(),
                usage: Usage::default(),
                stats: Stats::default(),
                draws: AtomicU32::new(0),
            })
        })
    }

    /// The same, if a request has come.
    pub(crate) fn used(&self) -> Option<&Hot> {
        self.hot.get().map(|hot| &**hot)
    }

    /// The right to run one request, if it can be had now. Takes no lock.
    ///
    /// A replica that refuses (it drains) may have been replaced by one of the same revision that the route does not
    /// hold yet: `replicas` is asked again before this is a miss.
    pub(crate) fn lease(&self, version: Option<&str>, replicas: &LocalReplicas) -> Result<Leased, NoLease> {
        let route = self.route();
        let or_gone = |no: NoLease| if route.terms.gone { NoLease::Gone } else { no };
        let target = route.pick(version, || self.hot().draws.fetch_add(1, Ordering::Relaxed)).map_err(or_gone)?;
        let held = target.replica.as_ref().and_then(|replica| replica.acquire());
        let again = || target.ready.then(|| replicas.get(&target.revision)?.acquire()).flatten();
        match held.or_else(again) {
            Some(lease) => Ok(Leased { lease, version: Arc::clone(&target.version) }),
            None if route.terms.gone => Err(NoLease::Gone),
            None if version.is_some() && route.any_ready() => Err(NoLease::VersionNotReady),
            None => Err(NoLease::Miss(route.terms.on_miss.clone())),
        }
    }

    /// Whether clients can ask for this version.
    pub(crate) fn knows(&self, version: Option<&str>) -> Result<(), NoLease> {
        let Some(version) = version else { return Ok(()) };
        let known = self.route().targets.iter().any(|target| &*target.version == version);
        if known { Ok(()) } else { Err(NoLease::NoSuchVersion) }
    }

    /// What the loaded replicas say of themselves: all of them, or the one of this version.
    pub(crate) fn loaded(&self, version: Option<&str>) -> Vec<Loaded> {
        let route = self.route();
        let asked = route.targets.iter().filter(|target| version.is_none_or(|version| &*target.version == version));
        let loaded = |target: &Target| {
            let statistics = target.replica.as_ref()?.model().statistics();
            Some(Loaded { name: self.name.clone(), version: Arc::clone(&target.version), statistics })
        };
        asked.filter_map(loaded).collect()
    }
}

/// What a loaded replica says of itself.
pub(crate) struct Loaded {
    pub(crate) name: DeploymentName,
    pub(crate) version: Arc<str>,
    pub(crate) statistics: Statistics,
}
