//! A folder of manifests: what is in it is declared, what leaves it is deleted.
//!
//! ```text
//!            ┌── notify: something changed ──▶ wait until it is quiet ──┐
//! Waiting ───┤                                                          ├──▶ scan ▶ apply ▶ delete ──▶ Waiting
//!            └── RESCAN has passed ─────────────────────────────────────┘
//! ```
//! Notifications only make it sooner: the slow timer finds everything, also on file systems that do not notify. Local
//! artifacts are looked at each time, so a replaced model file is a new revision even though no manifest changed.

mod reconcile;
mod scan;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use berth_spec::{Class, Origin};
use notify::{EventKind, RecursiveMode, Watcher};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::handle::{self, Handle};
use reconcile::Reconciler;

/// How often the folder is read though nothing was notified. Halved, it costs twice the reads; doubled, a change on a
/// file system that does not notify is found twice as late.
const RESCAN: Duration = Duration::from_secs(30);

/// How long nothing must happen before a change is read. Halved, files are more often read while they are written;
/// doubled, every change takes effect that much later.
const QUIET: Duration = Duration::from_millis(100);

/// How long a folder that never is quiet is waited for.
const QUIET_AT_MOST: Duration = Duration::from_secs(2);

/// Why a folder cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("the folder {} cannot be served: {reason}", path.display())]
    Folder {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The control plane did not take it.
    #[error(transparent)]
    Control(#[from] handle::Error),
}

impl Error {
    /// What it means for whoever gets it.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Folder { .. } => Class::Invalid,
            Self::Control(error) => error.class(),
        }
    }
}

/// A folder of manifests.
#[derive(Debug, Clone)]
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Names a folder; it must be there.
    ///
    /// # Errors
    /// [`Error::Folder`] if it is not a folder that can be read.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let failed = |error: std::io::Error| Error::Folder { path: path.to_owned(), reason: error.to_string() };
        let path = fs_err::canonicalize(path).map_err(failed)?;
        fs_err::read_dir(&path).map_err(failed)?;
        Ok(Self { path })
    }

    /// The owner of what is declared in it.
    #[must_use]
    pub fn origin(&self) -> Origin {
        Origin::Directory(self.path.display().to_string())
    }

    /// Keeps what is declared equal to what is in the folder until `shutdown`. Deployments stay when it ends.
    ///
    /// # Errors
    /// [`Error::Control`] when the control plane has stopped; everything else is told in events and tried again.
    pub async fn run(self, handle: Handle, shutdown: CancellationToken) -> Result<(), Error> {
        let (changed, mut changes) = mpsc::channel(1);
        let mut watcher = watcher(changed);
        let mut reconciler = Reconciler::new(self.path.clone(), self.origin(), handle);
        let mut watched = Watched::default();
        loop {
            let artifacts = match reconciler.run().await {
                Ok(artifacts) => artifacts,
                Err(handle::Error::Stopped) if shutdown.is_cancelled() => return Ok(()),
                Err(handle::Error::Stopped) => return Err(handle::Error::Stopped.into()),
                Err(error) => {
                    tracing::warn!(event = "folder_unread", %error, folder = %self.path.display(), "the folder is tried again");
                    Vec::new()
                }
            };
            if let Some(watcher) = &mut watcher {
                watched.extend(watcher, &self.path, &artifacts);
            }
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                () = tokio::time::sleep(RESCAN) => {}
                Some(()) = changes.recv() => quiet(&mut changes).await,
            }
        }
    }
}

/// Something changed: waits until nothing has for a while.
async fn quiet(changes: &mut mpsc::Receiver<()>) {
    let more = async { while let Ok(Some(())) = tokio::time::timeout(QUIET, changes.recv()).await {} };
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
struct Watched {
    folders: std::collections::BTreeSet<PathBuf>,
}

impl Watched {
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
