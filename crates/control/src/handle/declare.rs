//! Declaring deployments: optimistic writes to the store.
//!
//! ```text
//! read what is there → decide (pure) → nothing to write: Unchanged
//!      ▲                            └→ compare-and-set ──ok──▶ wait until requests are routed by it
//!      └──────somebody was faster───────────┘
//! ```
//! The generation counts changes of the spec; labels and the text of a manifest may change without it. A deployment
//! belongs to the source that declared it.

use std::{collections::BTreeSet, sync::Arc};

use berth_spec::{
    Deployment, DeploymentName, Generation, Origin, Time,
    manifest::{FieldChange, ManifestDeployment, changes},
};
use futures::{FutureExt, StreamExt, stream};
use serde_json::Value;

use super::{
    Error, Handle,
    owner::{check_expected, check_owner},
    past::Replaced,
};
use crate::{
    resolve::Resolution,
    source::without_revision,
    store::{
        Compare, Entry, MAX_BYTES, Op, Outcome, Rev, StoreError, Txn, aliases,
        layout::{self, StoredDeployment},
    },
};

/// Attempts of a write that lost to another writer. Each failure means that another writer succeeded.
pub(super) const ATTEMPTS: usize = 8;

/// Deployments in one transaction of [`Handle::apply_all`]: below the store's limit on operations.
const BATCH: usize = 100;

/// Existing deployments that are read at once for a batch: hides the latency of a remote store, and leaves its
/// connection to others as well.
const READS: usize = 16;

/// A deployment to be declared, and the conditions of that.
#[derive(Debug, Clone)]
pub struct ApplyRequest {
    /// The checked manifest. Its `metadata.resourceVersion`, if any, counts as `expect`.
    pub manifest: ManifestDeployment,
    /// Source that declares it, and owns it afterwards.
    pub origin: Origin,
    /// Only if the stored one still has this resource version ([`Rev::NONE`]: only if there is none).
    pub expect: Option<Rev>,
    /// Mode: real or dry run.
    pub mode: ApplyMode,
    /// Treatment of a deployment of another source.
    pub ownership: Ownership,
    /// Differences to the stored manifest for which it is written; without any it is left alone.
    pub compare: Comparison,
}

impl ApplyRequest {
    /// Declares it, unless another source owns it.
    #[must_use]
    pub fn new(manifest: ManifestDeployment, origin: Origin) -> Self {
        Self {
            manifest,
            origin,
            expect: None,
            mode: ApplyMode::Commit,
            ownership: Ownership::Respect,
            compare: Comparison::Whole,
        }
    }
}

/// The differences of two manifests that count as a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// All of them, also in labels and annotations.
    Whole,
    /// All but the annotation with the revision of the source ([`crate::source::REVISION`]).
    ExceptRevision,
}

/// Mode of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApplyMode {
    /// Writes the change to the store.
    Commit,
    /// Only say what would be done.
    DryRun,
}

/// Treatment of a deployment that belongs to another source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// Refuse with [`Error::Owned`].
    Respect,
    /// Change it, and make the caller its owner.
    TakeOver,
    /// Go on as its owner would, and warn of it: for those who only ask what would be.
    Warn,
}

/// Result of applying a deployment, an alias or a function, or of a dry run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// Name of the object, with its namespace.
    pub name: DeploymentName,
    /// Outcome, or the expected one of a dry run.
    pub outcome: ApplyOutcome,
    /// The generation that it has now; of a dry run, the one that it would have.
    pub generation: Generation,
    /// The resource version that it has now; of a dry run, the one that it had.
    pub rev: Rev,
    /// Warnings for the author, for example about a missing local artifact.
    pub warnings: Vec<String>,
    /// Of a dry run: the fields that differ from what is declared.
    pub changes: Vec<FieldChange>,
}

/// Outcome of an apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApplyOutcome {
    /// There was none of this name.
    Created,
    /// There was one, and it was replaced by the declared one.
    Configured,
    /// Unchanged; nothing was written.
    Unchanged,
}

impl ApplyOutcome {
    /// Name of the outcome.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Configured => "configured",
            Self::Unchanged => "unchanged",
        }
    }
}

