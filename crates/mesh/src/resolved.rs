//! A route, resolved: to the replicas of this process and to the endpoints on other nodes.

pub(crate) mod schedule;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use berth_spec::{
    RevisionId, Route, UseLimits, WorkerId,
    deployment::Concurrency,
    routes::{OnMiss, Version},
};

use self::schedule::Schedule;
use crate::{
    endpoint::{Endpoints, fleet::Remotes},
    local::{LocalReplicas, Replica, ReplicaChange},
    rendezvous,
};

/// Makes of routes what requests need at hand: names as headers, endpoints with their records.
pub(crate) struct Resolver {
    pub(crate) me: WorkerId,
    pub(crate) replicas: Arc<LocalReplicas>,
    /// The other nodes; `None`: there are none, and what is ready elsewhere cannot be had.
    pub(crate) remotes: Option<Arc<Remotes>>,
}

/// A route with what can be called for it.
#[derive(Clone)]
pub(crate) struct Resolved {
    /// Every revision that clients can reach.
    pub(crate) targets: Targets,
    /// Indices into `targets` with their weights.
    pub(crate) split: Box<[(u32, u32)]>,
    /// The order of picks, as indices into `split`; `None` where there is nothing to choose.
    pub(crate) schedule: Option<Box<Schedule>>,
    pub(crate) terms: Arc<Terms>,
}

/// The terms of a route: all but where it leads. Most of 100,000 cold deployments have the same, and share them.
#[derive(Clone, PartialEq)]
pub(crate) struct Terms {
    pub(crate) on_miss: OnMiss,
    pub(crate) on_demand: bool,
    pub(crate) timeout: Duration,
    pub(crate) concurrency: Concurrency,
    /// Limits on its use by all callers together.
    pub(crate) limits: UseLimits,
    /// A request may be sent again where it is not known whether it was run.
    pub(crate) idempotent: bool,
    /// The path at which it answers in its own JSON.
    pub(crate) endpoint: Option<Box<str>>,
    /// The deployment was deleted; whoever still waits for it is told so.
    pub(crate) gone: bool,
}

/// The reason why there is no lease now.
#[derive(Debug)]
pub(crate) enum NoLease {
    /// The deployment was deleted.
    Gone,
    /// No version of that name.
    NoSuchVersion,
    /// The version is not ready, though others are: it will not be loaded by waiting.
    VersionNotReady,
    /// Nothing is ready, and the route says what to do.
    Miss(OnMiss),
}

/// Reachable revisions. A cold deployment has one, and there are many of those: it is held in place.
#[derive(Clone)]
pub(crate) enum Targets {
    One(Target),
    Some(Box<[Target]>),
}

/// A revision that requests can be given to: its names, and where it has replicas.
#[derive(Clone)]
pub(crate) struct Target {
    /// The version name that clients use.
    pub(crate) version: Arc<str>,
    pub(crate) revision: RevisionId,
    /// The route says that it is ready here.
    pub(crate) ready: bool,
    /// The replica, where it is ready and was found here when the route came.
    pub(crate) replica: Option<Arc<Replica>>,
    /// The other places it can be had from. A cold one has none.
    pub(crate) endpoints: Option<Arc<Endpoints>>,
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
            limits: route.limits,
            idempotent: route.idempotent,
            endpoint: route.endpoint.clone(),
            gone: false,
        }
    }
}

impl Target {
    fn new(version: &Version, resolver: &Resolver, before: Option<&Resolved>) -> Self {
        let ready = version.ready.contains(&resolver.me);
        let endpoints = |remotes: &Arc<Remotes>| {
            let mut known = before.into_iter().flat_map(|before| before.targets.iter());
            let known = known.find(|target| target.revision == version.revision).and_then(|t| t.endpoints.as_deref());
            let elsewhere = version.ready.iter().filter(|worker| **worker != resolver.me);
            Endpoints::of(&version.revision, &version.name, elsewhere, known, remotes)
        };
        Self {
            version: version.name.as_str().into(),
            revision: version.revision.clone(),
            ready,
            replica: ready.then(|| routed(&resolver.replicas, &version.revision)).flatten(),
            endpoints: resolver.remotes.as_ref().and_then(endpoints),
        }
    }

