//! Gets what a load needs onto this machine: a card's code and environment, the artifact, and its configuration.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use berth_spec::{OpaqueModel, PinnedCard, Revision, RevisionId, residency::Preparing};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    effects::{Completion, DriverUpdate, EffectRunner, ReplicaResources, complete},
    telemetry::millis,
};
use crate::{
    agent::{Event, of_deployment},
    artifacts::{Artifact, Artifacts, FetchRequest, Listener, Pin, Source},
    fault::Fault,
    prepare::{BlockedDependencies, Outcome, Prepared, PreparedModel, Preparer},
};

/// The artifacts fetched for a load.
pub(super) struct Fetched {
    pub(super) artifact: Pin,
    pub(super) config: Option<(Artifact, Pin)>,
}

impl EffectRunner {
    pub(super) fn prepare(&mut self, revision: Arc<Revision>, ticket: u64, blocked: BlockedDependencies) {
        let id = revision.id.clone();
        let cancel = self.begin(&revision, ticket);
        let Some(card) = revision.card.clone() else { return };
        let (preparer, completions, metrics) =
            (Arc::clone(&self.deps.preparer), self.completions.clone(), self.metrics().clone());
        let (begun, correlation_id) = (Instant::now(), self.commands.of(&id));
        let artifacts = Arc::clone(&self.deps.artifacts);
        // Its packages are listed in the artifact, which is fetched for that. The fetch to come finds it here.
        let first = card.own_requirements().map(|_| FetchRequest::artifact_of(&revision, correlation_id.clone()));
        self.tasks.spawn(async move {
            let steps = steps(&completions, &id, ticket, correlation_id.clone());
            let work = async {
                match &first {
                    Some(request) => {
                        Box::pin(after_fetch(&preparer, &artifacts, request, &card, blocked, &steps)).await
                    }
                    None => preparer.prepare(&card, blocked, &steps).await,
                }
            };
            let Outcome { result, outcomes } = tokio::select! {
                outcome = work => outcome,
                () = cancel.cancelled() => return,
            };
            let (size, count) = preparer.environments();
            metrics.environments(size, count);
            let (update, result) = match result {
                Ok(prepared) => {
                    metrics.phase("prepare", millis(begun.elapsed()));
                    tracing::debug!(
                        event = "model_prepared",
                        deployment_id = %id.deployment(),
                        revision = %id,
                        correlation_id,
                        duration_ms = millis(begun.elapsed()),
                    );
                    (DriverUpdate::PreparedModel(id.clone(), ticket, prepared), Ok(()))
                }
                Err(miss) => (DriverUpdate::Nothing, Err(miss)),
            };
            complete(&completions, Event::Prepared { revision: id, ticket, result, outcomes }, update).await;
        });
    }

