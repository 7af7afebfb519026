//! Declaring, deleting and reading aliases: optimistic writes to the store, as for deployments.
//!
//! ```text
//! read alias and deployment of the name → decide (pure) → compare-and-set of both ──▶ wait until requests are routed by it
//! ```
//! An alias and a deployment never have the same name: the write of a new one compares the key of the other. Nor does an alias
//! gain a target that is deleted in that moment because none leads to it (`delete`): both writes compare what the other changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use berth_spec::{Alias, DeploymentName, Generation, Origin, Time, alias::TargetStatus, manifest::ManifestAlias};

use futures::{StreamExt, TryStreamExt, stream};

use super::{
    Applied, ApplyMode, ApplyOutcome, Comparison, DeleteRequest, DriverRequest, Error, Handle, Ownership,
    declare::{ATTEMPTS, differing},
    owner::{check_expected, check_owner},
    queries::{MAX_PAGE, READS},
    view::{DeploymentPage, ListRequest, Scan},
};
use crate::{
    source::without_revision,
    store::{
        Compare, Entry, Op, Outcome, Rev, Txn,
        aliases::{self, StoredAlias},
        layout::{self, StoredDeployment},
    },
};

/// An alias to be declared, and the conditions of that.
#[derive(Debug, Clone)]
pub struct ApplyAlias {
    /// The checked manifest. Its `metadata.resourceVersion`, if any, counts as `expect`.
    pub manifest: ManifestAlias,
    /// Source that declares it, and owns it afterwards.
    pub origin: Origin,
    /// Only if the stored one still has this resource version ([`Rev::NONE`]: only if there is none).
    pub expect: Option<Rev>,
    /// Commit or dry run.
    pub mode: ApplyMode,
    /// The rule for an alias that another source declared.
    pub ownership: Ownership,
    /// Differences to the stored manifest for which it is written; without any it is left alone.
    pub compare: Comparison,
    /// The rule for targets that are not there.
    pub missing: MissingTargets,
}

/// Treatment of targets that an alias gains and that no deployment has the name of, or one that is being deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingTargets {
    /// Warns of those that no deployment has the name of.
    Warn,
    /// Refuses the alias if it gains any of them.
    Refuse,
}

impl ApplyAlias {
    /// Declares it, unless another source owns it.
    #[must_use]
    pub fn new(manifest: ManifestAlias, origin: Origin) -> Self {
        let (mode, ownership, compare) = (ApplyMode::Commit, Ownership::Respect, Comparison::Whole);
        Self { manifest, origin, expect: None, mode, ownership, compare, missing: MissingTargets::Warn }
    }
}

/// The conditions of an alias's deletion, and who asks for it. Its targets stay.
#[derive(Debug, Clone)]
pub struct DeleteAlias {
    /// Commit or dry run.
    pub mode: ApplyMode,
    /// Source and conditions.
    pub of: DeleteRequest,
}

/// Result of an alias's deletion, or of a dry run of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeletedAlias {
    /// The last generation that it had.
    pub generation: Generation,
    /// The resource version of the deletion.
    pub rev: Rev,
}

/// A page of aliases as the driver knows them.
pub(crate) struct ScannedAliases {
    pub(crate) found: Vec<(Arc<Alias>, Rev, Vec<TargetStatus>)>,
    /// Start of the next page; `None` after the last.
    pub(crate) next: Option<DeploymentName>,
    pub(crate) rev: Rev,
}

/// An alias with its manifest, its resource version, and the state of its targets.
#[derive(Debug, Clone, PartialEq)]
pub struct DeclaredAlias {
    /// The parsed alias with defaults applied.
    pub alias: Arc<Alias>,
    /// The manifest as its author wrote it, without defaults.
    pub manifest: serde_json::Value,
    /// Rev of its last write: its resource version.
    pub rev: Rev,
    /// The state of each target, in declared order; empty until the controller has seen it.
    pub targets: Vec<TargetStatus>,
}

