//! The last routes, kept in a file: a gateway that starts while no controller answers serves by them.
//!
//! ```text
//!  clean ──change──▶ due ──pause over──▶ writing (aside, to a new file that takes the old one's place) ──▶ clean
//!                     ▲                     │ changed meanwhile
//!                     └─────────────────────┘
//! ```
//!
//! Routes that are read are as old as the last write; the controller's first word replaces all of them. A file that cannot be read
//! is said so and left alone: routes come from the controller.

mod format;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use berth_spec::{RouteChange, WorkerId};
use fs_err as fs;
use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::{Instant, sleep_until, timeout},
};

use crate::routes::{Applier, Routes};

/// The shortest time between a change and its write: a gateway that dies comes back with routes that are hardly older.
const MIN_WRITE_PAUSE: Duration = Duration::from_secs(2);

/// The pause after a write as a multiple of the time that it took, at least: where there are many routes, writing them
/// takes at most a twentieth of one core.
const WRITE_PAUSE_FACTOR: u32 = 20;

/// The longest that the last write may take when the gateway ends: a slow disk must not hold up the end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Keeps the last routes in a file, so that a gateway that starts without a controller can serve by them.
pub(crate) struct RouteCache(Option<RouteFile>);

/// The file, and the writes to it.
struct RouteFile {
    path: PathBuf,
    me: WorkerId,
    due: Option<Instant>,
    pause: Duration,
    /// The write that goes on. Its result is the time that it took.
    writing: Option<JoinHandle<Duration>>,
}

impl RouteCache {
    /// A cache that keeps nothing, where no file is named.
    pub(crate) fn off() -> Self {
        Self(None)
    }

    /// Reads what was kept, and puts it in force.
    pub(crate) async fn open(path: PathBuf, applier: &mut Applier) -> Self {
        let read = {
            let path = path.clone();
            spawn_blocking(move || read(&path)).await
        };
        match read {
            Ok(Ok(Some(kept))) => {
                let routes = kept.set.len();
                tracing::info!(
                    event = "routes_restored",
                    routes,
                    "serving by the saved routes until a controller answers"
                );
                applier.restore(kept);
            }
            Ok(Ok(None)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "cannot read the saved routes; waiting for a controller"),
            Err(_) => tracing::error!("routes: reading the last ones panicked"),
        }
        let me = applier.me().clone();
        Self(Some(RouteFile { path, me, due: None, pause: MIN_WRITE_PAUSE, writing: None }))
    }

    /// Notes that routes have changed, so that [`due`](Self::due) resolves after a pause.
    pub(crate) fn changed(&mut self, now: Instant) {
        if let Some(file) = &mut self.0 {
            file.due.get_or_insert(now + file.pause);
        }
    }

    /// Resolves when they should be written.
    pub(crate) async fn due(&mut self) {
        let Some(file) = &mut self.0 else { return std::future::pending().await };
        file.written().await;
        match file.due {
            Some(due) => sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Begins to write the routes on a blocking thread. A failure is logged.
    pub(crate) fn write(&mut self, routes: &Arc<Routes>) {
        if let Some(file) = &mut self.0 {
            file.due = None;
            let (path, me, routes) = (file.path.clone(), file.me.clone(), Arc::clone(routes));
            file.writing = Some(spawn_blocking(move || {
                let started = std::time::Instant::now();
                if let Err(error) = write(&path, &format::encode(&routes, &me)) {
                    tracing::warn!(%error, "cannot save the routes");
                }
                started.elapsed()
            }));
        }
    }

    /// Writes what has changed since the last write.
    pub(crate) async fn close(&mut self, routes: &Arc<Routes>) {
        if self.0.as_ref().is_some_and(|file| file.due.is_some()) {
            self.finish().await;
            self.write(routes);
        }
        self.finish().await;
    }

    async fn finish(&mut self) {
        if let Some(file) = &mut self.0
            && timeout(CLOSE_TIMEOUT, file.written()).await.is_err()
        {
            tracing::warn!("routes: keeping the last ones takes too long; the file is older");
        }
    }
}

impl RouteFile {
    /// Waits for the write that goes on.
    async fn written(&mut self) {
        if let Some(writing) = &mut self.writing {
            match writing.await {
                Ok(took) => self.pause = MIN_WRITE_PAUSE.max(took * WRITE_PAUSE_FACTOR),
                Err(_) => tracing::error!("routes: keeping the last ones panicked"),
            }
            self.writing = None;
        }
    }
}

/// The content of a file; `None`: there is none.
fn read(path: &Path) -> io::Result<Option<RouteChange>> {
    match fs::read(path) {
        Ok(bytes) => format::decode(&bytes)
            .map(Some)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// All or nothing: a reader finds the old file or the new one.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use io::Write as _;
    let new = path.with_extension("new");
    let mut file = fs::File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    drop(file);
    fs::rename(&new, path)
}