/// Stored state of a deployment.
pub(super) struct Existing {
    /// `None`: not even the form can be read.
    pub(super) stored: Option<StoredDeployment>,
    /// Or why it cannot be read: then it can still be replaced and deleted.
    pub(super) deployment: Result<Arc<Deployment>, StoreError>,
    pub(super) rev: Rev,
}

/// Decision about one request.
struct Decision {
    applied: Applied,
    /// Operation to write; `None` if nothing changes.
    write: Option<(Compare, Op)>,
    deployment: Arc<Deployment>,
    /// The generation that the write replaces; `None` where the spec stays the same.
    replaces: Option<Replaced>,
}

impl Decision {
    /// A deployment is created.
    fn is_new(&self) -> bool {
        self.write.is_some() && self.applied.outcome == ApplyOutcome::Created
    }
}

/// Fails where an alias was created since: it may have the name of a new deployment.
fn no_later_alias(last: Rev) -> Compare {
    Compare::Modified { key: aliases::MARK.to_owned(), rev: last }
}

impl Handle {
    /// Declares a deployment, or changes it.
    ///
    /// # Errors
    /// [`Error::Owned`], [`Error::Stale`], [`Error::Contended`], [`Error::Store`].
    pub async fn apply(&self, request: ApplyRequest) -> Result<Applied, Error> {
        let applied = self.write(&request).await?;
        self.until_in_force(applied.rev).await;
        Ok(applied)
    }

    /// Declares it, and does not wait for anything to come of it.
    async fn write(&self, request: &ApplyRequest) -> Result<Applied, Error> {
        let resolution = self.resolver.resolve(&request.manifest.spec.model).await;
        for _ in 0..ATTEMPTS {
            let last_alias = self.last_new_alias().await?;
            let decision = self.decide(request, &resolution).await?;
            let is_new = decision.is_new();
            let Decision { mut applied, write, replaces, .. } = decision;
            let Some((compare, op)) = write else { return Ok(applied) };
            let mut txn = Txn { compare: vec![compare], ops: vec![op] };
            if let Some(replaced) = replaces {
                txn.ops.push(self.remember(&request.manifest.name, replaced).await?);
            }
            txn.compare.extend(is_new.then(|| no_later_alias(last_alias)));
            if let Outcome::Committed(rev) = self.store.commit(txn).await? {
                applied.rev = rev;
                return Ok(applied);
            }
        }
        Err(Error::Contended(request.manifest.name.clone()))
    }

