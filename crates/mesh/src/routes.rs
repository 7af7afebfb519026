//! Every deployment and alias by name, as the controller told it. Read without a lock by every request; written by one
//! task, and by the first request for a cold deployment, which makes its state.

pub(crate) mod alias;
mod alias_index;
mod entry;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use arc_swap::ArcSwap;
use berth_spec::{DeploymentName, NameKey, RevisionId, Route, RouteChange, WorkerId, routes::Readiness};
use entry::{ColdRoute, RouteEntry};
use papaya::{Compute, HashMap, Operation};

use crate::{
    calls::Calls,
    deployment::DeploymentState,
    local::ReplicaChange,
    resolved::{Resolved, Resolver, Terms},
    routes::alias::AliasState,
    routes::alias_index::AliasIndex,
};

/// All that this gateway was told to route to: deployments, aliases and paths. Requests read it without a lock.
pub(crate) struct Routes {
    entries: HashMap<DeploymentName, RouteEntry>,
    /// Deployments that answer at a path of their own, by that path: those of one path in the order of their names. Most of
    /// 100,000 have none.
    endpoints: HashMap<Box<str>, Arc<[Arc<DeploymentState>]>>,
    /// Names that lead to deployments. None of them is the name of one.
    aliases: HashMap<DeploymentName, Arc<AliasState>>,
    /// Aliases whose requests keep together by a field of the body, and by the client's address.
    sticky_fields: AtomicUsize,
    sticky_clients: AtomicUsize,
    readiness: ArcSwap<Readiness>,
    /// Somebody has said which deployments there are.
    told: AtomicBool,
}

impl Routes {
    pub(crate) fn new() -> Self {
        Self {
            entries: HashMap::new(),
            endpoints: HashMap::new(),
            aliases: HashMap::new(),
            sticky_fields: AtomicUsize::new(0),
            sticky_clients: AtomicUsize::new(0),
            readiness: ArcSwap::default(),
            told: AtomicBool::new(false),
        }
    }

    /// The deployment of this name. Takes whatever a client sent.
    pub(crate) fn find(&self, name: NameKey<'_>) -> Option<Arc<DeploymentState>> {
        let entries = self.entries.pin();
        let (name, slot) = entries.get_key_value(&name)?;
        if let Some(state) = slot.live() {
            return Some(Arc::clone(state));
        }
        let made = entries.compute(name.clone(), |found| match found {
            Some((_, RouteEntry::Live(_))) | None => Operation::Abort(()),
            Some((name, cold)) => Operation::Insert(RouteEntry::Live(cold.state(name))),
        });
        match made {
            Compute::Updated { new: (_, slot), .. } | Compute::Inserted(_, slot) => slot.live().cloned(),
            // Another request was faster, or the deployment has gone meanwhile.
            _ => entries.get(name)?.live().cloned(),
        }
    }

    /// The deployment of this name for a look: one that nobody has asked for stays so.
    pub(crate) fn peek(&self, name: &DeploymentName) -> Option<Arc<DeploymentState>> {
        self.entries.pin().get(name).map(|slot| slot.state(name))
    }

    /// Has the requests that wait for a deployment look again for a replica.
    pub(crate) fn wake(&self, name: &DeploymentName) {
        let entries = self.entries.pin();
        if let Some(hot) = entries.get(name).and_then(RouteEntry::live).and_then(|state| state.used()) {
            hot.queue.wake();
        }
    }

    /// True if a deployment of this name is declared.
    pub(crate) fn has(&self, name: &DeploymentName) -> bool {
        self.entries.pin().contains_key(name)
    }

    /// The alias of this name. Takes whatever a client sent.
    pub(crate) fn alias(&self, name: NameKey<'_>) -> Option<Arc<AliasState>> {
        self.aliases.pin().get(&name).cloned()
    }

