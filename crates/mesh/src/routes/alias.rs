//! One alias in the gateway: deployments that share the requests of a name.
//!
//! ```text
//! name ─▶ sticky and the request has the property? ──yes──▶ rendezvous hashing: equal requests, equal target
//!                                    └──no──▶ the next of a smooth schedule
//! ```
//! Only deployments that the gateway knows are chosen: the share of one that is not declared goes to the others.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

use arc_swap::ArcSwap;
use berth_spec::{
    DeploymentName, InferError,
    routes::{AliasRoute, Stickiness},
};

use crate::{deployment::DeploymentState, metrics::Outcome, rendezvous, resolved::schedule::Schedule, routes::Routes};

/// An alias, with its targets as they are now.
pub(crate) struct AliasState {
    pub(crate) name: DeploymentName,
    /// The name as responses carry it.
    pub(crate) model_name: Arc<str>,
    route: ArcSwap<AliasTargets>,
    /// Draws for the smooth schedule.
    draws: AtomicU32,
}

/// The targets of an alias, as they are now.
pub(crate) struct AliasTargets {
    pub(crate) list: Box<[AliasTarget]>,
    pub(crate) sticky: Stickiness,
    /// The order of picks among those that exist; `None`: none does.
    schedule: Option<Schedule>,
}

/// A deployment that an alias leads to.
#[derive(Clone)]
pub(crate) struct AliasTarget {
    pub(crate) name: DeploymentName,
    pub(crate) weight: u32,
    /// A hash of the name.
    hash: u64,
    /// Such a deployment is declared.
    pub(crate) exists: bool,
    pub(crate) counters: Arc<AliasCounters>,
}

/// The results of the requests that an alias gave to one deployment.
#[derive(Default)]
pub(crate) struct AliasCounters([AtomicU64; 3]);

/// The alias by which a request came.
pub(crate) struct ResolvedAlias {
    pub(crate) alias: Arc<AliasState>,
    pub(crate) counters: Arc<AliasCounters>,
    /// A hash of the property that requests of the alias keep together by.
    pub(crate) key: Option<u64>,
}

impl AliasCounters {
    /// The results that are counted, in words.
    pub(crate) const RESULTS: [&'static str; 3] = ["ok", "client_error", "server_error"];

    /// Counts a request that was given to the target, at its end.
    pub(crate) fn record(&self, outcome: Outcome) {
        self.0[outcome.result() as usize].fetch_add(1, Relaxed);
    }

    /// The requests with each result.
    pub(crate) fn counts(&self) -> [u64; 3] {
        [0, 1, 2].map(|at: usize| self.0[at].load(Relaxed))
    }
}

impl AliasTargets {
    fn new(list: Box<[AliasTarget]>, sticky: Stickiness) -> Self {
        let schedule = Schedule::of(&list.iter().map(AliasTarget::share).collect::<Vec<_>>());
        Self { list, sticky, schedule }
    }

    /// The names of the deployments that exist and have a share, those with the largest first.
    pub(crate) fn existing(&self) -> Vec<DeploymentName> {
        let mut existing: Vec<_> = self.list.iter().filter(|target| target.share() > 0).collect();
        existing.sort_by_key(|target| std::cmp::Reverse(target.weight));
        existing.into_iter().map(|target| target.name.clone()).collect()
    }

    fn pick(&self, key: Option<u64>, draw: impl FnOnce() -> u32) -> Option<&AliasTarget> {
        let Some(key) = key else { return self.list.get(self.schedule.as_ref()?.at(draw())) };
        let candidates = self.list.iter().map(|target| (target.hash, target.share()));
        self.list.get(rendezvous::winner(key, candidates)?)
    }
}

impl AliasTarget {
    /// The weight that counts.
    fn share(&self) -> u32 {
        if self.exists { self.weight } else { 0 }
    }
}

impl AliasState {
    /// The state of a route; `exists` knows the deployments. Counters of the state `before` go on.
    pub(crate) fn new(route: &AliasRoute, before: Option<&Self>, exists: impl Fn(&DeploymentName) -> bool) -> Self {
        let before = before.map(Self::targets);
        let known = |name: &DeploymentName| before.as_ref()?.list.iter().find(|target| target.name == *name);
        let target = |(name, weight): &(DeploymentName, u32)| AliasTarget {
            name: name.clone(),
            weight: *weight,
            hash: rendezvous::hash(name.as_str().as_bytes()),
            exists: exists(name),
            counters: known(name).map(|target| Arc::clone(&target.counters)).unwrap_or_default(),
        };
        let targets = AliasTargets::new(route.targets.iter().map(target).collect(), route.sticky.clone());
        Self {
            name: route.name.clone(),
            model_name: route.name.name().into(),
            route: ArcSwap::from_pointee(targets),
            draws: AtomicU32::new(0),
        }
    }

    /// The targets as they are now. Cheap; hold it briefly.
    pub(crate) fn targets(&self) -> arc_swap::Guard<Arc<AliasTargets>> {
        self.route.load()
    }

    /// Looks the targets up again.
    pub(crate) fn refresh(&self, exists: impl Fn(&DeploymentName) -> bool) {
        let targets = self.targets();
        let list = targets.list.iter().map(|target| AliasTarget { exists: exists(&target.name), ..target.clone() });
        self.route.store(Arc::new(AliasTargets::new(list.collect(), targets.sticky.clone())));
    }