impl Handle {
    /// Declares an alias, or changes it.
    ///
    /// # Errors
    /// [`Error::NameInUse`] where a deployment has the name; [`Error::NotFound`] of a target, where missing ones are refused;
    /// otherwise as [`Handle::apply`].
    pub async fn apply_alias(&self, request: &ApplyAlias) -> Result<Applied, Error> {
        self.apply_alias_beside(request, &BTreeSet::new()).await
    }

    /// The same for an alias that is declared with deployments. A dry run has written none of them: they count as there.
    pub(crate) async fn apply_alias_beside(
        &self,
        request: &ApplyAlias,
        declared: &BTreeSet<DeploymentName>,
    ) -> Result<Applied, Error> {
        let name = &request.manifest.name;
        let (key, deployment) = (aliases::alias_key(name), layout::deployment_key(name));
        for _ in 0..ATTEMPTS {
            if self.store.get(&deployment).await?.is_some() {
                return Err(Error::NameInUse { name: name.clone(), by: "a deployment" });
            }
            let existing = self.store.get(&key).await?;
            let before = match &existing {
                Some(entry) => Some((StoredAlias::read(entry)?, StoredAlias::read_alias(entry).ok())),
                None => None,
            };
            let rev = existing.as_ref().map_or(Rev::NONE, |entry| entry.modified);
            let (alias, outcome) = decide(request, before.as_ref(), rev, (self.clock)())?;
            let warnings = self.missing_targets(&alias, declared).await?;
            let old = before.as_ref().map(|(stored, _)| &stored.manifest);
            let changes = differing(request.mode, old, &request.manifest.raw);
            let applied = Applied { name: name.clone(), outcome, generation: alias.generation, rev, warnings, changes };
            if outcome == ApplyOutcome::Unchanged || request.mode == ApplyMode::DryRun {
                return Ok(applied);
            }
            let gained = gained(&alias, before.as_ref().and_then(|(_, known)| known.as_deref()));
            let value = StoredAlias::of(&alias, request.manifest.raw.clone()).bytes();
            let mut txn = Txn {
                compare: vec![
                    Compare::Modified { key: key.clone(), rev },
                    Compare::Modified { key: deployment.clone(), rev: Rev::NONE },
                ],
                ops: vec![Op::Put { key: key.clone(), value }],
            };
            txn.ops.extend((rev == Rev::NONE).then(|| mark(aliases::MARK)));
            txn.ops.extend((!gained.is_empty()).then(|| mark(aliases::TARGETS_MARK)));
            if request.missing == MissingTargets::Refuse {
                for target in gained {
                    txn.compare.push(self.still_there(target).await?);
                }
            }
            if let Outcome::Committed(rev) = self.store.commit(txn).await? {
                self.until_in_force(rev).await;
                return Ok(Applied { rev, ..applied });
            }
        }
        Err(Error::Contended(name.clone()))
    }

    /// Fails where a deployment is changed meanwhile, which may be its deletion.
    async fn still_there(&self, target: &DeploymentName) -> Result<Compare, Error> {
        let key = layout::deployment_key(target);
        let stays = |entry: &Entry| StoredDeployment::read(entry).is_ok_and(|stored| !stored.deleting);
        let there = self.store.get(&key).await?.filter(stays);
        let rev = there.ok_or_else(|| Error::NotFound(target.clone()))?.modified;
        Ok(Compare::Modified { key, rev })
    }

    /// A warning for each target that no deployment has the name of, stored or `declared`.
    async fn missing_targets(&self, alias: &Alias, declared: &BTreeSet<DeploymentName>) -> Result<Vec<String>, Error> {
        let mut warnings = Vec::new();
        for (target, _) in alias.targets.iter().filter(|(target, _)| !declared.contains(target)) {
            if self.store.get(&layout::deployment_key(target)).await?.is_none() {
                warnings.push(format!(
                    "there is no deployment {target:?}: its share goes to the other targets until there is one"
                ));
            }
        }
        Ok(warnings)
    }

