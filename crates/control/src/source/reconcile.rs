//! The one reconciler of sources: what an origin owns × its snapshot → apply, disable, delete.
//!
//! ```text
//!             ┌─ disabled ──▶ apply, first: it frees memory, and an emergency waits for nothing
//! snapshot ───┤
//!             └─ the rest ──▶ apply                          owned and absent ──▶ delete
//! ```
//! Aliases that are absent go first, since their names may be those of new deployments; those that are wanted come after
//! the deployments that they lead to. All of it is idempotent: what is stored as it should be is not written. The revision that a manifest is annotated with
//! is the one that last changed it. What was applied is remembered, so that a round in which nothing changed reads the
//! names that are owned, and nothing else.

mod aliases;
mod functions;

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use berth_spec::{
    Class, DeploymentName, Origin,
    manifest::{ManifestDeployment, ParseContext, raw::RawDeployment},
};
use futures::{FutureExt, StreamExt, stream};
use serde_json::Value;

use super::{Snapshot, snapshot::without_revision};
use crate::{
    Handle,
    handle::{ApplyOutcome, ApplyRequest, Comparison, DeleteRequest, Error, Ownership},
    resolve::Resolution,
};

/// Deployments in one call of the control plane: enough for full transactions, few enough to hold in memory.
const BATCH: usize = 1_000;

/// Local artifacts that are hashed at once; more of them would only queue for the threads that may block.
const HASHED: usize = 16;

/// The changes of one round, and those that could not be made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// Deployments that were created or changed.
    pub changed: Vec<DeploymentName>,
    /// Deployments whose deletion began.
    pub deleted: Vec<DeploymentName>,
    /// Functions that were created, changed, or deleted.
    pub functions: Vec<DeploymentName>,
    /// Changes that were not made. They are tried again with the next round.
    pub problems: Vec<Problem>,
    /// Warnings about declared deployments, for example about a missing local artifact.
    pub warnings: Vec<Problem>,
}

/// A problem that a person should look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The deployment that it is about; `None`: the source as a whole.
    pub deployment: Option<DeploymentName>,
    /// Reason of the event that tells it, in PascalCase.
    pub reason: &'static str,
    /// Problem and remedy, for people.
    pub message: String,
}

/// The state of an applied deployment: while it is the same there is nothing to apply.
#[derive(Debug, PartialEq, Eq)]
struct Basis {
    /// A hash of the manifest, without its revision.
    manifest: u64,
    artifact: Resolution,
}

#[derive(Default)]
struct Memory {
    applied: BTreeMap<DeploymentName, Basis>,
    /// A hash of the manifest of each alias, without its revision.
    aliases: BTreeMap<DeploymentName, u64>,
    /// The same of each function.
    functions: BTreeMap<DeploymentName, u64>,
    /// The origin whose deployments are taken over.
    formerly: Option<Origin>,
}

/// Makes what one origin declared equal to its snapshots. Remembers what it applied, so that equal parts cost nothing.
pub(super) struct Reconciler {
    handle: Handle,
    origin: Origin,
    memory: Mutex<Memory>,
}

impl Reconciler {
    pub(super) fn new(handle: Handle, origin: Origin) -> Self {
        Self { handle, origin, memory: Mutex::default() }
    }

    pub(super) fn take_over(&self, formerly: Origin) {
        self.memory().formerly = Some(formerly);
    }

