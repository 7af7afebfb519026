//! Between the controller and the store: reading all of it, writing plans, and telling changes.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use berth_spec::{
    ByteSize, Cordon, DeploymentName, Digest, Generation, Time, UnknownWorkers, deployment::Sharing, event::Severity,
};
use futures::{FutureExt, future::BoxFuture};

use crate::{
    controller::{self, AliasChange, Declared, Event, Restored},
    events::EventRing,
    store::{
        Change, Commit, Compare, Entry, Op, Outcome, Page, Rev, Store, StoreError, Txn,
        aliases::{self, StoredAlias},
        layout::{self, StoredDeployment},
        terms,
    },
};

/// Records in one transaction: the plan's key and the deployments that are compared leave room below the store's limit.
const BATCH: usize = 60;

/// The rev at which the plan's key was last written: what the next plan compares with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlanKey(pub(super) Rev);

/// The number of store failures in a row; it sets the pause before the next attempt.
#[derive(Debug, Clone, Default)]
pub(super) struct Failing(u32);

impl Failing {
    /// The first pause after a failure: short enough that plans go on soon, long enough to spare the store and the log.
    const FIRST_PAUSE: Duration = Duration::from_millis(250);

    /// A full disk that was cleared is noticed within this.
    const MAX_PAUSE: Duration = Duration::from_secs(5);

    /// Counts a failure; a race that was lost is none.
    pub(super) fn count<T>(&mut self, result: &Result<T, StoreError>) {
        self.0 = if result.is_err() { self.0.saturating_add(1) } else { 0 };
    }

    fn pause(&self) -> Option<Duration> {
        match self.0 {
            0 => None,
            failures => Some((Self::FIRST_PAUSE * 2_u32.saturating_pow(failures.min(10) - 1)).min(Self::MAX_PAUSE)),
        }
    }
}

/// The outcome of storing a plan.
pub(super) struct Stored {
    pub(super) key: PlanKey,
    /// `true` if all of it was stored.
    pub(super) result: Result<bool, StoreError>,
    pub(super) took: Duration,
}

/// Reads everything, a page at a time.
pub(super) async fn restore(
    store: &dyn Store,
    events: &mut EventRing,
    now: Time,
) -> Result<(Restored, PlanKey), StoreError> {
    // The first rev is the one to watch from: what changes while the rest is read is told again.
    let mut restored = Restored { rev: store.rev().await?, ..Restored::default() };
    let mut sharing = Sharing::default();
    each(store, layout::DEPLOYMENTS, |entry| match StoredDeployment::read_deployment(entry) {
        Ok(mut deployment) => {
            // Before they are all there: whole ones are several times as large.
            if let Some(deployment) = Arc::get_mut(&mut deployment) {
                sharing.share(deployment);
            }
            restored.deployments.push(deployment);
        }
        Err(error) => unreadable(&error, events, now),
    })
    .await?;
    each(store, aliases::ALIASES, |entry| match StoredAlias::read_alias(entry) {
        Ok(alias) => restored.aliases.push((alias, entry.modified)),
        Err(error) => unreadable(&error, events, now),
    })
    .await?;
    each(store, layout::RECORDS, |entry| {
        match (layout::name_in(&entry.key, layout::RECORDS), layout::read_record(entry)) {
            (Some(name), Ok(record)) => restored.records.push((name, record)),
            (_, Err(error)) => unreadable(&error, events, now),
            (None, Ok(_)) => {}
        }
    })
    .await?;
    each(store, layout::MEASURED, |entry| match layout::read_measured(entry) {
        Ok(measured) => restored.measured.push(measured),
        Err(error) => unreadable(&error, events, now),
    })
    .await?;
    each(store, layout::WORKERS, |entry| match (layout::worker_in(&entry.key), layout::read_cordon(entry)) {
        (Some(worker), Ok(cordon)) => drop(restored.cordons.insert(worker, cordon)),
        (_, Err(error)) => unreadable(&error, events, now),
        (None, Ok(_)) => {}
    })
    .await?;
    each(store, layout::TERMS, |entry| match (terms::named_in(&entry.key), terms::read_terms(entry)) {
        (Some(worker), Ok(terms)) => drop(restored.terms.insert(worker, terms)),
        (_, Err(error)) => unreadable(&error, events, now),
        (None, Ok(_)) => {}
    })
    .await?;
    match store.get(layout::UNKNOWN_WORKERS).await?.as_ref().map(terms::read_unknown) {
        Some(Ok(unknown)) => restored.unknown = unknown,
        Some(Err(error)) => unreadable(&error, events, now),
        None => {}
    }
    let plan = store.get(layout::PLAN).await?;
    restored.generation = match plan.as_ref().map(layout::read_plan) {
        Some(Ok(generation)) => generation,
        Some(Err(error)) => {
            unreadable(&error, events, now);
            Generation::default()
        }
        None => Generation::default(),
    };
    let key = PlanKey(plan.map_or(Rev::NONE, |entry| entry.modified));
    Ok((restored, key))
}

