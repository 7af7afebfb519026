//! Reading the store again after the watch of it ended: what differs is told to the brain, and watched from there.
//!
//! Only what differs is kept: of what is as it was, not more than a page is held at a time. It is read beside the loop,
//! which goes on answering. Meanwhile nothing else tells the brain of declarations: what it was asked to be compared with
//! is what it knows at the end.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use berth_spec::{Cordon, DeploymentName, Time, WorkerId, WorkerTerms, deployment::Sharing};
use futures::{FutureExt, future::BoxFuture};

use super::{
    Driver,
    persist::{PlanKey, each, plan_rev, unreadable_event},
};
use crate::{
    controller::{AliasChange, Controller, Declared, Event},
    store::{
        Rev, Store, StoreError, Watch,
        aliases::{self, StoredAlias},
        layout::{self, StoredDeployment},
        terms,
    },
};

/// Pending full read of the store.
pub(super) type Relist = BoxFuture<'static, Result<Relisted, StoreError>>;

/// Result of a full read.
pub(super) struct Relisted {
    /// Differences from the brain's state.
    differences: Vec<Event>,
    /// Values that could not be read.
    unreadable: Vec<berth_spec::Event>,
    key: PlanKey,
    watch: Watch,
}

/// Starts a full read.
pub(super) fn start(store: &Arc<dyn Store>, brain: &Controller, now: Time) -> Relist {
    let known = BrainState {
        revs: brain.declared(None, None).map(|(name, rev)| (name.clone(), rev)).collect(),
        aliases: brain.declared_aliases(None, None).map(|(name, rev)| (name.clone(), rev)).collect(),
        cordons: brain.cordons().clone(),
        terms: brain.world().all_terms().clone(),
    };
    let store = Arc::clone(store);
    async move { read(&*store, known, now).await }.boxed()
}

impl Driver {
    /// Applies the result of a full read.
    pub(super) fn relisted(&mut self, relisted: Result<Relisted, StoreError>) {
        match relisted {
            Ok(Relisted { differences, unreadable, key, watch }) => {
                self.watch = Some(watch);
                if self.commit.is_none() {
                    self.key = key;
                }
                unreadable.into_iter().for_each(|event| self.events.push(event));
                differences.into_iter().for_each(|event| self.feed(event));
            }
            Err(error) => tracing::error!(event = "store_unread", %error, "the store cannot be read: trying again"),
        }
    }
}

/// State that the brain knows.
struct BrainState {
    revs: BTreeMap<DeploymentName, Rev>,
    aliases: BTreeMap<DeploymentName, Rev>,
    cordons: BTreeMap<WorkerId, Cordon>,
    terms: BTreeMap<WorkerId, Arc<WorkerTerms>>,
}

async fn read(store: &dyn Store, mut known: BrainState, now: Time) -> Result<Relisted, StoreError> {
    // The rev to watch from comes first: what changes while the rest is read is told again.
    let rev = store.rev().await?;
    let (mut changes, mut unreadable, mut sharing) = (Vec::new(), Vec::new(), Sharing::default());
    each(store, layout::DEPLOYMENTS, |entry| {
        let before = layout::name_in(&entry.key, layout::DEPLOYMENTS).and_then(|name| known.revs.remove(&name));
        if before == Some(entry.modified) {
            return;
        }
        match StoredDeployment::read_deployment(entry) {
            Ok(mut deployment) => {
                if let Some(deployment) = Arc::get_mut(&mut deployment) {
                    sharing.share(deployment);
                }
                changes.push(Declared::Set(deployment));
            }
            Err(error) => unreadable.push(unreadable_event(&error, now)),
        }
    })
    .await?;
    // What was not met is gone.
    changes.extend(known.revs.into_keys().map(Declared::Gone));
    let mut renamed = Vec::new();
    each(store, aliases::ALIASES, |entry| {
        let before = layout::name_in(&entry.key, aliases::ALIASES).and_then(|name| known.aliases.remove(&name));
        if before == Some(entry.modified) {
            return;
        }
        match StoredAlias::read_alias(entry) {
            Ok(alias) => renamed.push(AliasChange::Set { alias, rev: entry.modified }),
            Err(error) => unreadable.push(unreadable_event(&error, now)),
        }
    })
    .await?;
    renamed.extend(known.aliases.into_keys().map(AliasChange::Gone));
    let mut cordons = BTreeMap::new();
    each(store, layout::WORKERS, |entry| match (layout::worker_in(&entry.key), layout::read_cordon(entry)) {
        (Some(worker), Ok(cordon)) => drop(cordons.insert(worker, cordon)),
        (_, Err(error)) => unreadable.push(unreadable_event(&error, now)),
        (None, Ok(_)) => {}
    })
    .await?;
    let mut differences = turned(&known.cordons, &cordons);
    differences.extend(retold(store, known.terms, &mut unreadable, now).await?);
    let key = PlanKey(plan_rev(store).await?);
    let watch = store.watch("/", rev.next()).await?;
    if !renamed.is_empty() {
        differences.push(Event::Aliases(renamed));
    }
    differences.push(Event::Changed { rev, changes });
    Ok(Relisted { differences, unreadable, key, watch })
}