    pub(super) async fn reconcile(&self, snapshot: &Snapshot) -> Result<Reconciled, Error> {
        let mut wanted: BTreeMap<&DeploymentName, &ManifestDeployment> = BTreeMap::new();
        for manifest in &snapshot.deployments {
            wanted.entry(&manifest.name).or_insert(manifest);
        }
        let formerly = self.memory().formerly.clone();
        let owned = self.owned(formerly.as_ref()).await?;
        let mut done = Reconciled::default();
        let aliases = self.owned_aliases(formerly.as_ref()).await?;
        self.prune_aliases(snapshot, &aliases, &mut done).await?;
        let changed = self.changed(&wanted, &owned).await;
        let (disabled, rest): (Vec<_>, Vec<_>) = changed.into_iter().partition(|(manifest, _)| is_disabled(manifest));
        self.apply(disabled, &owned, &mut done).await?;
        self.apply(rest, &owned, &mut done).await?;
        self.apply_aliases(snapshot, &aliases, &mut done).await?;
        let gone = owned.iter().filter(|(name, _)| !wanted.contains_key(name) && snapshot.prune.deletes(name));
        for (name, origin) in gone {
            self.delete(name, origin, &mut done).await?;
        }
        self.functions(snapshot, formerly.as_ref(), &mut done).await;
        if self.memory().formerly == formerly {
            self.memory().formerly = None;
        }
        Ok(done)
    }

    pub(super) async fn disable(&self, names: BTreeSet<DeploymentName>) -> Result<Reconciled, Error> {
        let (mut done, mut disabled) = (Reconciled::default(), Vec::new());
        for name in names {
            let view = match self.handle.get(&name).await {
                Ok(view) if view.deployment.origin == self.origin && !view.deployment.deleting => view,
                Ok(_) | Err(Error::NotFound(_)) => continue,
                Err(error) => return Err(error),
            };
            match disabled_form(&view.manifest) {
                Ok(manifest) => disabled.extend(manifest),
                Err(message) => {
                    done.problems.push(Problem { deployment: Some(name), reason: "NotApplied", message });
                }
            }
        }
        let changed = disabled.iter().map(|manifest| (manifest, None)).collect();
        self.apply(changed, &BTreeMap::new(), &mut done).await?;
        Ok(done)
    }

    /// Deployments owned by this origin or its predecessor that are not being deleted.
    async fn owned(&self, formerly: Option<&Origin>) -> Result<BTreeMap<DeploymentName, Origin>, Error> {
        let origins: Vec<&Origin> = [Some(&self.origin), formerly].into_iter().flatten().collect();
        let (mut owned, mut after) = (BTreeMap::new(), None);
        loop {
            let page = self.handle.owned_by(&origins, after).await?;
            owned.extend(page.items);
            match page.next {
                Some(last) => after = Some(last),
                None => return Ok(owned),
            }
        }
    }