    /// The deployment for a request: with a version, one that has it, if any does.
    pub(crate) fn choose(
        self: &Arc<Self>,
        key: Option<u64>,
        version: Option<&str>,
        routes: &Routes,
    ) -> Result<(Arc<DeploymentState>, ResolvedAlias), InferError> {
        let targets = self.targets();
        let picked = targets.pick(key, || self.draws.fetch_add(1, Relaxed));
        let has = |target: &&AliasTarget| routes.peek(&target.name).is_some_and(|entry| entry.knows(version).is_ok());
        let picked = match version {
            Some(_) => picked.filter(has).or_else(|| self.heaviest(&targets, has)).or(picked),
            None => picked,
        };
        let found = |target: &AliasTarget| Some((routes.find(target.name.key())?, Arc::clone(&target.counters)));
        // One that was deleted at this moment leaves its share to another.
        let found = picked.and_then(found).or_else(|| targets.list.iter().find_map(found));
        let (entry, counters) = found.ok_or_else(|| self.leads_nowhere())?;
        Ok((entry, ResolvedAlias { alias: Arc::clone(self), counters, key }))
    }

    /// The deployment that stands for all of them in descriptions: the one with the largest share, of several the first.
    pub(crate) fn main(self: &Arc<Self>, routes: &Routes) -> Result<(Arc<DeploymentState>, ResolvedAlias), InferError> {
        let targets = self.targets();
        let main = self.heaviest(&targets, |target| target.exists);
        let found = main.and_then(|target| Some((routes.find(target.name.key())?, Arc::clone(&target.counters))));
        let (entry, counters) = found.ok_or_else(|| self.leads_nowhere())?;
        Ok((entry, ResolvedAlias { alias: Arc::clone(self), counters, key: None }))
    }

    fn heaviest<'a>(
        &self,
        targets: &'a AliasTargets,
        which: impl Fn(&&AliasTarget) -> bool,
    ) -> Option<&'a AliasTarget> {
        targets.list.iter().rev().filter(which).max_by_key(|target| target.weight)
    }

    /// The error for a request to an alias none of whose targets exists.
    pub(crate) fn leads_nowhere(&self) -> InferError {
        let targets = self.targets();
        let names: Vec<&str> = targets.list.iter().map(|target| target.name.as_str()).collect();
        let names = names.join(", ");
        InferError::NotFound(format!(
            "model {:?} is an alias, and none of the deployments that it leads to is declared: {names}",
            self.name.as_str()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> DeploymentName {
        DeploymentName::new(text).expect("a name")
    }

    fn route(targets: &[(&str, u32)]) -> AliasRoute {
        let targets = targets.iter().map(|(target, weight)| (name(target), *weight)).collect();
        AliasRoute { name: name("live"), targets, sticky: Stickiness::None }
    }

    /// The name that is picked; `none` where there is none.
    fn chosen(alias: &AliasState, key: Option<u64>) -> String {
        let picked =
            alias.targets().pick(key, || alias.draws.fetch_add(1, Relaxed)).map(|target| target.name.to_string());
        picked.unwrap_or_else(|| "none".to_owned())
    }

    #[test]
    fn shares_are_smooth_and_those_of_missing_targets_go_to_the_others() {
        let route = route(&[("v1", 60), ("v2", 30), ("v3", 10)]);
        let alias = AliasState::new(&route, None, |_| true);
        let mut ten: Vec<String> = (0..10).map(|_| chosen(&alias, None)).collect();
        ten.sort();
        assert_eq!(ten.join(" "), "v1 v1 v1 v1 v1 v1 v2 v2 v2 v3");
        alias.refresh(|called| *called != name("v1"));
        let mut eight: Vec<String> = (0..8).map(|_| chosen(&alias, None)).collect();
        eight.sort();
        assert_eq!(eight.join(" "), "v2 v2 v2 v2 v2 v2 v3 v3");
        alias.refresh(|_| false);
        assert_eq!((chosen(&alias, None), chosen(&alias, Some(7))), ("none".to_owned(), "none".to_owned()));
        assert!(alias.leads_nowhere().to_string().contains("v1, v2, v3"));
    }

    #[test]
    fn a_key_keeps_its_target_while_others_come_and_go() {
        let alias = |targets: &[(&str, u32)]| AliasState::new(&route(targets), None, |_| true);
        let (two, three) = (alias(&[("v1", 50), ("v2", 50)]), alias(&[("v1", 50), ("v2", 50), ("v3", 10)]));
        for user in 0..200_u64 {
            let key = Some(rendezvous::hash(&user.to_be_bytes()));
            let before = chosen(&two, key);
            assert_eq!(before, chosen(&two, key), "always the same");
            let after = chosen(&three, key);
            assert!(after == before || after == "v3", "{before} to {after}");
        }
    }

    #[test]
    fn counters_outlive_a_change_of_weights() {
        let first = AliasState::new(&route(&[("v1", 1)]), None, |_| true);
        first.targets().list[0].counters.record(Outcome::Ok);
        let second = AliasState::new(&route(&[("v2", 1), ("v1", 9)]), Some(&first), |_| true);
        assert_eq!(second.targets().list[1].counters.counts(), [1, 0, 0]);
    }
}