    /// A revision that is ready nowhere, with its hash for a version name.
    pub(crate) fn cold(revision: RevisionId) -> Self {
        Self { version: revision.hash().into(), revision, ready: false, replica: None, endpoints: None }
    }

    /// A replica of it here that the route does not hold: any where the route says that one is ready, else one that was just loaded.
    pub(crate) fn replica_in(&self, replicas: &LocalReplicas) -> Option<Arc<Replica>> {
        match self.ready {
            true => routed(replicas, &self.revision),
            false => replicas.get(&self.revision).filter(|replica| !replica.was_routed()),
        }
    }

    /// The route says that it is ready somewhere, or a hint does.
    fn is_ready(&self) -> bool {
        self.ready || self.endpoints.is_some()
    }

    /// True if it would answer now, here or elsewhere.
    pub(crate) fn answers(&self) -> bool {
        self.replica.as_ref().is_some_and(|replica| !replica.is_draining())
            || self.endpoints.as_ref().is_some_and(|endpoints| endpoints.any())
    }
}

impl Resolved {
    /// Looks up what a route leads to; what is known of endpoints from the route `before` is kept.
    pub(crate) fn new(route: &Route, terms: Arc<Terms>, resolver: &Resolver, before: Option<&Self>) -> Self {
        let targets: Targets = route.versions.iter().map(|version| Target::new(version, resolver, before)).collect();
        let index = |revision: &RevisionId| targets.iter().position(|target| target.revision == *revision);
        let split: Box<[(u32, u32)]> = route
            .split
            .iter()
            .filter_map(|(revision, weight)| Some((u32::try_from(index(revision)?).ok()?, *weight)))
            .collect();
        Self { schedule: schedule(&targets, &split), targets, split, terms }
    }

    /// The route of a deployment with one revision, of which all requests get this share.
    pub(crate) fn cold(target: Target, weight: Option<u32>, terms: Arc<Terms>) -> Self {
        let split = weight.map(|weight| (0, weight)).into_iter().collect();
        Self { targets: Targets::One(target), split, schedule: None, terms }
    }

    /// The same route, with what a worker said of one revision; `None` if clients cannot reach that.
    pub(crate) fn hinted(
        &self,
        revision: &RevisionId,
        worker: &WorkerId,
        change: ReplicaChange,
        remotes: &Remotes,
    ) -> Option<Self> {
        self.targets.iter().find(|target| target.revision == *revision)?;
        let hinted = |target: &Target| {
            let mut target = target.clone();
            if target.revision == *revision {
                let endpoints = target.endpoints.as_deref();
                target.endpoints = Endpoints::hinted(revision, &target.version, worker, change, endpoints, remotes);
            }
            target
        };
        let targets: Targets = self.targets.iter().map(hinted).collect();
        Some(Self { schedule: schedule(&targets, &self.split), targets, ..self.clone() })
    }

    /// The same route, if a replica of it has come back since it was resolved.
    pub(crate) fn refreshed(&self, replicas: &LocalReplicas) -> Option<Self> {
        let stale = |target: &Target| target.ready && target.replica.as_ref().is_none_or(|r| r.is_draining());
        if self.terms.gone || !self.targets.iter().any(stale) {
            return None;
        }
        let refresh = |target: &Target| Target {
            replica: if stale(target) { routed(replicas, &target.revision) } else { target.replica.clone() },
            ..target.clone()
        };
        let targets = self.targets.iter().map(refresh).collect();
        Some(Self { targets, ..self.clone() })
    }

