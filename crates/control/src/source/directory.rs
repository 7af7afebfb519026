//! A folder of manifests: what is in it is declared, what leaves it is deleted.
//!
//! ```text
//!            ┌── notify: something changed ──▶ wait until it is quiet ──┐
//! Waiting ───┤                                                          ├──▶ scan ──▶ Snapshot ──▶ apply ──▶ Waiting
//!            └── RESCAN has passed, or a person asks ───────────────────┘
//! ```
//! Notifications only make it sooner: the slow timer finds everything, also on file systems that do not notify. Local
//! artifacts are looked at each time, so a replaced model file is a new revision even though no manifest changed.

mod manifests;
mod scan;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use berth_spec::{Origin, event::Severity};
use futures::{FutureExt, future::BoxFuture};
use notify::{EventKind, RecursiveMode, Watcher};
use tokio::sync::mpsc;

use super::{Context, Counts, Problem, Request, Requests, Source, SourceState, reconcile::is_disabled};
use crate::handle::Error;
use manifests::FolderManifests;

/// Interval between scans without a notification, for file systems that do not notify.
const RESCAN: Duration = Duration::from_secs(30);

/// Quiet time before a change is read, so that files are seldom read while they are written.
const QUIET_TIME: Duration = Duration::from_millis(100);

/// Longest wait for a folder that is never quiet: a copy of many files is read in a few pieces, and nobody waits long.
const QUIET_AT_MOST: Duration = Duration::from_secs(2);

/// A folder that cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("the folder {} cannot be served: {reason}", path.display())]
pub struct Unreadable {
    /// The folder as it was given.
    pub path: PathBuf,
    /// The error of the system, or what is to be done.
    pub reason: String,
}

/// The source `directory`: a folder of manifests on this machine, watched for changes.
#[derive(Debug, Clone)]
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Names a folder; it must be there.
    ///
    /// # Errors
    /// [`Unreadable`] if it is not a folder that can be read.
    pub fn open(path: &Path) -> Result<Self, Unreadable> {
        let failed = |error: std::io::Error| {
            let reason = match error.kind() {
                std::io::ErrorKind::NotFound => "it is not there: make it, or name another".to_owned(),
                _ => error.to_string(),
            };
            Unreadable { path: path.to_owned(), reason }
        };
        let path = fs_err::canonicalize(path).map_err(failed)?;
        fs_err::read_dir(&path).map_err(failed)?;
        Ok(Self { path })
    }
}

impl Source for Directory {
    fn kind(&self) -> &'static str {
        Origin::DIRECTORY
    }

    fn origin(&self) -> Origin {
        Origin::directory(&self.path.display().to_string())
    }

    fn run(self: Arc<Self>, context: Context, requests: Requests) -> BoxFuture<'static, Result<(), Error>> {
        let following = FollowedFolder {
            folder: self.path.clone(),
            context,
            manifests: FolderManifests::default(),
            told: BTreeSet::new(),
            watched: WatchedFolders::default(),
        };
        following.run(requests).boxed()
    }
}

struct FollowedFolder {
    folder: PathBuf,
    context: Context,
    manifests: FolderManifests,
    /// Problems that were told already.
    told: BTreeSet<String>,
    watched: WatchedFolders,
}

