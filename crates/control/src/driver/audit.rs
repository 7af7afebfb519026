//! A second look at what the watch of the store has told, in a cluster: now and then all is read again, and compared with
//! what the brain knows.
//!
//! ```text
//! Waiting ──AUDIT_EVERY, nothing else under way──▶ Reading ──as it is known──▶ Waiting
//!                                                    └──something was never told──▶ counted, read again as after a break
//! ```
//! A watch is to tell everything, and etcd 3.4 has had faults by which it does not: a deployment would be missing until the
//! next leader. It is read as of the moment up to which the watch has told, so that what is on its way is no difference. The
//! repair is [`relist`](super::relist)'s: this only finds.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use berth_spec::{Cordon, DeploymentName, UnknownWorkers, WorkerId, WorkerTerms};
use futures::{FutureExt, future::BoxFuture};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::{Driver, persist::each_at, relist};
use crate::{
    controller::Controller,
    store::{Rev, Store, StoreError, aliases, layout, terms},
};

/// Interval between audits. Reading 100,000 deployments costs little at this rate.
pub(crate) const AUDIT_EVERY: Duration = Duration::from_secs(600);

/// Keys named in a warning; the rest are counted.
const MAX_NAMED_KEYS: usize = 10;

/// Time of the next audit, and the running one.
pub(super) struct Audit {
    every: Interval,
    reading: Option<BoxFuture<'static, Result<MissedChanges, StoreError>>>,
}

/// The differences between the store and the brain, which a watch should have told.
#[derive(Debug, Default, PartialEq)]
pub(super) struct MissedChanges {
    /// Deployments, with the rev by which the brain went.
    deployments: BTreeMap<DeploymentName, Option<Rev>>,
    /// Aliases, with the rev by which the brain went.
    aliases: BTreeMap<DeploymentName, Option<Rev>>,
    /// Workers, with what the brain took people to say of them.
    workers: BTreeMap<WorkerId, Cordon>,
    /// Workers, with what the brain took the registry to say of them.
    terms: BTreeMap<WorkerId, Option<Arc<WorkerTerms>>>,
    /// Treatment of unlisted workers, if the brain has another one.
    unknown: Option<UnknownWorkers>,
}

/// Reason why it woke up.
pub(super) enum AuditEvent {
    Due,
    Read(Result<MissedChanges, StoreError>),
}

impl Audit {
    pub(super) fn new() -> Self {
        let mut every = interval_at(Instant::now() + AUDIT_EVERY, AUDIT_EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { every, reading: None }
    }

    pub(super) async fn next(&mut self) -> AuditEvent {
        match &mut self.reading {
            Some(reading) => {
                let found = reading.await;
                self.reading = None;
                AuditEvent::Read(found)
            }
            None => {
                self.every.tick().await;
                AuditEvent::Due
            }
        }
    }
}

impl Driver {
    pub(super) fn audit(&mut self, woke: AuditEvent) {
        // After a break of the watch all is read anyway, and in the midst of a commit changes wait in it.
        let steady = self.watch.is_some() && self.relist.is_none() && !self.brain.committing();
        match woke {
            AuditEvent::Due if steady => {
                let (known, seen) = (BrainState::of(&self.brain), *self.outputs.seen.borrow());
                let store = Arc::clone(&self.store);
                if let Some(audit) = &mut self.audit {
                    audit.reading = Some(async move { read(&*store, known, seen).await }.boxed());
                }
            }
            AuditEvent::Read(Ok(found)) if steady => self.repair(found),
            AuditEvent::Read(Err(error)) => {
                tracing::info!(event = "store_unaudited", %error, "the store was not compared with what is known of it")
            }
            AuditEvent::Due | AuditEvent::Read(Ok(_)) => {}
        }
    }