    /// Every alias, in no order.
    pub(crate) fn aliases(&self) -> Vec<Arc<AliasState>> {
        self.aliases.pin().values().cloned().collect()
    }

    /// The aliases of a namespace, in the order of their names.
    pub(crate) fn aliases_in(&self, namespace: &str) -> Vec<Arc<AliasState>> {
        let mut aliases = self.aliases();
        aliases.retain(|alias| alias.name.namespace() == namespace);
        aliases.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        aliases
    }

    /// An alias asks for a field of the bodies of its requests.
    pub(crate) fn any_sticky_field(&self) -> bool {
        self.sticky_fields.load(Relaxed) > 0
    }

    /// An alias asks for the addresses of clients.
    pub(crate) fn any_sticky_client(&self) -> bool {
        self.sticky_clients.load(Relaxed) > 0
    }

    /// The deployments that answer at a path of their own, in the order of their names.
    pub(crate) fn at(&self, path: &str) -> Option<Arc<[Arc<DeploymentState>]>> {
        self.endpoints.pin().get(path).cloned()
    }

    /// The paths at which deployments answer, if there are no more than `most`.
    pub(crate) fn paths(&self, most: usize) -> Option<Vec<Box<str>>> {
        let endpoints = self.endpoints.pin();
        if endpoints.len() > most {
            return None;
        }
        let mut paths: Vec<Box<str>> = endpoints.keys().cloned().collect();
        paths.sort_unstable();
        Some(paths)
    }

    /// A deployment answers at another path than before.
    fn readdress(&self, entry: &Arc<DeploymentState>, before: Option<&str>, after: Option<&str>) {
        if before == after {
            return; // nearly always
        }
        let endpoints = self.endpoints.pin();
        let others = |path: &str| {
            let there = endpoints.get(path).map(|there| there.to_vec()).unwrap_or_default();
            there.into_iter().filter(|other| other.name != entry.name).collect::<Vec<_>>()
        };
        if let Some(path) = before {
            match others(path) {
                left if left.is_empty() => endpoints.remove(path).map(drop),
                left => endpoints.insert(path.into(), left.into()).map(drop),
            };
        }
        if let Some(path) = after {
            let mut there = others(path);
            there.push(Arc::clone(entry));
            there.sort_unstable_by(|a, b| a.name.cmp(&b.name));
            endpoints.insert(path.into(), there.into());
        }
    }

    /// Deployments of a namespace, in the order of their names.
    pub(crate) fn all_in(&self, namespace: &str) -> Vec<Arc<DeploymentState>> {
        let entries = self.entries.pin();
        let inside = entries.iter().filter(|(name, _)| name.namespace() == namespace);
        let mut entries: Vec<_> = inside.map(|(name, slot)| slot.state(name)).collect();
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        entries
    }

    /// Calls `each` for every deployment, in no order, without copying the list.
    pub(crate) fn each(&self, mut each: impl FnMut(&DeploymentState)) {
        self.entries.pin().iter().for_each(|(name, slot)| each(&slot.state(name)));
    }

    /// Calls `each` for every deployment that somebody has asked for, in no order.
    pub(crate) fn each_live(&self, mut each: impl FnMut(&Arc<DeploymentState>)) {
        self.entries.pin().values().filter_map(RouteEntry::live).for_each(&mut each);
    }

    /// Nobody has said yet which deployments there are: no controller that has planned, and no routes that were kept.
    pub(crate) fn never_told(&self) -> bool {
        !self.told.load(Relaxed)
    }

    pub(crate) fn readiness(&self) -> Arc<Readiness> {
        self.readiness.load_full()
    }
}

/// Puts route changes in force. There is one per gateway, so that changes come in order.
pub(crate) struct Applier {
    routes: Arc<Routes>,
    resolver: Resolver,
    seq: Option<u64>,
    /// Terms in use lately: deployments with the same ones share them.
    terms: Vec<Arc<Terms>>,
    aliases: AliasIndex,
    /// Counts of calls, which go with deployments and aliases; `None`: they are not wanted.
    calls: Option<Arc<Calls>>,
}

