//! The index of the cache: sizes, pins, and the order of eviction. Looks at the disk only at the start and when a
//! download ends.

use std::{
    any::Any,
    collections::BTreeMap,
    ffi::OsStr,
    fs::Metadata,
    io,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use berth_spec::Digest;

use crate::artifacts::partial;

/// The time that a broken download is kept for the next attempt: a long weekend, and then it gives up its disk space.
const PARTIAL_LIFE: Duration = Duration::from_secs(7 * 24 * 3600);

/// The files and leftovers in the cache's folder, and the bytes that they and downloads under way take.
#[derive(Default)]
pub(super) struct CacheIndex {
    pub(super) files: BTreeMap<Digest, CachedFile>,
    /// Bytes of `files`.
    pub(super) stored: u64,
    /// The leftovers of broken downloads, by the key of their location; not those under way.
    pub(super) broken: BTreeMap<String, BrokenDownload>,
    /// Bytes promised to downloads under way.
    pub(super) reserved: u64,
}

impl CacheIndex {
    /// Takes in what broken downloads left in `dir`. What is none of ours stays where it is and is not counted, here
    /// and below.
    pub(super) fn find_left(&mut self, dir: &Path) -> io::Result<()> {
        for file in fs_err::read_dir(dir)?.flatten() {
            let path = file.path();
            let (Some(key), Some("part")) = (stem(&path), path.extension().and_then(OsStr::to_str)) else { continue };
            let Some(left) = leftover(&path) else { continue };
            if left.since.elapsed().is_ok_and(|age| age > PARTIAL_LIFE) {
                // One that cannot be removed is found again at the next start.
                let _ = partial::remove(&path);
                continue;
            }
            self.broken.insert(key.to_owned(), left);
        }
        Ok(())
    }

    /// Takes in the artifacts below `dir`.
    pub(super) fn find_files(&mut self, dir: &Path) -> io::Result<()> {
        let shards = fs_err::read_dir(dir)?.flatten().filter_map(|shard| fs_err::read_dir(shard.path()).ok());
        for file in shards.flatten().flatten() {
            let digest = file.file_name().to_str().and_then(|name| name.parse().ok());
            let metadata = file.metadata().ok().filter(Metadata::is_file);
            let (Some(digest), Some(metadata)) = (digest, metadata) else { continue };
            let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            self.stored += metadata.len();
            self.files.insert(digest, CachedFile { size: metadata.len(), used, pin: Arc::default() });
        }
        Ok(())
    }

    /// Bytes that files take or will take.
    pub(super) fn taken(&self) -> u64 {
        self.stored + self.reserved + self.broken.values().map(|left| left.size).sum::<u64>()
    }

    /// Bytes that cannot be made free.
    pub(super) fn held(&self) -> u64 {
        self.reserved + self.files.values().filter(|entry| entry.pinned()).map(|entry| entry.size).sum::<u64>()
    }

    /// Takes out what is worth least: broken downloads, then what was not used for longest.
    pub(super) fn evict(&mut self) -> Option<Eviction> {
        if let Some(key) = self.broken.iter().min_by_key(|(_, left)| left.since).map(|(key, _)| key.clone()) {
            self.broken.remove(&key);
            return Some(Eviction::Partial(key));
        }
        let unpinned = self.files.iter().filter(|(_, entry)| !entry.pinned());
        let digest = unpinned.min_by_key(|(_, entry)| entry.used).map(|(digest, _)| *digest)?;
        self.stored -= self.files.remove(&digest).map_or(0, |entry| entry.size);
        Some(Eviction::File(digest))
    }
}

/// The leftover of a download that broke off: its bytes on disk, and the time of its last write.
pub(super) struct BrokenDownload {
    pub(super) size: u64,
    since: SystemTime,
}

/// A removal from the disk.
pub(super) enum Eviction {
    Partial(String),
    File(Digest),
}

/// The file of an artifact: its bytes, and the time of its last use, by which files are evicted.
pub(super) struct CachedFile {
    pub(super) size: u64,
    pub(super) used: SystemTime,
    /// Its pins hold clones, so that a pin of a file that was taken away and fetched again says nothing of the new one.
    pub(super) pin: Arc<()>,
}

impl CachedFile {
    pub(super) fn pin(&self) -> Pin {
        let pin: Arc<()> = Arc::clone(&self.pin);
        Pin { _held: Some(pin) }
    }

    fn pinned(&self) -> bool {
        Arc::strong_count(&self.pin) > 1
    }
}

/// Keeps an artifact in the cache while it is alive.
#[derive(Clone)]
pub struct Pin {
    _held: Option<Arc<dyn Any + Send + Sync>>,
}

impl Pin {
    /// For what is not in the cache.
    pub(in crate::artifacts) const NONE: Self = Self { _held: None };

    /// For what stays while `held` does.
    pub(in crate::artifacts) fn of(held: Arc<dyn Any + Send + Sync>) -> Self {
        Self { _held: Some(held) }
    }
}

/// The leftover of an attempt at `path`; one that cannot be continued is removed.
pub(super) fn leftover(path: &Path) -> Option<BrokenDownload> {
    let metadata = fs_err::metadata(path).ok()?;
    if !partial::has_journal(path) {
        // The next attempt would do so too.
        let _ = partial::remove(path);
        return None;
    }
    let since = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    Some(BrokenDownload { size: metadata.len(), since })
}

fn stem(path: &Path) -> Option<&str> {
    path.file_stem().and_then(OsStr::to_str)
}
