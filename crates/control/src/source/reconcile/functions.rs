//! The functions of a source. They are beside the deployments: where their store is away, deployments go on.

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use berth_spec::{DeploymentName, Origin, manifest::ManifestFunction};

use super::{Problem, Reconciled, Reconciler, Snapshot};
use crate::{
    functions::{ApplyFunction, DeleteFunction, FunctionHost},
    handle::{ApplyMode, ApplyOutcome, Error, Ownership},
    source::without_revision,
};

impl Reconciler {
    /// Declares functions that are new or changed, and deletes those that the snapshot lacks.
    pub(super) async fn functions(&self, snapshot: &Snapshot, formerly: Option<&Origin>, done: &mut Reconciled) {
        let Some(first) = snapshot.functions.first().map(|function| &function.name) else {
            if let Some(host) = &self.handle.functions {
                self.prune_functions(&**host, snapshot, formerly, done).await;
            }
            return;
        };
        let ready = match &self.handle.functions {
            Some(host) => host.ready().await.map(|()| Arc::clone(host)),
            None => Err(Error::NoFunctions),
        };
        match ready {
            Err(error) => {
                done.problems.push(problem(first, "NotApplied", format!("functions are not declared: {error}")));
            }
            Ok(host) => {
                self.apply_functions(&*host, snapshot, formerly, done).await;
                self.prune_functions(&*host, snapshot, formerly, done).await;
            }
        }
    }

    async fn apply_functions(
        &self,
        host: &dyn FunctionHost,
        snapshot: &Snapshot,
        formerly: Option<&Origin>,
        done: &mut Reconciled,
    ) {
        let owned = host.owned_by(&self.origins(formerly));
        let mut seen = BTreeSet::new();
        for manifest in snapshot.functions.iter().filter(|manifest| seen.insert(&manifest.name)) {
            let (name, hash, owner) = (&manifest.name, hash(manifest), owned.get(&manifest.name));
            if owner == Some(&self.origin) && self.memory().functions.get(name) == Some(&hash) {
                continue;
            }
            let takes_over = owner.is_some_and(|owner| *owner != self.origin);
            let request = ApplyFunction {
                // The source is the truth: it does not ask whether somebody else was there in between.
                manifest: ManifestFunction { resource_version: None, ..manifest.clone() },
                origin: self.origin.clone(),
                expect: None,
                mode: ApplyMode::Commit,
                ownership: if takes_over { Ownership::TakeOver } else { Ownership::Respect },
            };
            match host.apply(request).await {
                Ok(applied) => {
                    self.memory().functions.insert(name.clone(), hash);
                    if applied.outcome != ApplyOutcome::Unchanged {
                        tracing::info!(event = "manifest_applied", function = %name, outcome = applied.outcome.as_str());
                        done.functions.push(name.clone());
                    }
                }
                Err(error) => {
                    let message = format!("the function {name} is not declared: {error}");
                    done.problems.push(problem(name, "NotApplied", message));
                }
            }
        }
    }

    async fn prune_functions(
        &self,
        host: &dyn FunctionHost,
        snapshot: &Snapshot,
        formerly: Option<&Origin>,
        done: &mut Reconciled,
    ) {
        let wanted: BTreeSet<&DeploymentName> = snapshot.functions.iter().map(|manifest| &manifest.name).collect();
        let owned = host.owned_by(&self.origins(formerly));
        for (name, origin) in
            owned.into_iter().filter(|(name, _)| !wanted.contains(name) && snapshot.prune.deletes(name))
        {
            self.memory().functions.remove(&name);
            let request = DeleteFunction {
                name: name.clone(),
                origin,
                expect: None,
                mode: ApplyMode::Commit,
                ownership: Ownership::Respect,
            };
            match host.delete(request).await {
                Ok(_) => {
                    tracing::info!(event = "manifest_removed", function = %name);
                    done.functions.push(name);
                }
                // It has gone, or somebody has taken it over.
                Err(Error::NoFunction(_) | Error::Owned { .. }) => {}
                Err(error) => {
                    let message = format!("the function {name} cannot be deleted: {error}");
                    done.problems.push(problem(&name, "NotDeleted", message));
                }
            }
        }
    }

    fn origins<'a>(&'a self, formerly: Option<&'a Origin>) -> Vec<&'a Origin> {
        std::iter::once(&self.origin).chain(formerly).collect()
    }
}

fn problem(name: &DeploymentName, reason: &'static str, message: String) -> Problem {
    Problem { deployment: Some(name.clone()), reason, message }
}

fn hash(manifest: &ManifestFunction) -> u64 {
    let mut hasher = DefaultHasher::new();
    (without_revision(&manifest.raw).to_string(), manifest.spec.to_string()).hash(&mut hasher);
    hasher.finish()
}