    /// The most requests at once in all replicas together, as far as this gateway knows them. Each holds its own part of it.
    pub(crate) fn bound(&self) -> Option<u32> {
        let max = self.terms.concurrency.max?;
        let elsewhere = |target: &Target| target.endpoints.as_ref().map_or(0, |endpoints| endpoints.len());
        let copies = self.targets.iter().map(|target| usize::from(target.replica.is_some()) + elsewhere(target));
        let copies = u32::try_from(copies.sum::<usize>()).unwrap_or(u32::MAX);
        Some(max.saturating_mul(copies.max(1)))
    }

    /// The state of a deployment that was deleted: who was let in before may still have a replica until it drains. It
    /// holds none itself, as a deleted entry is freed some time later.
    pub(crate) fn gone(&self) -> Self {
        let targets =
            self.targets.iter().map(|target| Target { replica: None, endpoints: None, ..target.clone() }).collect();
        let terms = Arc::new(Terms { gone: true, ..self.terms.as_ref().clone() });
        Self { targets, terms, split: self.split.clone(), schedule: self.schedule.clone() }
    }

    /// A replica answers now, here or elsewhere.
    pub(crate) fn any_ready(&self) -> bool {
        self.targets.iter().any(Target::answers)
    }

    /// The nodes where a replica answers now; `me` is this one.
    pub(crate) fn answering(&self, me: &WorkerId) -> BTreeSet<WorkerId> {
        let mut workers = BTreeSet::new();
        for target in self.targets.iter() {
            if target.replica.as_ref().is_some_and(|replica| !replica.is_draining()) {
                workers.insert(me.clone());
            }
            workers.extend(target.endpoints.iter().flat_map(|endpoints| endpoints.answering()).cloned());
        }
        workers
    }

    /// A replica answers now in this gateway's own region: here, or on a node that is near.
    pub(crate) fn any_near(&self) -> bool {
        self.targets.iter().any(|target| {
            target.replica.as_ref().is_some_and(|replica| !replica.is_draining())
                || target.endpoints.as_ref().is_some_and(|endpoints| endpoints.any_near())
        })
    }

    /// The version that most of the requests get, or would.
    pub(crate) fn main_version(&self) -> Option<&Target> {
        let share = self.split.iter().max_by_key(|(index, weight)| (*weight, std::cmp::Reverse(*index)));
        share.map_or_else(|| self.targets.first(), |(index, _)| self.targets.get(*index as usize))
    }

    /// A request for this version, or for none, would be answered by another node.
    pub(crate) fn is_elsewhere(&self, version: Option<&str>) -> bool {
        let shared = |at: usize| self.split.is_empty() || self.split.iter().any(|(index, _)| *index as usize == at);
        let asked = |(at, target): &(usize, &Target)| match version {
            Some(version) => &*target.version == version,
            None => shared(*at),
        };
        let mut asked = self.targets.iter().enumerate().filter(asked);
        asked.any(|(_, target)| target.endpoints.as_ref().is_some_and(|endpoints| endpoints.any()))
    }

    /// Other nodes are asked for it.
    pub(crate) fn has_places(&self) -> bool {
        self.targets.iter().any(|target| target.endpoints.is_some())
    }

    /// A replica answers here now, and nowhere else can one be had: there is nothing to choose.
    pub(crate) fn only_here(&self) -> bool {
        let mut here = false;
        for target in self.targets.iter() {
            if target.endpoints.is_some() {
                return false;
            }
            here |= target.replica.as_ref().is_some_and(|replica| !replica.is_draining());
        }
        here
    }