    /// Declares many, in as few transactions as may be. Each succeeds or fails by itself; results are in the order of
    /// the requests.
    pub async fn apply_all(&self, requests: Vec<ApplyRequest>) -> Vec<Result<Applied, Error>> {
        let mut results = Vec::with_capacity(requests.len());
        let mut rest = requests.as_slice();
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(batch_length(rest));
            rest = later;
            match self.apply_batch(batch).await {
                Some(batch) => results.extend(batch),
                // Somebody was faster on one of them, or two are the same: one by one.
                None => {
                    for request in batch {
                        results.push(self.write(request).await);
                    }
                }
            }
        }
        let last = results.iter().flatten().map(|applied| applied.rev).max().unwrap_or_default();
        self.until_in_force(last).await;
        results
    }

    /// The deployment that this request would make, without writing it: for previews.
    pub(super) async fn would_be(&self, request: ApplyRequest) -> Result<Arc<Deployment>, Error> {
        Ok(self.resolve_and_decide(&request).await?.deployment)
    }

    async fn resolve_and_decide(&self, request: &ApplyRequest) -> Result<Decision, Error> {
        let resolution = self.resolver.resolve(&request.manifest.spec.model).await;
        self.decide(request, &resolution).await
    }

    async fn decide(&self, request: &ApplyRequest, resolution: &Resolution) -> Result<Decision, Error> {
        let existing = self.existing(&request.manifest.name).await?;
        if existing.is_none() {
            self.check_no_alias(&request.manifest.name).await?;
        }
        decide(request, resolution, existing, (self.clock)())
    }

    pub(super) async fn existing(&self, name: &DeploymentName) -> Result<Option<Existing>, Error> {
        let entry = self.store.get(&layout::deployment_key(name)).await?;
        Ok(entry.as_ref().map(Existing::read))
    }

    /// `None`: the batch did not go through as one.
    async fn apply_batch(&self, batch: &[ApplyRequest]) -> Option<Vec<Result<Applied, Error>>> {
        let names: BTreeSet<_> = batch.iter().map(|request| &request.manifest.name).collect();
        if names.len() < batch.len() {
            return None;
        }
        let last_alias = self.last_new_alias().await.ok()?;
        let deciding: Vec<_> = batch.iter().map(|request| self.resolve_and_decide(request).boxed()).collect();
        let decisions: Vec<Result<Decision, Error>> = stream::iter(deciding).buffered(READS).collect().await;
        let mut txn = Txn::default();
        let any_new = decisions.iter().flatten().any(Decision::is_new);
        txn.compare.extend(any_new.then(|| no_later_alias(last_alias)));
        for decision in decisions.iter().flatten() {
            let Some((compare, op)) = decision.write.clone() else { continue };
            txn.compare.push(compare);
            txn.ops.push(op);
            if let Some(replaced) = decision.replaces.clone() {
                txn.ops.push(self.remember(&decision.applied.name, replaced).await.ok()?);
            }
        }
        let rev = if txn.ops.is_empty() {
            Rev::NONE
        } else {
            match self.store.commit(txn).await {
                Ok(Outcome::Committed(rev)) => rev,
                Ok(Outcome::Conflict) | Err(_) => return None,
            }
        };
        let finish = |decision: Decision| {
            let rev = if decision.write.is_some() { rev } else { decision.applied.rev };
            Applied { rev, ..decision.applied }
        };
        Some(decisions.into_iter().map(|decision| decision.map(finish)).collect())
    }
}

/// Number of requests for the next transaction: at least one, and below its limits.
fn batch_length(requests: &[ApplyRequest]) -> usize {
    let mut bytes = 0;
    let fits = |request: &&ApplyRequest| {
        // Key, version and what else is stored beside the manifest come to less than this.
        bytes += request.manifest.raw.to_string().len() + 1_024;
        bytes < MAX_BYTES
    };
    requests.iter().take(BATCH).take_while(fits).count().max(1)
}

impl Existing {
    fn read(entry: &Entry) -> Self {
        Self {
            stored: StoredDeployment::read(entry).ok(),
            deployment: StoredDeployment::read_deployment(entry),
            rev: entry.modified,
        }
    }

    /// Source that declared it, as far as readable.
    pub(super) fn owner(&self) -> Option<Origin> {
        self.stored.as_ref().map(StoredDeployment::origin)
    }

    /// True if it is what the manifest says, with the same artifact, whoever declared it.
    fn is_already(&self, manifest: &ManifestDeployment, resolution: &Resolution) -> bool {
        let (Some(stored), Ok(before)) = (&self.stored, &self.deployment) else { return false };
        let same_artifact = resolution.digest() == before.digest || matches!(resolution, Resolution::Missing { .. });
        let same_text = stored.manifest == manifest.raw && stored.base == manifest.base;
        same_text && same_artifact && before.spec == manifest.spec && !before.deleting
    }

    /// Generation of an unreadable entry: its number of commits is an upper bound.
    fn generation(&self) -> Generation {
        self.stored.as_ref().map_or(Generation(self.rev.0), |stored| Generation(stored.generation))
    }
}