/// Reads every entry below `prefix`; no more than a page is held at once.
pub(super) async fn each(store: &dyn Store, prefix: &str, read: impl FnMut(&Entry)) -> Result<(), StoreError> {
    each_at(store, prefix, Rev::NONE, read).await
}

/// The same as of a rev, where the store still knows it.
pub(super) async fn each_at(
    store: &dyn Store,
    prefix: &str,
    at: Rev,
    mut read: impl FnMut(&Entry),
) -> Result<(), StoreError> {
    let mut page = Page { at, ..Page::default() };
    loop {
        let listing = match store.list(prefix, page.clone()).await {
            // The moment that was being read is forgotten: the rest as of now, since the watch tells what changed between.
            Err(StoreError::Compacted { .. }) if page.at != Rev::NONE => {
                page.at = Rev::NONE;
                continue;
            }
            listing => listing?,
        };
        listing.entries.iter().for_each(&mut read);
        match listing.entries.last().filter(|_| listing.more) {
            Some(last) => page = Page { after: Some(last.key.clone()), limit: 0, at: listing.at },
            None => return Ok(()),
        }
    }
}

pub(super) async fn plan_rev(store: &dyn Store) -> Result<Rev, StoreError> {
    Ok(store.get(layout::PLAN).await?.map_or(Rev::NONE, |entry| entry.modified))
}

/// One value that cannot be read does not keep the rest from being served.
fn unreadable(error: &StoreError, events: &mut EventRing, now: Time) {
    tracing::error!(event = "stored_value_skipped", %error, "a stored value is skipped");
    events.push(unreadable_event(error, now));
}

pub(super) fn unreadable_event(error: &StoreError, now: Time) -> berth_spec::Event {
    berth_spec::Event {
        at: now,
        severity: Severity::Warning,
        reason: "StoredValueUnreadable",
        message: error.to_string(),
        deployment: None,
        worker: None,
        function: None,
    }
}

/// Converts one commit of the store to events for the controller.
pub(super) fn events_of(commit: &Commit, events: &mut EventRing, now: Time) -> Vec<Event> {
    let (mut changes, mut renamed, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for change in &commit.changes {
        let key = change.key();
        if let Some(name) = layout::name_in(key, layout::DEPLOYMENTS) {
            match declared(name, change) {
                Ok(declared) => changes.push(declared),
                Err(error) => unreadable(&error, events, now),
            }
        } else if let Some(name) = layout::name_in(key, aliases::ALIASES) {
            match alias_change(name, change) {
                Ok(change) => renamed.push(change),
                Err(error) => unreadable(&error, events, now),
            }
        } else if let Some(worker) = layout::worker_in(key) {
            let cordon = match change {
                Change::Put(entry) => layout::read_cordon(entry),
                Change::Deleted { .. } => Ok(Cordon::Open),
            };
            match cordon {
                Ok(cordon) => others.push(Event::Cordon { worker, cordon }),
                Err(error) => unreadable(&error, events, now),
            }
        } else if let Some(told) = of_terms(key, change) {
            match told {
                Ok(event) => others.push(event),
                Err(error) => unreadable(&error, events, now),
            }
        }
    }
    if !renamed.is_empty() {
        others.push(Event::Aliases(renamed));
    }
    // Also a commit that changes no deployment moves on what has been seen.
    others.push(Event::Changed { rev: commit.rev, changes });
    others
}

/// Converts a change of the registry's settings of workers to an event; `None` if the key is another.
fn of_terms(key: &str, change: &Change) -> Option<Result<Event, StoreError>> {
    let entry = match change {
        Change::Put(entry) => Some(entry),
        Change::Deleted { .. } => None,
    };
    if key == layout::UNKNOWN_WORKERS {
        return Some(entry.map_or(Ok(UnknownWorkers::default()), terms::read_unknown).map(Event::UnknownWorkers));
    }
    let worker = terms::named_in(key)?;
    Some(entry.map(terms::read_terms).transpose().map(|terms| Event::Terms { worker, terms }))
}

fn declared(name: DeploymentName, change: &Change) -> Result<Declared, StoreError> {
    match change {
        Change::Deleted { .. } => Ok(Declared::Gone(name)),
        Change::Put(entry) => StoredDeployment::read_deployment(entry).map(Declared::Set),
    }
}

fn alias_change(name: DeploymentName, change: &Change) -> Result<AliasChange, StoreError> {
    match change {
        Change::Deleted { .. } => Ok(AliasChange::Gone(name)),
        Change::Put(entry) => Ok(AliasChange::Set { alias: StoredAlias::read_alias(entry)?, rev: entry.modified }),
    }
}

/// Stores a plan: each transaction compares the plan's key, so that a second controller would be noticed, and each
/// deployment that it forgets, so that one that was declared again stays.
pub(super) fn store_plan(
    store: Arc<dyn Store>,
    commit: controller::PlanCommit,
    key: PlanKey,
    failing: Failing,
) -> BoxFuture<'static, Stored> {
    async move {
        // Even a sleep of no time takes until the timer's next millisecond.
        if let Some(pause) = failing.pause() {
            tokio::time::sleep(pause).await;
        }
        let began = Instant::now();
        let mut key = key;
        let result = write_plan(&*store, &commit, &mut key).await;
        if !matches!(result, Ok(true))
            && let Ok(rev) = plan_rev(&*store).await
        {
            key = PlanKey(rev);
        }
        Stored { key, result, took: began.elapsed() }
    }
    .boxed()
}