    /// The target of a version, else one of the split that is ready: the one that the key of the request leads to, or the
    /// one whose turn the draw with this number is.
    pub(crate) fn pick(&self, wanted: RevisionSelector<'_>, draw: impl FnOnce() -> u32) -> Result<&Target, NoLease> {
        if let Some(version) = wanted.version {
            return self.targets.iter().find(|t| &*t.version == version).ok_or(NoLease::NoSuchVersion);
        }
        let at = |&(index, _): &(u32, u32)| &self.targets[index as usize];
        match &*self.split {
            // A hint may come before the first route that shares traffic out.
            [] => {
                let hinted = self.targets.iter().find(|target| target.endpoints.is_some());
                hinted.ok_or_else(|| NoLease::Miss(self.terms.on_miss.clone()))
            }
            [only] => Ok(at(only)),
            shares => {
                let scheduled = match wanted.key {
                    Some(key) => self.kept_together(key),
                    None => self.schedule.as_ref().and_then(|schedule| shares.get(schedule.at(draw()))),
                };
                scheduled
                    .or_else(|| shares.iter().find(|share| at(share).is_ready()))
                    .map(at)
                    .ok_or_else(|| NoLease::Miss(self.terms.on_miss.clone()))
            }
        }
    }

    /// The target of a request, and true if a replica of it that is here may be called although the route does not hold it: one that has
    /// come back, or one that was just loaded ([`Replica::was_routed`]) and is waited for.
    pub(crate) fn seek(
        &self,
        wanted: RevisionSelector<'_>,
        draw: impl FnOnce() -> u32,
    ) -> Result<(&Target, bool), NoLease> {
        let picked = self.pick(wanted, draw);
        if let Ok(target) = picked
            && target.ready
        {
            return Ok((target, true));
        }
        match (picked, self.awaited().filter(|_| wanted.version.is_none())) {
            (Ok(target), awaited) => Ok((target, awaited.is_some())),
            (Err(NoLease::Miss(_)), Some(awaited)) => Ok((awaited, true)),
            (Err(no), _) => Err(no),
        }
    }

    /// The revision of an on-demand deployment that all requests wait for: the controller has it loaded, here or elsewhere, and a
    /// replica of it that can be called answers them before the controller says so. `None` where they may have to do with another
    /// revision, or are not to be answered.
    fn awaited(&self) -> Option<&Target> {
        let only = match (&*self.split, &*self.targets) {
            ([], [only]) => only,
            ([(index, _)], targets) => &targets[*index as usize],
            _ => return None,
        };
        let waits = self.terms.on_demand && !self.terms.gone && matches!(self.terms.on_miss, OnMiss::Park);
        (waits && !only.is_ready()).then_some(only)
    }

    /// The share that a key leads to, among those that are ready.
    fn kept_together(&self, key: u64) -> Option<&(u32, u32)> {
        let candidate = |(index, weight): &(u32, u32)| {
            let target = &self.targets[*index as usize];
            (rendezvous::hash(&target.revision.hash_bytes()), if target.is_ready() { *weight } else { 0 })
        };
        self.split.get(rendezvous::winner(key, self.split.iter().map(candidate))?)
    }
}

/// The wishes of a request that concern the revision.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RevisionSelector<'a> {
    /// `None`: whichever version the route says.
    pub(crate) version: Option<&'a str>,
    /// Requests with the same key go to the same revision.
    pub(crate) key: Option<u64>,
}

impl<'a> RevisionSelector<'a> {
    /// A version, or any; no key.
    pub(crate) fn of(version: Option<&'a str>) -> Self {
        Self { version, key: None }
    }
}

/// A replica here that a route names.
fn routed(replicas: &LocalReplicas, revision: &RevisionId) -> Option<Arc<Replica>> {
    replicas.get(revision).inspect(|replica| replica.set_routed())
}

/// The order of picks among the shares that are ready somewhere, where there is more than one share.
fn schedule(targets: &Targets, split: &[(u32, u32)]) -> Option<Box<Schedule>> {
    if split.len() < 2 {
        return None;
    }
    let weight = |(index, weight): &(u32, u32)| if targets[*index as usize].is_ready() { *weight } else { 0 };
    Schedule::of(&split.iter().map(weight).collect::<Vec<_>>()).map(Box::new)
}