fn decide(
    request: &ApplyRequest,
    resolution: &Resolution,
    existing: Option<Existing>,
    now: Time,
) -> Result<Decision, Error> {
    let manifest = &request.manifest;
    let found = existing.as_ref().map_or(Rev::NONE, |existing| existing.rev);
    check_expected(&manifest.name, request.expect.or_else(|| expected_in(manifest)), found)?;
    let mut deployment = Deployment {
        name: manifest.name.clone(),
        generation: Generation::default().next(),
        labels: manifest.labels.clone().into(),
        origin: request.origin.clone(),
        created: now,
        deleting: false,
        resource_version: found.0,
        spec: manifest.spec.clone(),
        digest: resolution.digest(),
        artifact: resolution.size(),
    };
    let mut outcome = ApplyOutcome::Created;
    let mut warnings: Vec<String> = resolution.warning().into_iter().collect();
    let (mut changes, mut replaces) = (Vec::new(), None);
    if let Some(existing) = &existing {
        if let Some(owner) = existing.owner() {
            match check_owner(&manifest.name, &owner, &request.origin, request.ownership) {
                Err(owned) if request.ownership == Ownership::Warn => {
                    deployment.origin = owner;
                    warnings.push(owned.to_string());
                }
                // Who hands in what is there changes nothing, and takes nothing over.
                Err(_) if request.origin == Origin::API && existing.is_already(manifest, resolution) => {
                    deployment.origin = owner;
                }
                checked => checked?,
            }
        }
        outcome = ApplyOutcome::Configured;
        deployment.generation = existing.generation().next();
        if let Err(unreadable) = &existing.deployment {
            warnings.push(format!("what was there before is replaced: {unreadable}"));
        }
    }
    if let Some(Existing { stored: Some(stored), deployment: Ok(before), .. }) = &existing {
        if matches!(resolution, Resolution::Missing { .. }) && before.spec.model.uri == manifest.spec.model.uri {
            // The file is away for a moment, not another file.
            deployment.digest = before.digest;
            deployment.artifact = before.artifact;
        }
        let same_spec = before.spec == deployment.spec && before.digest == deployment.digest && !before.deleting;
        deployment.generation = if same_spec { before.generation } else { before.generation.next() };
        deployment.created = before.created;
        changes = differing(request.mode, Some(&stored.manifest), &manifest.raw);
        if request.mode == ApplyMode::DryRun {
            changes.extend(artifact_change(before, &deployment));
        }
        replaces = (!same_spec && !before.deleting).then(|| Replaced::of(stored, before, now));
        let same_manifest = match request.compare {
            Comparison::Whole => stored.manifest == manifest.raw,
            Comparison::ExceptRevision => {
                stored.manifest == manifest.raw || without_revision(&stored.manifest) == without_revision(&manifest.raw)
            }
        };
        let same_text = same_manifest && stored.base == manifest.base;
        let same = same_spec && same_text && before.origin == deployment.origin;
        if same {
            outcome = ApplyOutcome::Unchanged;
        }
    }
    let key = layout::deployment_key(&manifest.name);
    let wanted = outcome != ApplyOutcome::Unchanged && request.mode == ApplyMode::Commit;
    let write = wanted.then(|| {
        let stored = StoredDeployment::of(&deployment, manifest.raw.clone(), manifest.base.clone());
        (Compare::Modified { key: key.clone(), rev: found }, Op::Put { key, value: stored.bytes() })
    });
    let (name, generation) = (manifest.name.clone(), deployment.generation);
    let applied = Applied { name, outcome, generation, rev: found, warnings, changes };
    Ok(Decision { applied, write, deployment: Arc::new(deployment), replaces })
}

/// The fields of a manifest that differ from the stored one. Only for those who ask what would be: it costs a comparison.
pub(super) fn differing(mode: ApplyMode, stored: Option<&Value>, given: &Value) -> Vec<FieldChange> {
    match (mode, stored) {
        (ApplyMode::DryRun, Some(stored)) => changes(stored, given),
        _ => Vec::new(),
    }
}

/// The artifact's digest, where the same location has another content now.
fn artifact_change(before: &Deployment, after: &Deployment) -> Option<FieldChange> {
    let text = |deployment: &Deployment| deployment.digest.map(|digest| Value::from(format!("sha256:{digest}")));
    let same_place = before.spec.model.uri == after.spec.model.uri;
    let (from, to) = (text(before), text(after));
    (same_place && from != to && to.is_some()).then(|| FieldChange { path: "artifact".to_owned(), from, to })
}

/// The resource version that the manifest itself names.
fn expected_in(manifest: &ManifestDeployment) -> Option<Rev> {
    // The manifest's reader lets any text through; one that is no number equals no version.
    manifest.resource_version.as_ref().map(|text| text.parse().map_or(Rev(u64::MAX), Rev))
}