    /// Deployments to apply: the manifest or the artifact has changed since the last apply, or another source has
    /// taken or deleted the deployment.
    async fn changed<'a>(
        &self,
        wanted: &BTreeMap<&DeploymentName, &'a ManifestDeployment>,
        owned: &BTreeMap<DeploymentName, Origin>,
    ) -> Vec<(&'a ManifestDeployment, Option<Basis>)> {
        let hashing = wanted.values().map(|manifest| {
            let (resolver, manifest) = (Arc::clone(&self.handle.resolver), *manifest);
            async move {
                let artifact = resolver.resolve(&manifest.spec.model).await;
                (manifest, Basis { manifest: hash(manifest), artifact })
            }
            .boxed()
        });
        let hashing: Vec<_> = hashing.collect();
        let found: Vec<(&ManifestDeployment, Basis)> = stream::iter(hashing).buffered(HASHED).collect().await;
        let memory = self.memory();
        let same = |(manifest, basis): &(&ManifestDeployment, Basis)| {
            owned.get(&manifest.name) == Some(&self.origin) && memory.applied.get(&manifest.name) == Some(basis)
        };
        found.into_iter().filter(|found| !same(found)).map(|(manifest, basis)| (manifest, Some(basis))).collect()
    }

    async fn apply(
        &self,
        mut changed: Vec<(&ManifestDeployment, Option<Basis>)>,
        owned: &BTreeMap<DeploymentName, Origin>,
        done: &mut Reconciled,
    ) -> Result<(), Error> {
        while !changed.is_empty() {
            let part: Vec<_> = changed.drain(..changed.len().min(BATCH)).collect();
            let requests = part.iter().map(|(manifest, _)| self.request(manifest, owned)).collect();
            let results = self.handle.apply_all(requests).await;
            for ((manifest, basis), result) in part.into_iter().zip(results) {
                self.applied(manifest, basis, result, done)?;
            }
        }
        Ok(())
    }

    fn request(&self, manifest: &ManifestDeployment, owned: &BTreeMap<DeploymentName, Origin>) -> ApplyRequest {
        // The source is the truth: it does not ask whether somebody else was there in between.
        let manifest = ManifestDeployment { resource_version: None, ..manifest.clone() };
        let takes_over = owned.get(&manifest.name).is_some_and(|owner| *owner != self.origin);
        let ownership = if takes_over { Ownership::TakeOver } else { Ownership::Respect };
        let compare = Comparison::ExceptRevision;
        ApplyRequest { ownership, compare, ..ApplyRequest::new(manifest, self.origin.clone()) }
    }

    fn applied(
        &self,
        manifest: &ManifestDeployment,
        basis: Option<Basis>,
        result: Result<crate::handle::Applied, Error>,
        done: &mut Reconciled,
    ) -> Result<(), Error> {
        let name = manifest.name.clone();
        self.memory().applied.remove(&name);
        let applied = match result {
            Ok(applied) => applied,
            Err(error) if is_general(&error) => return Err(error),
            Err(error) => {
                let message = format!("{name} is not declared: {error}");
                done.problems.push(Problem { deployment: Some(name), reason: "NotApplied", message });
                return Ok(());
            }
        };
        // An artifact that is missing is looked for again with the next round.
        if let Some(basis) = basis.filter(|basis| !matches!(basis.artifact, Resolution::Missing { .. })) {
            self.memory().applied.insert(name.clone(), basis);
        }
        for message in applied.warnings {
            let reason = "ArtifactMissing";
            done.warnings.push(Problem { deployment: Some(name.clone()), reason, message });
        }
        if applied.outcome != ApplyOutcome::Unchanged {
            tracing::info!(
                event = "manifest_applied",
                deployment_id = %name,
                outcome = applied.outcome.as_str(),
                generation = applied.generation.0
            );
            done.changed.push(name);
        }
        Ok(())
    }

    async fn delete(&self, name: &DeploymentName, origin: &Origin, done: &mut Reconciled) -> Result<(), Error> {
        let request = DeleteRequest { origin: origin.clone(), expect: None, ownership: Ownership::Respect };
        match self.handle.start_delete(name, request).await {
            Ok(_) => {
                tracing::info!(event = "manifest_removed", deployment_id = %name);
                self.memory().applied.remove(name);
                done.deleted.push(name.clone());
            }
            // It has gone, or somebody has taken it over.
            Err(Error::NotFound(_) | Error::Owned { .. }) => drop(self.memory().applied.remove(name)),
            Err(error) if is_general(&error) => return Err(error),
            Err(error) => {
                let message = format!("{name} cannot be deleted: {error}");
                done.problems.push(Problem { deployment: Some(name.clone()), reason: "NotDeleted", message });
            }
        }
        Ok(())
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stored manifest without replicas; `None`: it has none.
fn disabled_form(stored: &Value) -> Result<Option<ManifestDeployment>, String> {
    let mut document = RawDeployment::read(stored)?;
    if !document.disable() {
        return Ok(None);
    }
    let context = ParseContext { file: "the manifest in force".to_owned(), ..ParseContext::default() };
    let manifest = ManifestDeployment::of(document, &context);
    manifest.map(Some).map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

/// The manifest wants no replica anywhere.
pub(super) fn is_disabled(manifest: &ManifestDeployment) -> bool {
    let spec = &manifest.spec;
    spec.replicas.max == 0 && spec.regions.values().all(|replicas| replicas.max == 0)
}

/// An error of the control plane, and not of one deployment: the whole round is tried again later.
fn is_general(error: &Error) -> bool {
    matches!(error, Error::Stopped)
        || matches!(error.class(), Class::Waiting { .. } | Class::Internal | Class::TimedOut)
}

fn hash(manifest: &ManifestDeployment) -> u64 {
    let mut hasher = DefaultHasher::new();
    let value: Value = without_revision(&manifest.raw);
    (value.to_string(), &manifest.base).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use prometheus_client::registry::Registry;
    use tokio::task::JoinSet;
    use tokio_util::sync::CancellationToken;

    use berth_spec::manifest;

    use super::*;
    use crate::{driver, store::memory::MemoryStore};

    fn declares(folder: &Path, priority: u8, more: &str) -> Snapshot {
        let text = format!(
            "apiVersion: berth.dev/v1\nkind: ModelDeployment\nmetadata: {{name: iris{more}}}\nspec:\n  model: {{format: onnx, uri: \"file:model.onnx\"}}\n  priority: {priority}\n"
        );
        let base = url::Url::from_directory_path(folder).ok().map(String::from);
        let context = ParseContext { file: "test".to_owned(), base, ..ParseContext::default() };
        let deployments = manifest::parse(&text, &context).expect("a manifest");
        Snapshot { deployments, ..Snapshot::default() }
    }

    async fn to_apply(reconciler: &Reconciler, snapshot: &Snapshot) -> usize {
        let wanted = snapshot.deployments.iter().map(|manifest| (&manifest.name, manifest)).collect();
        let owned = reconciler.owned(None).await.expect("it answers");
        reconciler.changed(&wanted, &owned).await.len()
    }

    #[tokio::test]
    async fn only_what_changed_is_applied_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let model = folder.path().join("model.onnx");
        fs_err::write(&model, b"one").expect("written");
        let (control, handle) =
            driver::build(driver::Config::default(), Arc::new(MemoryStore::default()), &mut Registry::default());
        let (mut tasks, shutdown) = (JoinSet::new(), CancellationToken::new());
        tasks.spawn(control.run(shutdown.clone()));
        let origin = Origin::directory("/models");
        let reconciler = Reconciler::new(handle.clone(), origin.clone());

        let first = declares(folder.path(), 1, "");
        assert_eq!(reconciler.reconcile(&first).await.expect("it applies").changed.len(), 1);
        assert_eq!(to_apply(&reconciler, &first).await, 0, "nothing has changed");
        fs_err::write(&model, b"another").expect("written");
        assert_eq!(to_apply(&reconciler, &first).await, 1, "another artifact");
        let second = declares(folder.path(), 2, "");
        reconciler.reconcile(&second).await.expect("it applies");
        assert_eq!(to_apply(&reconciler, &second).await, 0);
        let name = DeploymentName::new("iris").expect("a name");
        let stored = handle.get(&name).await.expect("it is there");
        assert_eq!(stored.deployment.spec.priority, 2, "another text");
        // The revision alone is no change, also for a process that remembers nothing.
        let revised = declares(folder.path(), 2, &format!(", annotations: {{{:?}: abc}}", super::super::REVISION));
        assert_eq!(to_apply(&reconciler, &revised).await, 0);
        let fresh = Reconciler::new(handle.clone(), origin.clone());
        assert_eq!(fresh.reconcile(&revised).await.expect("it applies"), Reconciled::default());
        assert_eq!(handle.get(&name).await.expect("it is there").rev, stored.rev);
        let request = DeleteRequest { origin, expect: None, ownership: Ownership::Respect };
        handle.delete(&name, request).await.expect("deleted");
        assert_eq!(to_apply(&reconciler, &second).await, 1, "deleted by somebody else");
        shutdown.cancel();
        tasks.join_all().await;
    }
}