/// The number of different terms that are kept for sharing: fleets use few.
const MAX_SHARED_TERMS: usize = 16;

/// The table, pinned.
type HashMapRef<'a> =
    papaya::HashMapRef<'a, DeploymentName, RouteEntry, std::collections::hash_map::RandomState, papaya::LocalGuard<'a>>;

/// Changes between the state that is in force and the one that a change builds on never came.
#[derive(Debug)]
pub(crate) struct MissingChanges {
    pub(crate) have: Option<u64>,
    pub(crate) base: Option<u64>,
}

impl Applier {
    pub(crate) fn new(routes: Arc<Routes>, resolver: Resolver) -> Self {
        Self { routes, resolver, seq: None, terms: Vec::new(), aliases: AliasIndex::default(), calls: None }
    }

    /// The same applier, which also has `calls` forget deployments and aliases that go.
    pub(crate) fn counting(self, calls: Option<Arc<Calls>>) -> Self {
        Self { calls, ..self }
    }

    /// Name of this node, whose replicas are asked in this process.
    pub(crate) fn me(&self) -> &WorkerId {
        &self.resolver.me
    }

    /// Puts routes in force that were kept: the controller's first word replaces them, and builds on nothing.
    pub(crate) fn restore(&mut self, kept: RouteChange) {
        if let Err(missing) = self.apply(RouteChange { base: None, ..kept }) {
            tracing::error!(?missing, "a complete route change needed an earlier one");
        }
        self.seq = None;
    }

    /// Applies one change: only what it names is touched, unless it is the whole. One that builds on another state than
    /// this changes nothing.
    pub(crate) fn apply(&mut self, change: RouteChange) -> Result<(), MissingChanges> {
        if change.base.is_some() && change.base != self.seq {
            return Err(MissingChanges { have: self.seq, base: change.base });
        }
        self.seq = Some(change.seq);
        let routes = Arc::clone(&self.routes);
        let entries = routes.entries.pin();
        if change.base.is_none() {
            let named: std::collections::HashSet<&DeploymentName> = change.set.iter().map(|r| &r.deployment).collect();
            let gone: Vec<_> = entries.keys().filter(|name| !named.contains(name)).cloned().collect();
            gone.iter().for_each(|name| self.forget(name));
            let named: std::collections::HashSet<&DeploymentName> = change.aliases.iter().map(|a| &a.name).collect();
            let gone: Vec<_> = routes.aliases().into_iter().filter(|alias| !named.contains(&alias.name)).collect();
            gone.iter().for_each(|alias| self.forget_alias(&alias.name));
        }
        for name in &change.unset {
            self.forget(name);
            self.forget_alias(name);
        }
        // Names that were those of deployments before.
        change.aliases.iter().for_each(|alias| self.forget(&alias.name));
        for route in &change.set {
            if !entries.contains_key(&route.deployment) {
                self.forget_alias(&route.deployment);
                self.aliases.came_or_went(&route.deployment);
            }
            self.put(&entries, route);
        }
        change.aliases.iter().for_each(|alias| self.uncount(&alias.name, &alias.targets));
        self.aliases.set(&routes, &change.aliases);
        if let Some(remotes) = self.resolver.remotes.as_ref().filter(|_| change.base.is_none()) {
            remotes.prune();
        }
        // A controller that has planned nothing and names nothing has just begun: it knows no more than this gateway.
        if change.readiness.planned || !change.set.is_empty() || !change.aliases.is_empty() {
            routes.told.store(true, Relaxed);
        }
        self.routes.readiness.store(Arc::new(change.readiness));
        self.resolver.replicas.routes_changed();
        Ok(())
    }