    pub(super) fn fetch(&mut self, revision: Arc<Revision>, ticket: u64) {
        let id = revision.id.clone();
        let cancel = match self.slots.get_mut(&id).filter(|slot| slot.prepared.is_some()) {
            Some(slot) => {
                slot.ticket = ticket;
                slot.cancel.insert(CancellationToken::new()).clone()
            }
            None => self.begin(&revision, ticket),
        };
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.fetching = Some(Instant::now());
        }
        let correlation_id = self.commands.of(&id);
        let request = FetchRequest::artifact_of(&revision, correlation_id.clone());
        let config = FetchRequest::configuration_of(&revision, correlation_id.clone());
        tracing::debug!(
            event = "artifact_download_started",
            deployment_id = %id.deployment(),
            artifact_path = request.shown(),
            correlation_id,
        );
        let (artifacts, completions) = (Arc::clone(&self.deps.artifacts), self.completions.clone());
        let opaque = self.deps.runtimes.iter().find(|runtime| runtime.info().takes(&revision.format));
        let found = OpaqueModel::is_one(&revision.uri) || opaque.is_some_and(|runtime| runtime.is_opaque());
        let opaque = found.then(|| Artifact::opaque(&revision));
        self.tasks.spawn(async move {
            if let Some(artifact) = opaque {
                let fetched = Event::Fetched { revision: id, ticket, result: Ok(artifact) };
                return complete(&completions, fetched, DriverUpdate::Nothing).await;
            }
            let listener = progress(&completions, &id, ticket);
            let fetched = tokio::select! {
                fetched = all(&artifacts, &request, config.as_ref(), listener) => fetched,
                () = cancel.cancelled() => return,
            };
            let (update, result) = match fetched {
                Ok((artifact, fetched)) => (DriverUpdate::Fetched(id.clone(), ticket, fetched), Ok(artifact)),
                Err(fault) => (DriverUpdate::Nothing, Err(fault)),
            };
            complete(&completions, Event::Fetched { revision: id, ticket, result }, update).await;
        });
    }

    /// A load begins: a slot for it, and what ends it.
    fn begin(&mut self, revision: &Revision, ticket: u64) -> CancellationToken {
        let id = &revision.id;
        let old = of_deployment(&self.slots, id.deployment())
            .find(|(other, slot)| *other != id && slot.callable.is_some())
            .map(|(_, slot)| slot.version.clone());
        let cancel = CancellationToken::new();
        let slot = ReplicaResources {
            ticket,
            version: revision.version.clone(),
            begun: Some(Instant::now()),
            reload: old.is_some(),
            cancel: Some(cancel.clone()),
            ..ReplicaResources::default()
        };
        self.slots.insert(id.clone(), slot);
        let correlation_id = self.commands.of(id);
        match old {
            Some(old_version) => tracing::info!(
                event = "model_reload_started",
                deployment_id = %id.deployment(),
                old_version,
                new_version = revision.version,
                revision = %id,
                correlation_id,
            ),
            None => tracing::info!(
                event = "model_load_started",
                deployment_id = %id.deployment(),
                model_version = revision.version,
                revision = %id,
                correlation_id,
            ),
        }
        cancel
    }
}

/// The artifact, and the configuration if there is one.
async fn all(
    artifacts: &Artifacts,
    request: &FetchRequest,
    config: Option<&FetchRequest>,
    listener: Listener,
) -> Result<(Artifact, Fetched), Fault> {
    let (artifact, pin) = artifacts.get(request, listener).await?;
    let config = match config {
        Some(config) => Some(artifacts.get(config, Arc::new(|_, _| ())).await?),
        None => None,
    };
    Ok((artifact, Fetched { artifact: pin, config }))
}

/// Prepares a card whose artifact lists its packages.
async fn after_fetch(
    preparer: &Preparer,
    artifacts: &Artifacts,
    request: &FetchRequest,
    card: &Arc<PinnedCard>,
    blocked: BlockedDependencies,
    tell: &(dyn Fn(Preparing) + Send + Sync),
) -> Outcome {
    tell(Preparing::Artifact);
    let (artifact, pin) = match artifacts.get(request, Arc::new(|_, _| ())).await {
        Ok(found) => found,
        Err(fault) => return Outcome { result: Err(fault.into()), outcomes: Vec::new() },
    };
    let Outcome { result, outcomes } = preparer.prepare_for(card, Some(&artifact.source), blocked, tell).await;
    Outcome { result: result.map(|prepared| prepared.keeping(Arc::new(pin))), outcomes }
}

/// Reports the steps of a preparation; a step is dropped while the agent is busy.
fn steps(
    completions: &mpsc::Sender<Completion>,
    id: &RevisionId,
    ticket: u64,
    correlation_id: Option<String>,
) -> impl Fn(Preparing) + Send + Sync + use<> {
    let (completions, id) = (completions.clone(), id.clone());
    move |step| {
        tracing::debug!(
            event = "model_preparation_step",
            deployment_id = %id.deployment(),
            step = step.as_str(),
            correlation_id,
        );
        let _ = completions.try_send(Completion::of(Event::Preparing { revision: id.clone(), ticket, step }));
    }
}