async fn write_plan(store: &dyn Store, commit: &controller::PlanCommit, key: &mut PlanKey) -> Result<bool, StoreError> {
    let records = commit.records.iter().map(|(name, record)| {
        let key = layout::record_key(name);
        let op = match record {
            Some(record) => Op::Put { key, value: layout::record_bytes(record) },
            None => Op::Delete { key },
        };
        (None, op)
    });
    let forgets = commit.forget.iter().map(|(name, rev)| {
        let key = layout::deployment_key(name);
        (Some(Compare::Modified { key: key.clone(), rev: *rev }), Op::Delete { key })
    });
    let pasts = commit.forget.iter().map(|(name, _)| (None, Op::Delete { key: layout::history_key(name) }));
    // What is forgotten goes first: if it was declared again, nothing of the plan has been stored yet.
    let writes: Vec<(Option<Compare>, Op)> = forgets.chain(pasts).chain(records).collect();
    for (nth, batch) in batches(&writes).into_iter().enumerate() {
        // A commit may be done without a wait; the controller hears others between two of them.
        if nth > 0 {
            tokio::task::yield_now().await;
        }
        let mut txn = Txn {
            compare: vec![Compare::Modified { key: layout::PLAN.to_owned(), rev: key.0 }],
            ops: vec![Op::Put { key: layout::PLAN.to_owned(), value: layout::plan_bytes(commit.generation) }],
        };
        txn.compare.extend(batch.iter().filter_map(|(compare, _)| compare.clone()));
        txn.ops.extend(batch.iter().map(|(_, op)| op.clone()));
        let stored = if commit.reconstructible { store.commit_relaxed(txn).await? } else { store.commit(txn).await? };
        match stored {
            Outcome::Committed(rev) => *key = PlanKey(rev),
            Outcome::Conflict => return Ok(false),
        }
    }
    Ok(true)
}

/// Cuts writes so that each part is within the store's limits. One record is a few KiB: [`BATCH`] of them are far below
/// the limit on bytes unless records grow a lot, which is measured here.
fn batches(writes: &[(Option<Compare>, Op)]) -> Vec<&[(Option<Compare>, Op)]> {
    let mut parts = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (index, (_, op)) in writes.iter().enumerate() {
        let size = op.key().len() + if let Op::Put { value, .. } = op { value.len() } else { 0 };
        if index > start && (index - start >= BATCH || bytes + size > crate::store::MAX_BYTES / 2) {
            parts.push(&writes[start..index]);
            (start, bytes) = (index, 0);
        }
        bytes += size;
    }
    if start < writes.len() {
        parts.push(&writes[start..]);
    }
    parts
}

/// Writes that nobody waits for: measured sizes. The latest of each artifact wins.
pub(super) struct BackgroundWrites {
    store: Arc<dyn Store>,
    waiting: BTreeMap<Digest, ByteSize>,
    running: Option<BoxFuture<'static, ()>>,
}

impl BackgroundWrites {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, waiting: BTreeMap::new(), running: None }
    }

    pub(super) fn measured(&mut self, digest: Digest, size: ByteSize) {
        self.waiting.insert(digest, size);
    }

    /// Goes on with them; ready when a write is done, never while there is nothing to do.
    pub(super) async fn run(&mut self) {
        if self.running.is_none() {
            let mut ops = Vec::new();
            while ops.len() < BATCH
                && let Some((digest, size)) = self.waiting.pop_first()
            {
                ops.push(Op::Put { key: layout::measured_key(&digest), value: layout::measured_bytes(size) });
            }
            if ops.is_empty() {
                return std::future::pending().await;
            }
            let store = Arc::clone(&self.store);
            self.running = Some(
                async move {
                    if let Err(error) = store.commit_relaxed(Txn { compare: Vec::new(), ops }).await {
                        tracing::warn!(event = "measured_unstored", %error, "measured sizes are not stored: they will be measured again");
                    }
                }
                .boxed(),
            );
        }
        if let Some(running) = &mut self.running {
            running.await;
        }
        self.running = None;
    }
}