    /// Deletes an alias. Its targets stay.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Owned`], [`Error::Stale`], [`Error::Contended`], [`Error::Store`].
    pub async fn delete_alias(&self, name: &DeploymentName, delete: DeleteAlias) -> Result<DeletedAlias, Error> {
        let DeleteAlias { mode, of: request } = delete;
        let key = aliases::alias_key(name);
        for _ in 0..ATTEMPTS {
            let entry = self.store.get(&key).await?.ok_or_else(|| Error::NoAlias(name.clone()))?;
            // What cannot be read can still be deleted.
            let stored = StoredAlias::read(&entry).ok();
            if let Some(stored) = &stored {
                check_owner(name, &stored.origin(), &request.origin, request.ownership)?;
            }
            check_expected(name, request.expect, entry.modified)?;
            let generation = Generation(stored.map_or(0, |stored| stored.generation));
            if mode == ApplyMode::DryRun {
                return Ok(DeletedAlias { generation, rev: entry.modified });
            }
            let compare = vec![Compare::Modified { key: key.clone(), rev: entry.modified }];
            let txn = Txn { compare, ops: vec![Op::Delete { key: key.clone() }] };
            if let Outcome::Committed(rev) = self.store.commit(txn).await? {
                self.until_in_force(rev).await;
                return Ok(DeletedAlias { generation, rev });
            }
        }
        Err(Error::Contended(name.clone()))
    }

    /// One declared alias.
    ///
    /// # Errors
    /// [`Error::NoAlias`]; [`Error::Store`].
    pub async fn alias(&self, name: &DeploymentName) -> Result<DeclaredAlias, Error> {
        let entry = self.store.get(&aliases::alias_key(name)).await?;
        let entry = entry.ok_or_else(|| Error::NoAlias(name.clone()))?;
        let stored = StoredAlias::read(&entry)?;
        let alias = StoredAlias::read_alias(&entry)?;
        let targets = self.ask(|reply| DriverRequest::AliasTargets { alias: Arc::clone(&alias), reply }).await?;
        Ok(DeclaredAlias { alias, manifest: stored.manifest, rev: entry.modified, targets })
    }

    /// Declared aliases by name, a page at a time.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::Stopped`], [`Error::Busy`].
    pub async fn aliases(&self, request: ListRequest) -> Result<DeploymentPage<DeclaredAlias>, Error> {
        let limit = if request.limit == 0 { MAX_PAGE } else { request.limit.min(MAX_PAGE) };
        let scan = Scan { namespace: request.namespace, labels: request.labels, after: request.after, limit };
        let ScannedAliases { found, next, rev } = self.ask(|reply| DriverRequest::Aliases { scan, reply }).await?;
        let found = stream::iter(found).map(|(alias, rev, targets)| self.with_alias_manifest(alias, rev, targets));
        let items: Vec<Option<DeclaredAlias>> = found.buffered(READS).try_collect().await?;
        Ok(DeploymentPage { items: items.into_iter().flatten().collect(), next, rev })
    }

    /// The aliases that name a deployment as a target, those with a weight of 0 included.
    ///
    /// # Errors
    /// [`Error::Stopped`], [`Error::Busy`].
    pub async fn aliases_of(&self, deployment: &DeploymentName) -> Result<Vec<DeploymentName>, Error> {
        self.ask(|reply| DriverRequest::AliasesOf { deployment: deployment.clone(), reply }).await
    }

    /// The names and owners of all aliases.
    pub(crate) async fn alias_owners(&self) -> Result<Vec<(DeploymentName, Origin)>, Error> {
        let (mut owners, mut after) = (Vec::new(), None);
        loop {
            let scan = Scan { namespace: None, labels: BTreeMap::new(), after, limit: MAX_PAGE };
            let scanned = self.ask(|reply| DriverRequest::Aliases { scan, reply }).await?;
            owners.extend(scanned.found.iter().map(|(alias, ..)| (alias.name.clone(), alias.origin.clone())));
            match scanned.next {
                Some(last) => after = Some(last),
                None => return Ok(owners),
            }
        }
    }

