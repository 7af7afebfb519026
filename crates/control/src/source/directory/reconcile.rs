//! Making what is declared equal to what is in the folder.
//!
//! A file that cannot be understood changes nothing: what it declared when it was last understood stays. After a
//! restart nobody knows what such a file declared, so nothing that this process has not seen in a file is deleted until
//! every file is understood.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use berth_spec::{
    DeploymentName, Event, Origin, Time,
    event::Severity,
    manifest::{self, ManifestDeployment, ParseContext},
};
use futures::{FutureExt, StreamExt, stream};
use url::Url;

use super::scan::{self, Scanned, Text};
use crate::{
    handle::{self, ApplyOutcome, ApplyRequest, DeleteRequest, Error, Handle, ListRequest, Ownership},
    resolve::{self, Resolution},
};

/// Deployments that are handed over at once: enough for full transactions, few enough to hold in memory.
const HANDED: usize = 1_000;

/// Artifacts that are looked at at once. Halved, a first look at large ones takes longer; doubled, it only queues for
/// the threads that may block.
const LOOKS: usize = 16;

/// What is known of one file.
#[derive(Debug, Default)]
struct File {
    text: Option<Text>,
    /// Which reading of all that was the last to find another text.
    reading: u64,
    /// What it declared when it was last understood; `None`: never.
    good: Option<Vec<ManifestDeployment>>,
    /// What is wrong with it now.
    broken: bool,
}

/// A deployment that a file declares, and the reading that found it there.
struct Wanted {
    manifest: ManifestDeployment,
    reading: u64,
}

/// What an apply rested on: while that is the same there is nothing to apply.
#[derive(Debug, PartialEq, Eq)]
struct Basis {
    reading: u64,
    artifact: Resolution,
}

pub(super) struct Reconciler {
    folder: PathBuf,
    origin: Origin,
    handle: Handle,
    files: BTreeMap<PathBuf, File>,
    /// What the folder owns as far as is known; `None` before it was asked for.
    owned: Option<BTreeSet<DeploymentName>>,
    /// What was applied, and on what that rested.
    applied: BTreeMap<DeploymentName, Basis>,
    /// Counts files that were found to have another text.
    readings: u64,
    /// Names that were declared by a file since the start.
    seen: BTreeSet<DeploymentName>,
    /// Troubles that were told already.
    told: BTreeSet<String>,
}

impl Reconciler {
    pub(super) fn new(folder: PathBuf, origin: Origin, handle: Handle) -> Self {
        Self {
            folder,
            origin,
            handle,
            files: BTreeMap::new(),
            owned: None,
            applied: BTreeMap::new(),
            readings: 0,
            seen: BTreeSet::new(),
            told: BTreeSet::new(),
        }
    }

    /// One round. Gives the local artifacts that the manifests name.
    pub(super) async fn run(&mut self) -> Result<Vec<PathBuf>, Error> {
        if self.owned.is_none() {
            self.owned = Some(self.owned_before().await?);
        }
        let folder = self.folder.clone();
        let known: BTreeSet<PathBuf> = self.files.keys().cloned().collect();
        let scanned = match tokio::task::spawn_blocking(move || scan::scan(&folder, &known)).await {
            Ok(Ok(scanned)) => scanned,
            Ok(Err(error)) => {
                // A folder that is away (an unmounted disk) is not an empty one.
                let message = format!("{error}; nothing was changed");
                if !self.told.contains(&message) {
                    self.tell(None, "FolderUnreadable", message).await?;
                }
                return Ok(Vec::new());
            }
            Err(_stopping) => return Err(Error::Stopped),
        };
        let told = std::mem::take(&mut self.told);
        let complete = scanned.incomplete.is_none();
        let result = self.reconcile(scanned, &told).await;
        if !complete {
            self.told.extend(told);
        }
        result
    }

    async fn reconcile(&mut self, scanned: Scanned, told: &BTreeSet<String>) -> Result<Vec<PathBuf>, Error> {
        let mut troubles = Vec::new();
        if let Some(reason) = &scanned.incomplete {
            troubles.push((None, "FolderIncomplete", format!("{reason}; nothing is deleted")));
        }
        let incomplete = scanned.incomplete.is_some();
        self.take_in(scanned, &mut troubles);
        let wanted = self.wanted(&mut troubles);
        let artifacts =
            wanted.values().filter_map(|wanted| resolve::local_artifact(&wanted.manifest.spec.model)).collect();
        self.declare(&wanted, &mut troubles).await?;
        if !incomplete {
            self.delete(&wanted, &mut troubles).await?;
        }
        for (deployment, reason, message) in troubles {
            if told.contains(&message) {
                self.told.insert(message);
            } else {
                self.tell(deployment, reason, message).await?;
            }
        }
        Ok(artifacts)
    }