    fn repair(&mut self, mut found: MissedChanges) {
        // What was told meanwhile is known.
        found.deployments.retain(|name, rev| self.brain.rev_of(name) == *rev);
        found.aliases.retain(|name, rev| self.brain.rev_of_alias(name) == *rev);
        found.workers.retain(|worker, cordon| said(self.brain.cordons(), worker) == *cordon);
        let world = self.brain.world();
        found.terms.retain(|worker, terms| world.terms(worker) == terms.as_ref());
        found.unknown = found.unknown.filter(|unknown| world.unknown_workers() == *unknown);
        let keys: Vec<String> = found.keys().collect();
        if keys.is_empty() {
            return;
        }
        self.metrics.never_told(keys.len());
        tracing::warn!(
            event = "store_watch_incomplete",
            keys = keys.len(),
            first = keys[..keys.len().min(MAX_NAMED_KEYS)].join(", "),
            "the store did not tell of changes: reading it again; if this comes back, upgrade etcd"
        );
        self.watch = None;
        self.relist = Some(relist::start(&self.store, &self.brain, (self.clock)()));
    }
}

impl MissedChanges {
    fn keys(&self) -> impl Iterator<Item = String> {
        let deployments = self.deployments.keys().map(layout::deployment_key);
        let aliases = self.aliases.keys().map(aliases::alias_key);
        let unknown = self.unknown.map(|_| layout::UNKNOWN_WORKERS.to_owned());
        let workers = self.workers.keys().map(layout::worker_key).chain(self.terms.keys().map(terms::terms_key));
        deployments.chain(aliases).chain(workers).chain(unknown)
    }
}

/// State that the brain knows.
struct BrainState {
    revs: BTreeMap<DeploymentName, Rev>,
    aliases: BTreeMap<DeploymentName, Rev>,
    cordons: BTreeMap<WorkerId, Cordon>,
    terms: BTreeMap<WorkerId, Arc<WorkerTerms>>,
    unknown: UnknownWorkers,
}

impl BrainState {
    fn of(brain: &Controller) -> Self {
        Self {
            revs: brain.declared(None, None).map(|(name, rev)| (name.clone(), rev)).collect(),
            aliases: brain.declared_aliases(None, None).map(|(name, rev)| (name.clone(), rev)).collect(),
            cordons: brain.cordons().clone(),
            terms: brain.world().all_terms().clone(),
            unknown: brain.world().unknown_workers(),
        }
    }
}

/// Reads the store as of `seen`; where it does not keep the past, as it is, without what is newer.
async fn read(store: &dyn Store, mut known: BrainState, seen: Rev) -> Result<MissedChanges, StoreError> {
    let mut found = MissedChanges::default();
    each_at(store, layout::DEPLOYMENTS, seen, |entry| {
        let Some(name) = layout::name_in(&entry.key, layout::DEPLOYMENTS) else { return };
        let before = known.revs.remove(&name);
        // One that cannot be read is not known, and was told of.
        let readable = || layout::StoredDeployment::read_deployment(entry).is_ok();
        if before != Some(entry.modified) && entry.modified <= seen && readable() {
            found.deployments.insert(name, before);
        }
    })
    .await?;
    found.deployments.extend(known.revs.into_iter().map(|(name, rev)| (name, Some(rev))));
    each_at(store, aliases::ALIASES, seen, |entry| {
        let Some(name) = layout::name_in(&entry.key, aliases::ALIASES) else { return };
        let before = known.aliases.remove(&name);
        let readable = || aliases::StoredAlias::read_alias(entry).is_ok();
        if before != Some(entry.modified) && entry.modified <= seen && readable() {
            found.aliases.insert(name, before);
        }
    })
    .await?;
    found.aliases.extend(known.aliases.into_iter().map(|(name, rev)| (name, Some(rev))));
    let (mut cordons, mut newer) = (BTreeMap::new(), BTreeSet::new());
    each_at(store, layout::WORKERS, seen, |entry| {
        let Some(worker) = layout::worker_in(&entry.key) else { return };
        match layout::read_cordon(entry) {
            Ok(cordon) if entry.modified <= seen => drop(cordons.insert(worker, cordon)),
            Ok(_) | Err(_) => drop(newer.insert(worker)),
        }
    })
    .await?;
    let workers: BTreeSet<&WorkerId> = known.cordons.keys().chain(cordons.keys()).collect();
    let differs =
        |worker: &&WorkerId| !newer.contains(*worker) && said(&known.cordons, worker) != said(&cordons, worker);
    found.workers = workers.into_iter().filter(differs).map(|id| (id.clone(), said(&known.cordons, id))).collect();
    found.terms = terms_never_told(store, known.terms, seen).await?;
    let mut unknown = Some(UnknownWorkers::default());
    each_at(store, layout::UNKNOWN_WORKERS, seen, |entry| {
        unknown = terms::read_unknown(entry).ok().filter(|_| entry.modified <= seen);
    })
    .await?;
    found.unknown = unknown.filter(|unknown| *unknown != known.unknown).map(|_| known.unknown);
    Ok(found)
}

/// Workers of which the registry says something else than is known, with what is known.
async fn terms_never_told(
    store: &dyn Store,
    mut known: BTreeMap<WorkerId, Arc<WorkerTerms>>,
    seen: Rev,
) -> Result<BTreeMap<WorkerId, Option<Arc<WorkerTerms>>>, StoreError> {
    let mut found = BTreeMap::new();
    each_at(store, layout::TERMS, seen, |entry| {
        let Some(worker) = terms::named_in(&entry.key) else { return };
        let before = known.remove(&worker);
        // Those that cannot be read are not known, and were told of.
        let differ = terms::read_terms(entry).is_ok_and(|terms| before.as_ref() != Some(&terms));
        if differ && entry.modified <= seen {
            found.insert(worker, before);
        }
    })
    .await?;
    found.extend(known.into_iter().map(|(worker, terms)| (worker, Some(terms))));
    Ok(found)
}

fn said(cordons: &BTreeMap<WorkerId, Cordon>, worker: &WorkerId) -> Cordon {
    cordons.get(worker).copied().unwrap_or_default()
}