    /// Puts one route in force.
    fn put(&mut self, entries: &HashMapRef<'_>, route: &Route) {
        let terms = self.share(Terms::of(route));
        if let Some(cold) = ColdRoute::of(route, &terms) {
            let put = entries.compute(route.deployment.clone(), |found| match found {
                Some((_, RouteEntry::Live(_))) => Operation::Abort(()),
                _ => Operation::Insert(RouteEntry::Cold(cold.clone())),
            });
            if !matches!(put, Compute::Aborted(())) {
                return;
            }
        }
        let entry = self.routes.find(route.deployment.key());
        let before = entry.as_ref().map(|entry| entry.route());
        let resolved = Arc::new(Resolved::new(route, terms, &self.resolver, before.as_ref().map(|route| &***route)));
        let was_at = before.as_ref().and_then(|route| route.terms.endpoint.clone());
        drop(before);
        let entry = match entry {
            Some(entry) => {
                entry.set_route(resolved);
                entry
            }
            None => {
                let entry = Arc::new(DeploymentState::new(route.deployment.clone(), resolved));
                entries.insert(route.deployment.clone(), RouteEntry::Live(Arc::clone(&entry)));
                entry
            }
        };
        self.routes.readdress(&entry, was_at.as_deref(), route.endpoint.as_deref());
    }

    /// Looks again for the replicas of these deployments, and wakes who waits: one may have come back under a route
    /// that never changed.
    pub(crate) fn refresh(&self, entries: &[Arc<DeploymentState>]) {
        for entry in entries {
            let refreshed = entry.route().refreshed(&self.resolver.replicas);
            if let Some(route) = refreshed {
                entry.set_route(Arc::new(route));
            }
        }
    }

    /// Goes by what a worker says of itself before the controller's route does, and wakes who waits for it.
    pub(crate) fn hint(&self, worker: &WorkerId, revision: &RevisionId, change: ReplicaChange) {
        let Some(remotes) = self.resolver.remotes.as_ref().filter(|_| *worker != self.resolver.me) else { return };
        let Some(entry) = self.routes.find(revision.deployment().key()) else { return };
        let hinted = entry.route().hinted(revision, worker, change, remotes);
        if let Some(route) = hinted {
            entry.set_route(Arc::new(route));
        }
    }

    fn forget(&mut self, name: &DeploymentName) {
        let entries = self.routes.entries.pin();
        let removed = entries.remove(name);
        if removed.is_some() {
            self.aliases.came_or_went(name);
        }
        if let Some(entry) = removed.and_then(RouteEntry::live) {
            let was_at = entry.route().terms.endpoint.clone();
            self.routes.readdress(entry, was_at.as_deref(), None);
            let gone = entry.route().gone();
            entry.set_route(Arc::new(gone));
        }
        if let Some(calls) = &self.calls {
            calls.forget(name);
        }
    }

    fn forget_alias(&mut self, name: &DeploymentName) {
        self.uncount(name, &[]);
        let routes = Arc::clone(&self.routes);
        self.aliases.unset(&routes, name);
    }

    /// Forgets the counts of calls by an alias to all deployments but these.
    fn uncount(&self, alias: &DeploymentName, kept: &[(DeploymentName, u32)]) {
        let Some(calls) = &self.calls else { return };
        let Some(before) = self.routes.alias(alias.key()) else { return };
        let is_kept = |name: &DeploymentName| kept.iter().any(|(target, _)| target == name);
        let targets = before.targets();
        let gone = targets.list.iter().filter(|target| !is_kept(&target.name));
        gone.for_each(|target| calls.forget_alias(&target.name, alias));
    }

    fn share(&mut self, terms: Terms) -> Arc<Terms> {
        if let Some(shared) = self.terms.iter().rev().find(|known| ***known == terms) {
            return Arc::clone(shared);
        }
        if self.terms.len() == MAX_SHARED_TERMS {
            self.terms.remove(0);
        }
        let terms = Arc::new(terms);
        self.terms.push(Arc::clone(&terms));
        terms
    }
}