    /// What the store says that this folder declared in an earlier life.
    async fn owned_before(&self) -> Result<BTreeSet<DeploymentName>, Error> {
        let mut owned = BTreeSet::new();
        let mut request = ListRequest::default();
        loop {
            let page = self.handle.declared_by(&self.origin, request.clone()).await?;
            owned.extend(page.items);
            match page.next {
                Some(after) => request.after = Some(after),
                None => return Ok(owned),
            }
        }
    }

    /// Reads the manifests whose text changed.
    fn take_in(&mut self, scanned: Scanned, troubles: &mut Vec<Trouble>) {
        if scanned.incomplete.is_none() {
            let there: BTreeSet<&PathBuf> = scanned.files.iter().map(|(path, _)| path).collect();
            self.files.retain(|path, _| there.contains(path));
        }
        for (path, text) in scanned.files {
            let file = self.files.entry(path.clone()).or_default();
            if !file.broken && file.text.as_ref() == Some(&text) {
                continue;
            }
            match parse(&path, &text) {
                Ok(manifests) => {
                    file.good = Some(manifests);
                    file.broken = false;
                }
                Err(message) => {
                    file.broken = true;
                    let kept = if file.good.is_some() { "; what it declared before stays" } else { "" };
                    troubles.push((None, "ManifestInvalid", format!("{message}{kept}")));
                }
            }
            file.text = Some(text);
            self.readings += 1;
            file.reading = self.readings;
        }
    }

    /// What the files declare; where two declare the same, the first by path wins.
    fn wanted(&self, troubles: &mut Vec<Trouble>) -> BTreeMap<DeploymentName, Wanted> {
        let mut wanted: BTreeMap<DeploymentName, (&Path, Wanted)> = BTreeMap::new();
        for (path, file) in &self.files {
            for manifest in file.good.iter().flatten() {
                let name = &manifest.name;
                if let Some((first, _)) = wanted.get(name) {
                    let (first, second) = (first.display(), path.display());
                    let message = format!("{name} is declared in {first} and again in {second}: the first one counts");
                    troubles.push((Some(name.clone()), "DeclaredTwice", message));
                } else {
                    let found = Wanted { manifest: manifest.clone(), reading: file.reading };
                    wanted.insert(name.clone(), (path, found));
                }
            }
        }
        wanted.into_iter().map(|(name, (_, wanted))| (name, wanted)).collect()
    }

    async fn declare(
        &mut self,
        wanted: &BTreeMap<DeploymentName, Wanted>,
        troubles: &mut Vec<Trouble>,
    ) -> Result<(), Error> {
        let mut changed = self.changed(wanted).await?;
        while !changed.is_empty() {
            let part: Vec<_> = changed.drain(..changed.len().min(HANDED)).collect();
            let requests = part.iter().map(|(manifest, _)| {
                // The folder is the truth: it does not ask whether somebody else was there in between.
                let manifest = ManifestDeployment { resource_version: None, ..(*manifest).clone() };
                ApplyRequest::new(manifest, self.origin.clone())
            });
            let results = self.handle.apply_all(requests.collect()).await;
            for ((manifest, basis), result) in part.into_iter().zip(results) {
                let name = manifest.name.clone();
                self.applied.remove(&name);
                match result {
                    Ok(applied) => {
                        if !matches!(basis.artifact, Resolution::Missing { .. }) {
                            self.applied.insert(name.clone(), basis);
                        }
                        if applied.outcome != ApplyOutcome::Unchanged {
                            tracing::info!(
                                event = "manifest_applied",
                                deployment_id = %name,
                                outcome = applied.outcome.as_str(),
                                generation = applied.generation.0
                            );
                        }
                        for warning in applied.warnings {
                            troubles.push((Some(name.clone()), "ArtifactMissing", warning));
                        }
                        self.seen.insert(name.clone());
                        self.owned.get_or_insert_default().insert(name);
                    }
                    Err(Error::Stopped) => return Err(Error::Stopped),
                    Err(error) => troubles.push((Some(name), "NotApplied", error.to_string())),
                }
            }
        }
        Ok(())
    }