impl FollowedFolder {
    async fn run(mut self, mut requests: Requests) -> Result<(), Error> {
        let (changed, mut changes) = mpsc::channel(1);
        let mut watcher = watcher(changed);
        loop {
            if !requests.is_paused() {
                match self.round(watcher.as_mut()).await {
                    Ok(()) => {}
                    Err(Error::Stopped) => return Err(Error::Stopped),
                    Err(error) => self.failed(&error.to_string()),
                }
            }
            let shutdown = self.context.shutdown().clone();
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                () = tokio::time::sleep(RESCAN) => {}
                Some(()) = changes.recv() => quiet(&mut changes).await,
                request = requests.next() => if request == Request::Pause {
                    tracing::debug!(event = "folder_paused", folder = %self.folder.display());
                },
            }
        }
    }

    fn failed(&self, problem: &str) {
        tracing::warn!(event = "folder_unread", problem, folder = %self.folder.display(), "the folder is tried again");
        let next = self.context.now() + RESCAN;
        self.context.update_status(|status| {
            (status.state, status.problem) = (SourceState::Retrying, Some(problem.to_owned()));
            status.next_check = Some(next);
        });
    }

    /// Reads the folder and declares what it wants.
    async fn round(&mut self, watcher: Option<&mut notify::RecommendedWatcher>) -> Result<(), Error> {
        let (folder, known) = (self.folder.clone(), self.manifests.known());
        let scanned = match tokio::task::spawn_blocking(move || scan::scan(&folder, &known)).await {
            Ok(Ok(scanned)) => scanned,
            Ok(Err(error)) => {
                // A folder that is away (an unmounted disk) is not an empty one.
                let message = format!("{error}; nothing was changed");
                self.failed(&message);
                self.tell(Problem { deployment: None, reason: "FolderUnreadable", message }).await;
                return Ok(());
            }
            Err(_stopping) => return Err(Error::Stopped),
        };
        let complete = scanned.incomplete.is_none();
        let (snapshot, mut problems) = self.manifests.take_in(scanned);
        if let Some(watcher) = watcher {
            self.watched.extend(watcher, &self.folder, &FolderManifests::artifacts(&snapshot));
        }
        let done = self.context.apply(&snapshot).await?;
        let conflicts: Vec<String> = done.problems.iter().map(|problem| problem.message.clone()).collect();
        problems.extend(done.problems);
        problems.extend(done.warnings);
        self.show(&snapshot, conflicts, &problems);
        let told = std::mem::take(&mut self.told);
        for problem in problems {
            if told.contains(&problem.message) {
                self.told.insert(problem.message);
            } else {
                self.tell(problem).await;
            }
        }
        if !complete {
            self.told.extend(told);
        }
        Ok(())
    }

    fn show(&self, snapshot: &super::Snapshot, conflicts: Vec<String>, problems: &[Problem]) {
        let (now, revision) = (self.context.now(), snapshot.revision.clone());
        let disabled = snapshot.deployments.iter().filter(|manifest| is_disabled(manifest)).count();
        let lines: Vec<&str> = problems.iter().map(|problem| problem.message.as_str()).collect();
        self.context.update_status(|status| {
            if status.revision.as_ref() != Some(&revision) {
                status.applied_at = Some(now);
            }
            status.state = SourceState::Synced;
            (status.seen, status.revision) = (Some(revision.clone()), Some(revision));
            (status.checked_at, status.next_check) = (Some(now), Some(now + RESCAN));
            status.counts = Counts { deployments: snapshot.deployments.len(), disabled };
            status.conflicts = conflicts;
            status.problem = (!lines.is_empty()).then(|| lines.join("\n"));
        });
    }

    /// Tells people, once.
    async fn tell(&mut self, problem: Problem) {
        let Problem { deployment, reason, message } = problem;
        if self.told.insert(message.clone()) {
            tracing::warn!(event = "manifest_trouble", reason, details = message);
            self.context.event(Severity::Warning, reason, message, deployment, None).await;
        }
    }
}

/// Something changed: waits until nothing has for a while.
async fn quiet(changes: &mut mpsc::Receiver<()>) {
    let more = async { while let Ok(Some(())) = tokio::time::timeout(QUIET_TIME, changes.recv()).await {} };
    // Waited for long enough: what is still being written is found by the next notification.
    let _never_quiet = tokio::time::timeout(QUIET_AT_MOST, more).await.is_err();
}

/// `None`: this system cannot notify; the timer has to do.
fn watcher(changed: mpsc::Sender<()>) -> Option<notify::RecommendedWatcher> {
    let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Reading the folder is an event too, and must not be a reason to read it.
        if event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_))) {
            return;
        }
        // A full channel has a notification in it already.
        let _already_notified = changed.try_send(()).is_err();
    });
    watcher.map_err(|error| tracing::warn!(event = "folder_unwatched", %error, "folders cannot be watched: they are read every 30 s")).ok()
}

/// Artifacts outside of the folder whose folders are watched as well; the timer finds the rest.
const WATCHED_ARTIFACTS: usize = 1_000;

#[derive(Default)]
struct WatchedFolders {
    folders: BTreeSet<PathBuf>,
}

impl WatchedFolders {
    fn extend(&mut self, watcher: &mut notify::RecommendedWatcher, folder: &Path, artifacts: &[PathBuf]) {
        self.add(watcher, folder, RecursiveMode::Recursive);
        for parent in artifacts.iter().filter_map(|artifact| artifact.parent()) {
            if !parent.starts_with(folder) && self.folders.len() < WATCHED_ARTIFACTS {
                self.add(watcher, parent, RecursiveMode::NonRecursive);
            }
        }
    }

    fn add(&mut self, watcher: &mut notify::RecommendedWatcher, folder: &Path, mode: RecursiveMode) {
        if self.folders.contains(folder) {
            return;
        }
        match watcher.watch(folder, mode) {
            Ok(()) => {
                self.folders.insert(folder.to_owned());
            }
            Err(error) => {
                tracing::debug!(event = "folder_unwatched", %error, folder = %folder.display(), "not watched; read every 30 s")
            }
        }
    }
}
