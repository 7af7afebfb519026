//! A cache of packages that builds share, and its bound. uv and npm do not let others remove single packages from theirs, so it is
//! cleared whole while no step uses it; later builds fetch what they need again.

use std::{
    io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use tokio::sync::{RwLock, RwLockReadGuard};

use super::{sandbox::fresh_folder, size_of};

/// Bytes of one cache: more than the largest build takes (6 GiB), and little of the disk of a server that builds.
pub(super) const MAX_CACHE_BYTES: u64 = 10 << 30;

/// A folder of the cache that `uv python find` keeps files in, also without a build: a few interpreters.
const FETCHED_FOLDER: &str = "fetched";

/// The cache of one package manager.
#[derive(Debug)]
pub(super) struct PackageCache {
    folder: PathBuf,
    /// Folder that cleared packages are moved to, and removed from.
    cleared: PathBuf,
    bound: u64,
    /// Held by steps while they use the cache.
    steps: RwLock<()>,
    /// True if a step has used the cache since it was measured.
    is_used: AtomicBool,
}

impl PackageCache {
    /// The cache of `manager` below the folder of builds. Blocks.
    pub(super) fn open(root: &Path, manager: &str, bound: u64) -> io::Result<Self> {
        let folder = root.join("packages").join(manager);
        fs_err::create_dir_all(&folder)?;
        let cleared = root.join("work").join(format!("cleared-{manager}"));
        // The process before may have left it too large.
        Ok(Self { folder, cleared, bound, steps: RwLock::default(), is_used: AtomicBool::new(true) })
    }

    pub(super) fn folder(&self) -> &PathBuf {
        &self.folder
    }

    /// Use by a step: nothing is removed until it is dropped.
    pub(super) async fn begin_step(&self) -> RwLockReadGuard<'_, ()> {
        let step = self.steps.read().await;
        self.is_used.store(true, Relaxed);
        step
    }

    /// Clears the cache where it holds more than its bound, unless a step uses it. What fails is tried with the next sweep. Blocks.
    pub(super) fn sweep(&self) -> io::Result<()> {
        // A step that runs fills it further: it is measured after the end. One that begins now says so after this.
        match self.steps.try_write() {
            Ok(_alone) if self.is_used.swap(false, Relaxed) => {}
            _ => return Ok(()),
        }
        self.measure().inspect_err(|_| self.is_used.store(true, Relaxed))
    }

    fn measure(&self) -> io::Result<()> {
        let bytes: u64 = self.packages()?.iter().map(|folder| size_of(folder)).sum();
        if bytes <= self.bound {
            return Ok(());
        }
        fresh_folder(&self.cleared)?;
        let Ok(alone) = self.steps.try_write() else { return Ok(()) };
        // Steps wait for this, and not for the removal.
        for folder in self.packages()? {
            let to = self.cleared.join(folder.file_name().unwrap_or_default());
            fs_err::rename(&folder, to)?;
        }
        drop(alone);
        tracing::info!(
            event = "function_packages_cleared",
            cache = %self.folder.display(),
            bytes,
            bound = self.bound,
            "builds fetch packages again"
        );
        fs_err::remove_dir_all(&self.cleared)
    }

    /// Folders of packages, and of what is known of them.
    fn packages(&self) -> io::Result<Vec<PathBuf>> {
        let mut folders = Vec::new();
        for entry in fs_err::read_dir(&self.folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() && entry.file_name() != FETCHED_FOLDER {
                folders.push(entry.path());
            }
        }
        Ok(folders)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(root: &Path, bound: u64) -> PackageCache {
        fs_err::create_dir_all(root.join("work")).expect("a folder");
        let cache = PackageCache::open(root, "uv", bound).expect("a cache");
        for folder in ["wheels/a", "archive", FETCHED_FOLDER] {
            fs_err::create_dir_all(cache.folder.join(folder)).expect("a folder");
            fs_err::write(cache.folder.join(folder).join("file"), [0_u8; 40]).expect("written");
        }
        fs_err::write(cache.folder.join(".lock"), "").expect("written");
        cache
    }

    fn left(cache: &PackageCache) -> Vec<String> {
        let entries = fs_err::read_dir(&cache.folder).expect("a folder").flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn a_cache_over_its_bound_is_cleared_once_no_step_uses_it() {
        let root = tempfile::tempdir().expect("a folder");
        let cache = cache(root.path(), 79);
        let (one, other) = (cache.begin_step().await, cache.begin_step().await);
        drop(one);
        cache.sweep().expect("left as it is");
        assert_eq!(left(&cache).len(), 4, "another step uses it");
        drop(other);
        cache.sweep().expect("cleared");
        assert_eq!(left(&cache), [".lock", FETCHED_FOLDER]);
        assert!(!cache.cleared.exists());
    }

    #[tokio::test]
    async fn a_cache_within_its_bound_stays_and_is_measured_after_a_step() {
        let root = tempfile::tempdir().expect("a folder");
        let cache = cache(root.path(), 80);
        cache.sweep().expect("measured");
        fs_err::write(cache.folder.join("archive/more"), [0_u8; 1]).expect("written");
        cache.sweep().expect("not measured");
        assert_eq!(left(&cache).len(), 4, "nobody has used it");
        drop(cache.begin_step().await);
        cache.sweep().expect("cleared");
        assert_eq!(left(&cache), [".lock", FETCHED_FOLDER]);
    }
}