    /// What is to be applied: neither its text nor its artifact may be what they were when it last was, or somebody else
    /// has taken or deleted it since.
    async fn changed<'a>(
        &self,
        wanted: &'a BTreeMap<DeploymentName, Wanted>,
    ) -> Result<Vec<(&'a ManifestDeployment, Basis)>, Error> {
        let there = if self.applied.is_empty() { BTreeSet::new() } else { self.owned_before().await? };
        let looking = wanted.values().map(|Wanted { manifest, reading }| {
            let resolver = Arc::clone(&self.handle.resolver);
            async move {
                let artifact = resolver.resolve(&manifest.spec.model).await;
                (manifest, Basis { reading: *reading, artifact })
            }
            .boxed()
        });
        let looking: Vec<_> = looking.collect();
        let found: Vec<_> = stream::iter(looking).buffered(LOOKS).collect().await;
        let same = |(manifest, basis): &(&ManifestDeployment, Basis)| {
            there.contains(&manifest.name) && self.applied.get(&manifest.name) == Some(basis)
        };
        Ok(found.into_iter().filter(|found| !same(found)).collect())
    }

    /// Deletes what the folder owned and no longer declares.
    async fn delete(
        &mut self,
        wanted: &BTreeMap<DeploymentName, Wanted>,
        troubles: &mut Vec<Trouble>,
    ) -> Result<(), Error> {
        let unknown = self.files.values().any(|file| file.broken && file.good.is_none());
        let owned = self.owned.clone().unwrap_or_default();
        for name in owned.iter().filter(|name| !wanted.contains_key(*name)) {
            if unknown && !self.seen.contains(name) {
                continue;
            }
            let request = DeleteRequest { origin: self.origin.clone(), expect: None, ownership: Ownership::Respect };
            match self.handle.start_delete(name, request).await {
                // Not there, or taken over by somebody else: no longer ours.
                Ok(_) | Err(Error::NotFound(_) | Error::Owned { .. }) => {
                    tracing::info!(event = "manifest_removed", deployment_id = %name);
                    self.owned.get_or_insert_default().remove(name);
                    self.applied.remove(name);
                    self.seen.remove(name);
                }
                Err(Error::Stopped) => return Err(Error::Stopped),
                Err(error) => troubles.push((Some(name.clone()), "NotDeleted", error.to_string())),
            }
        }
        Ok(())
    }

    async fn tell(
        &mut self,
        deployment: Option<DeploymentName>,
        reason: &'static str,
        message: String,
    ) -> Result<(), handle::Error> {
        self.told.insert(message.clone());
        tracing::warn!(event = "manifest_trouble", reason, details = message);
        let at: Time = self.handle.now();
        let event = Event { at, severity: Severity::Warning, reason, message, deployment, worker: None };
        self.handle.note(event).await
    }
}

/// Something that somebody should look at.
type Trouble = (Option<DeploymentName>, &'static str, String);

fn parse(path: &Path, text: &Text) -> Result<Vec<ManifestDeployment>, String> {
    let text = text.as_ref().map_err(Clone::clone)?;
    let base = path.parent().and_then(|folder| Url::from_directory_path(folder).ok()).map(String::from);
    let context = ParseContext { file: path.display().to_string(), base, ..ParseContext::default() };
    manifest::parse(text, &context)
        .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;
    use tokio::task::JoinSet;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{driver, store::memory::MemoryStore};

    fn write(folder: &Path, priority: u8) {
        let text = format!(
            "apiVersion: berth.dev/v1\nkind: ModelDeployment\nmetadata: {{name: iris}}\nspec:\n  model: {{format: onnx, uri: \"file:model.onnx\"}}\n  priority: {priority}\n"
        );
        fs_err::write(folder.join("iris.yaml"), text).expect("written");
    }

    async fn to_apply(reconciler: &Reconciler) -> usize {
        let wanted = reconciler.wanted(&mut Vec::new());
        reconciler.changed(&wanted).await.expect("it answers").len()
    }

    #[tokio::test]
    async fn only_what_changed_is_applied_again() {
        let folder = tempfile::tempdir().expect("a folder");
        fs_err::write(folder.path().join("model.onnx"), b"one").expect("written");
        write(folder.path(), 1);
        let (control, handle) =
            driver::build(driver::Config::default(), Arc::new(MemoryStore::default()), &mut Registry::default());
        let (mut tasks, shutdown) = (JoinSet::new(), CancellationToken::new());
        tasks.spawn(control.run(shutdown.clone()));
        let origin = Origin::Directory(folder.path().display().to_string());
        let mut reconciler = Reconciler::new(folder.path().to_owned(), origin.clone(), handle.clone());

        reconciler.run().await.expect("it applies");
        assert_eq!(to_apply(&reconciler).await, 0, "nothing has changed");
        fs_err::write(folder.path().join("model.onnx"), b"another").expect("written");
        assert_eq!(to_apply(&reconciler).await, 1, "another artifact");
        write(folder.path(), 2);
        reconciler.run().await.expect("it applies");
        assert_eq!(to_apply(&reconciler).await, 0);
        let name = DeploymentName::new("iris").expect("a name");
        assert_eq!(handle.get(&name).await.expect("it is there").deployment.spec.priority, 2, "another text");
        let request = DeleteRequest { origin, expect: None, ownership: Ownership::Respect };
        handle.delete(&name, request).await.expect("deleted");
        assert_eq!(to_apply(&reconciler).await, 1, "deleted by somebody else");
        shutdown.cancel();
        tasks.join_all().await;
    }
}