/// Reports progress; dropped while the agent is busy.
fn progress(completions: &mpsc::Sender<Completion>, id: &RevisionId, ticket: u64) -> Listener {
    let (completions, id) = (completions.clone(), id.clone());
    Arc::new(move |done, total| {
        let _ = completions.try_send(Completion::of(Event::Progress { revision: id.clone(), ticket, done, total }));
    })
}

/// Folders in which a card's files have their own names: libraries tell a format by its ending, and the cache names files
/// by their content.
#[derive(Debug)]
pub(super) struct LoadDirs {
    root: PathBuf,
    count: AtomicU64,
}

impl LoadDirs {
    /// Empties the place: what lies there is of models that went with their process. Blocks.
    pub(super) fn open(root: PathBuf) -> Result<Self, Fault> {
        let disk = |error: std::io::Error| Fault::disk(&error);
        match fs_err::remove_dir_all(&root) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(disk(error)),
            _ => fs_err::create_dir_all(&root).map_err(disk)?,
        }
        Ok(Self { root: fs_err::canonicalize(root).map_err(disk)?, count: AtomicU64::new(0) })
    }

    /// Puts together what a card is loaded with, and the artifact under its own name. Blocks for a moment.
    pub(super) fn equip(
        &self,
        prepared: PreparedModel,
        revision: &Revision,
        artifact: &Source,
        fetched: Fetched,
    ) -> Result<(Source, Prepared), Fault> {
        let disk = |error: std::io::Error| Fault::disk(&error);
        let folder = Folder(self.root.join(self.count.fetch_add(1, Ordering::Relaxed).to_string()));
        fs_err::create_dir(&folder.0).map_err(disk)?;
        let place = |uri: &str, file: &Path, under: &str| {
            let room = folder.0.join(under);
            let place = room.join(file_name(uri));
            // The cache may have been given a relative path, and a link is read from where it lies.
            let file = fs_err::canonicalize(file)?;
            fs_err::create_dir(&room)?;
            fs_err::os::unix::fs::symlink(file, &place).map(|()| place)
        };
        let from = artifact.path().map_err(Fault::internal)?;
        let path = place(&revision.uri, from, "artifact").map_err(disk)?;
        let path = if matches!(artifact, Source::Folder(_)) { Source::Folder(path) } else { Source::File(path) };
        let uri = revision.card.as_ref().and_then(|card| card.card.artifacts.config_path.as_deref());
        let config = match fetched.config.as_ref().zip(uri) {
            Some(((config, _), uri)) => {
                Some(place(uri, config.source.path().map_err(Fault::internal)?, "config").map_err(disk)?)
            }
            None => None,
        };
        let pins = fetched.config.map(|(_, pin)| pin);
        Ok((path, prepared.with(config, vec![Arc::new(folder), Arc::new(fetched.artifact), Arc::new(pins)])))
    }
}

/// A folder that goes with the model.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed goes at the next start.
        let _ = fs_err::remove_dir_all(&self.0);
    }
}

/// The last part of a location, as far as it is the name of a file.
fn file_name(uri: &str) -> String {
    /// Characters. Longer names are cut at their beginning: the ending says what it is.
    const LONGEST: usize = 100;
    let path = uri.split(['?', '#']).next().unwrap_or_default();
    let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let name: String = last.chars().map(plain).collect();
    let name = &name[name.len().saturating_sub(LONGEST)..];
    match name.trim_start_matches('.') {
        "" => "artifact".to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_keep_their_names() {
        for (uri, name) in [
            ("s3://bucket/v1/model.joblib", "model.joblib"),
            ("https://h/a/m.pt?sig=s/x#f", "m.pt"),
            ("gs://b/folder/", "folder"),
            ("file:///x/..", "artifact"),
            ("s3://b/with blank%20", "with_blank_20"),
        ] {
            assert_eq!(file_name(uri), name, "{uri}");
        }
        assert_eq!(file_name(&format!("s3://b/{}.json", "x".repeat(300))).len(), 100);
    }
}