    /// Adds the manifest; `None` if the alias has gone meanwhile.
    async fn with_alias_manifest(
        &self,
        alias: Arc<Alias>,
        rev: Rev,
        targets: Vec<TargetStatus>,
    ) -> Result<Option<DeclaredAlias>, Error> {
        let Some(entry) = self.store.get(&aliases::alias_key(&alias.name)).await? else { return Ok(None) };
        let manifest = StoredAlias::read(&entry)?.manifest;
        Ok(Some(DeclaredAlias { alias, manifest, rev, targets }))
    }

    /// The last time that an alias was created. New deployments compare it, so that none takes the name of an alias.
    pub(super) async fn last_new_alias(&self) -> Result<Rev, Error> {
        Ok(self.store.get(aliases::MARK).await?.map_or(Rev::NONE, |entry| entry.modified))
    }

    /// Fine if no alias has the name of a new deployment.
    pub(super) async fn check_no_alias(&self, name: &DeploymentName) -> Result<(), Error> {
        match self.store.get(&aliases::alias_key(name)).await? {
            Some(_) => Err(Error::NameInUse { name: name.clone(), by: "an alias" }),
            None => Ok(()),
        }
    }
}

/// Targets of an alias that it did not have before.
fn gained<'a>(alias: &'a Alias, before: Option<&Alias>) -> Vec<&'a DeploymentName> {
    let had =
        |target: &DeploymentName| before.is_some_and(|before| before.targets.iter().any(|(old, _)| old == target));
    alias.targets.iter().map(|(target, _)| target).filter(|target| !had(target)).collect()
}

/// Writes a key whose value says nothing: when it was written counts.
fn mark(key: &str) -> Op {
    Op::Put { key: key.to_owned(), value: bytes::Bytes::from_static(b"{\"v\":1}") }
}

/// The alias that applying makes, and whether that is a change.
fn decide(
    request: &ApplyAlias,
    before: Option<&(StoredAlias, Option<Arc<Alias>>)>,
    found: Rev,
    now: Time,
) -> Result<(Alias, ApplyOutcome), Error> {
    let manifest = &request.manifest;
    let expected = manifest.resource_version.as_ref().map(|text| text.parse().map_or(Rev(u64::MAX), Rev));
    check_expected(&manifest.name, request.expect.or(expected), found)?;
    let mut alias = Alias {
        name: manifest.name.clone(),
        generation: Generation::default().next(),
        labels: manifest.labels.clone(),
        origin: request.origin.clone(),
        created: now,
        targets: manifest.targets.clone(),
        sticky: manifest.sticky.clone(),
    };
    let Some((stored, known)) = before else { return Ok((alias, ApplyOutcome::Created)) };
    let same = known.as_ref().is_some_and(|known| known.targets == alias.targets && known.sticky == alias.sticky);
    alias.generation = if same { Generation(stored.generation) } else { Generation(stored.generation).next() };
    alias.created = Time(stored.created);
    let same_text = match request.compare {
        Comparison::Whole => stored.manifest == manifest.raw,
        Comparison::ExceptRevision => {
            stored.manifest == manifest.raw || without_revision(&stored.manifest) == without_revision(&manifest.raw)
        }
    };
    match request.ownership {
        Ownership::Warn => {}
        // Who hands in what is there changes nothing, and takes nothing over.
        Ownership::Respect if same && same_text && request.origin == Origin::API => alias.origin = stored.origin(),
        checked => check_owner(&manifest.name, &stored.origin(), &request.origin, checked)?,
    }
    let unchanged = same && same_text && stored.origin() == alias.origin;
    Ok((alias, if unchanged { ApplyOutcome::Unchanged } else { ApplyOutcome::Configured }))
}
