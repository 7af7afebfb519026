//! The aliases of a source.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use berth_spec::{DeploymentName, Origin, manifest::ManifestAlias};

use super::{Problem, Reconciled, Reconciler, Snapshot, is_general};
use crate::{
    handle::{ApplyAlias, ApplyMode, ApplyOutcome, Comparison, DeleteAlias, DeleteRequest, Error, Ownership},
    source::without_revision,
};

impl Reconciler {
    /// Aliases owned by this origin or its predecessor.
    pub(super) async fn owned_aliases(
        &self,
        formerly: Option<&Origin>,
    ) -> Result<BTreeMap<DeploymentName, Origin>, Error> {
        let mut owned = self.handle.alias_owners().await?;
        owned.retain(|(_, origin)| *origin == self.origin || Some(origin) == formerly);
        Ok(owned.into_iter().collect())
    }

    /// Deletes the aliases that the snapshot lacks.
    pub(super) async fn prune_aliases(
        &self,
        snapshot: &Snapshot,
        owned: &BTreeMap<DeploymentName, Origin>,
        done: &mut Reconciled,
    ) -> Result<(), Error> {
        let wanted: BTreeSet<&DeploymentName> = snapshot.aliases.iter().map(|manifest| &manifest.name).collect();
        for (name, origin) in owned.iter().filter(|(name, _)| !wanted.contains(name) && snapshot.prune.deletes(name)) {
            self.memory().aliases.remove(name);
            let of = DeleteRequest { origin: origin.clone(), expect: None, ownership: Ownership::Respect };
            match self.handle.delete_alias(name, DeleteAlias { mode: ApplyMode::Commit, of }).await {
                Ok(_) => {
                    tracing::info!(event = "manifest_removed", alias = %name);
                    done.deleted.push(name.clone());
                }
                // It has gone, or somebody has taken it over.
                Err(Error::NoAlias(_) | Error::Owned { .. }) => {}
                Err(error) if is_general(&error) => return Err(error),
                Err(error) => {
                    done.problems.push(problem(name, "NotDeleted", format!("{name} cannot be deleted: {error}")))
                }
            }
        }
        Ok(())
    }

    /// Declares the aliases that are new or changed.
    pub(super) async fn apply_aliases(
        &self,
        snapshot: &Snapshot,
        owned: &BTreeMap<DeploymentName, Origin>,
        done: &mut Reconciled,
    ) -> Result<(), Error> {
        let mut seen = BTreeSet::new();
        for manifest in snapshot.aliases.iter().filter(|manifest| seen.insert(&manifest.name)) {
            let (name, hash) = (&manifest.name, hash(manifest));
            let owner = owned.get(name);
            if owner == Some(&self.origin) && self.memory().aliases.get(name) == Some(&hash) {
                continue;
            }
            let ownership =
                if owner.is_some_and(|owner| *owner != self.origin) { Ownership::TakeOver } else { Ownership::Respect };
            // The source is the truth: it does not ask whether somebody else was there in between.
            let manifest = ManifestAlias { resource_version: None, ..manifest.clone() };
            let request = ApplyAlias {
                ownership,
                compare: Comparison::ExceptRevision,
                ..ApplyAlias::new(manifest, self.origin.clone())
            };
            match self.handle.apply_alias(&request).await {
                Ok(applied) => {
                    self.memory().aliases.insert(name.clone(), hash);
                    if applied.outcome != ApplyOutcome::Unchanged {
                        tracing::info!(event = "manifest_applied", alias = %name, outcome = applied.outcome.as_str());
                        done.changed.push(name.clone());
                    }
                }
                Err(error) if is_general(&error) => return Err(error),
                Err(error) => {
                    done.problems.push(problem(name, "NotApplied", format!("{name} is not declared: {error}")))
                }
            }
        }
        Ok(())
    }
}

fn problem(name: &DeploymentName, reason: &'static str, message: String) -> Problem {
    Problem { deployment: Some(name.clone()), reason, message }
}

fn hash(manifest: &ManifestAlias) -> u64 {
    let mut hasher = DefaultHasher::new();
    without_revision(&manifest.raw).to_string().hash(&mut hasher);
    hasher.finish()
}