/// Workers of which the registry says something else now, and what becomes of those that it does not name.
async fn retold(
    store: &dyn Store,
    mut known: BTreeMap<WorkerId, Arc<WorkerTerms>>,
    unreadable: &mut Vec<berth_spec::Event>,
    now: Time,
) -> Result<Vec<Event>, StoreError> {
    let mut retold = Vec::new();
    each(store, layout::TERMS, |entry| {
        let Some(worker) = terms::named_in(&entry.key) else { return };
        let before = known.remove(&worker);
        match terms::read_terms(entry) {
            Ok(terms) if before.as_ref() != Some(&terms) => retold.push(Event::Terms { worker, terms: Some(terms) }),
            Ok(_) => {}
            Err(error) => unreadable.push(unreadable_event(&error, now)),
        }
    })
    .await?;
    retold.extend(known.into_keys().map(|worker| Event::Terms { worker, terms: None }));
    match store.get(layout::UNKNOWN_WORKERS).await?.as_ref().map(terms::read_unknown).transpose() {
        Ok(unknown) => retold.push(Event::UnknownWorkers(unknown.unwrap_or_default())),
        Err(error) => unreadable.push(unreadable_event(&error, now)),
    }
    Ok(retold)
}

/// Workers of which people say something else now.
fn turned(before: &BTreeMap<WorkerId, Cordon>, now: &BTreeMap<WorkerId, Cordon>) -> Vec<Event> {
    let said =
        |cordons: &BTreeMap<WorkerId, Cordon>, worker: &WorkerId| cordons.get(worker).copied().unwrap_or_default();
    let workers: BTreeSet<&WorkerId> = before.keys().chain(now.keys()).collect();
    let turned = workers.into_iter().filter(|worker| said(before, worker) != said(now, worker));
    turned.map(|worker| Event::Cordon { worker: worker.clone(), cordon: said(now, worker) }).collect()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::store::{Op, Txn, memory::MemoryStore};

    fn worker(id: &str) -> WorkerId {
        WorkerId::new(id).expect("a name")
    }

    async fn commit(store: &MemoryStore, op: Op) -> Rev {
        let txn = Txn { compare: Vec::new(), ops: vec![op] };
        match store.commit(txn).await.expect("stored") {
            crate::store::Outcome::Committed(rev) => rev,
            crate::store::Outcome::Conflict => panic!("nothing was compared"),
        }
    }

    #[tokio::test]
    async fn only_what_differs_is_told() {
        let store = MemoryStore::default();
        let name = |name: &str| DeploymentName::new(name).expect("a name");
        let put = |key: String, value: &'static [u8]| Op::Put { key, value: Bytes::from_static(value) };
        let same = commit(&store, put(layout::deployment_key(&name("same")), b"not read at all")).await;
        commit(&store, put(layout::deployment_key(&name("broken")), b"no JSON")).await;
        for (id, cordon) in [("both", Cordon::Draining), ("now", Cordon::Cordoned)] {
            let (key, value) = (layout::worker_key(&worker(id)), layout::cordon_bytes(cordon));
            commit(&store, Op::Put { key, value }).await;
        }
        let known = BrainState {
            revs: [(name("same"), same), (name("gone"), Rev(1))].into(),
            aliases: BTreeMap::new(),
            cordons: [(worker("both"), Cordon::Draining), (worker("before"), Cordon::Cordoned)].into(),
            terms: BTreeMap::new(),
        };
        let relisted = read(&store, known, Time(1)).await.expect("read");
        let mut told = Vec::new();
        for event in relisted.differences {
            match event {
                Event::Cordon { worker, cordon } => told.push(format!("{worker} {}", cordon.as_str())),
                Event::Changed { changes, .. } => {
                    told.extend(changes.iter().map(|change| match change {
                        Declared::Set(deployment) => format!("set {}", deployment.name),
                        Declared::Gone(name) => format!("gone {name}"),
                    }));
                }
                Event::UnknownWorkers(unknown) => assert_eq!(unknown, berth_spec::UnknownWorkers::Allow),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(told, ["before open", "now cordoned", "gone gone"]);
        assert_eq!(relisted.unreadable.len(), 1, "and it is skipped");
    }
}
