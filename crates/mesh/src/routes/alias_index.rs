//! Index of the aliases that lead to a deployment: they look their targets up again when it comes or goes.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use berth_spec::{
    DeploymentName,
    routes::{AliasRoute, Stickiness},
};

use super::Routes;
use super::alias::AliasState;

/// The aliases by target. There is one per gateway, beside the one who changes routes.
#[derive(Default)]
pub(super) struct AliasIndex {
    by_target: HashMap<DeploymentName, BTreeSet<DeploymentName>>,
    /// Aliases that have to look again.
    stale: BTreeSet<DeploymentName>,
}

impl AliasIndex {
    /// A deployment was declared or deleted.
    pub(super) fn came_or_went(&mut self, deployment: &DeploymentName) {
        if let Some(aliases) = self.by_target.get(deployment) {
            self.stale.extend(aliases.iter().cloned());
        }
    }

    /// Forgets an alias, if there is one of this name.
    pub(super) fn unset(&mut self, routes: &Routes, name: &DeploymentName) {
        if let Some(alias) = routes.aliases.pin().remove(name) {
            self.unlink(routes, alias);
        }
    }

    /// Takes in new and changed aliases, and lets all that have to look their targets up.
    pub(super) fn set(&mut self, routes: &Routes, changed: &[AliasRoute]) {
        let exists = |name: &DeploymentName| routes.entries.pin().contains_key(name);
        let aliases = routes.aliases.pin();
        for route in changed {
            let before = aliases.get(&route.name).cloned();
            if let Some(before) = &before {
                self.unlink(routes, before);
            }
            for (target, _) in &route.targets {
                self.by_target.entry(target.clone()).or_default().insert(route.name.clone());
            }
            if let Some(counter) = counter(routes, &route.sticky) {
                counter.fetch_add(1, Relaxed);
            }
            aliases.insert(route.name.clone(), Arc::new(AliasState::new(route, before.as_deref(), exists)));
            self.stale.remove(&route.name);
        }
        for alias in std::mem::take(&mut self.stale).iter().filter_map(|name| aliases.get(name)) {
            alias.refresh(exists);
        }
    }

    fn unlink(&mut self, routes: &Routes, alias: &AliasState) {
        let targets = alias.targets();
        if let Some(counter) = counter(routes, &targets.sticky) {
            counter.fetch_sub(1, Relaxed);
        }
        for target in &targets.list {
            if let Some(names) = self.by_target.get_mut(&target.name) {
                names.remove(&alias.name);
                if names.is_empty() {
                    self.by_target.remove(&target.name);
                }
            }
        }
    }
}

/// The number of aliases that ask for the same as this one, where that costs requests something.
fn counter<'a>(routes: &'a Routes, sticky: &Stickiness) -> Option<&'a AtomicUsize> {
    match sticky {
        Stickiness::Field(_) => Some(&routes.sticky_fields),
        Stickiness::Client => Some(&routes.sticky_clients),
        Stickiness::None | Stickiness::Header(_) => None,
    }
}
