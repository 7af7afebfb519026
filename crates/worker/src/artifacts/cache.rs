//! The disk cache: artifacts by their content, bounded, least recently used out first.
//!
//! ```text
//! cache/sha256/ab/abcdef…     artifacts; the name is the digest, the modification time when it was last used
//! cache/partial/KEY.part      downloads under way, with KEY.ranges beside
//! cache/known/KEY             what a location held when last looked at: {"etag", "digest", "size"}
//! ```
//! Files that are being fetched or loaded are pinned and stay, whatever the bound says.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use berth_spec::{ByteSize, Digest, FailureCategory};
use fs_err::File;
use serde::{Deserialize, Serialize};

use super::Artifact;
use crate::{fault::Fault, metrics::CacheMetrics};

/// How long a broken download is kept for the next attempt. Halved, one that broke before a long weekend starts over;
/// doubled, the disk keeps more of what nobody wants any more.
const PARTIAL_LIFE: Duration = Duration::from_secs(7 * 24 * 3600);

/// What a location held when it was last looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Known {
    /// The store's word for the content, if it gives one.
    pub(super) etag: Option<String>,
    /// The content.
    pub(super) digest: Digest,
    /// Its size in bytes.
    pub(super) size: u64,
}

/// The cache. Cheap to clone.
#[derive(Clone)]
pub(super) struct Cache {
    root: PathBuf,
    bound: ByteSize,
    state: Arc<Mutex<State>>,
    metrics: CacheMetrics,
}

#[derive(Default)]
struct State {
    files: BTreeMap<Digest, Entry>,
    /// Bytes of `files`.
    stored: u64,
    /// Bytes promised to downloads under way.
    reserved: u64,
}

struct Entry {
    size: u64,
    used: SystemTime,
    pins: u32,
}

/// Keeps an artifact in the cache while it is alive.
pub struct Pin(Option<(Cache, Digest)>);

impl Pin {
    /// For what is not in the cache.
    pub(super) const NONE: Self = Self(None);
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Some((cache, digest)) = self.0.take()
            && let Some(entry) = cache.lock().files.get_mut(&digest)
        {
            entry.pins -= 1;
        }
    }
}

/// Room on the disk for a download, given back when dropped.
pub(super) struct Reservation {
    cache: Cache,
    size: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.cache.lock().reserved -= self.size;
    }
}

impl Cache {
    /// Opens or creates the cache below `root`. Blocks.
    pub(super) fn open(root: PathBuf, bound: ByteSize, metrics: CacheMetrics) -> io::Result<Self> {
        for dir in ["sha256", "partial", "known"] {
            fs_err::create_dir_all(root.join(dir))?;
        }
        for file in fs_err::read_dir(root.join("partial"))? {
            let file = file?;
            let age = file.metadata()?.modified().ok().and_then(|at| at.elapsed().ok());
            if age.is_some_and(|age| age > PARTIAL_LIFE) {
                fs_err::remove_file(file.path())?;
            }
        }
        let mut state = State::default();
        for shard in fs_err::read_dir(root.join("sha256"))? {
            for file in fs_err::read_dir(shard?.path())? {
                let file = file?;
                let (Some(digest), metadata) =
                    (file.file_name().to_str().and_then(|n| n.parse().ok()), file.metadata()?)
                else {
                    continue;
                };
                let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                state.stored += metadata.len();
                state.files.insert(digest, Entry { size: metadata.len(), used, pins: 0 });
            }
        }
        let cache = Self { root, bound, state: Arc::new(Mutex::new(state)), metrics };
        cache.tell();
        Ok(cache)
    }

    /// The artifact with this content, if it is here. Blocks for a moment.
    pub(super) fn get(&self, digest: &Digest) -> Option<(Artifact, Pin)> {
        let path = self.path(digest);
        let size = {
            let mut state = self.lock();
            let entry = state.files.get_mut(digest)?;
            entry.pins += 1;
            entry.used = SystemTime::now();
            entry.size
        };
        let pin = Pin(Some((self.clone(), *digest)));
        // The file may have been taken away by hand, or cut short: then it is not here.
        let file = File::options().write(true).open(&path).ok();
        let whole = file.as_ref().and_then(|file| file.metadata().ok()).is_some_and(|meta| meta.len() == size);
        if !whole {
            drop(pin);
            self.forget(digest);
            return None;
        }
        if let Some(file) = file {
            // Only the order of eviction after a restart depends on it.
            let _ = file.file().set_modified(SystemTime::now());
        }
        Some((Artifact { path, digest: *digest, size: ByteSize(size) }, pin))
    }

    /// Makes room for `size` bytes, evicting what was not used for longest. Blocks for a moment.
    pub(super) fn reserve(&self, size: u64) -> Result<Reservation, Fault> {
        let mut evicted = Vec::new();
        let room = {
            let mut state = self.lock();
            while state.stored.saturating_add(state.reserved).saturating_add(size) > self.bound.0 {
                let unpinned = state.files.iter().filter(|(_, entry)| entry.pins == 0);
                let Some(digest) = unpinned.min_by_key(|(_, entry)| entry.used).map(|(digest, _)| *digest) else {
                    break;
                };
                let entry = state.files.remove(&digest).expect("it was just found");
                state.stored -= entry.size;
                evicted.push(digest);
            }
            let taken = state.stored.saturating_add(state.reserved);
            let fits = taken.saturating_add(size) <= self.bound.0;
            if fits {
                state.reserved += size;
            }
            if fits { Ok(()) } else { Err(taken) }
        };
        for digest in evicted {
            tracing::info!(event = "artifact_evicted", digest = digest.short(), reason = "cache_bound");
            self.metrics.evictions.inc();
            // Gone by hand is gone too.
            let _ = fs_err::remove_file(self.path(&digest));
        }
        self.tell();
        room.map(|()| Reservation { cache: self.clone(), size }).map_err(|taken| {
            let (size, taken) = (ByteSize(size), ByteSize(taken));
            let message = format!(
                "the artifact needs {size} of the disk cache, whose bound is {} with {taken} in use: raise --cache",
                self.bound
            );
            Fault::new(FailureCategory::Disk, message)
        })
    }

    /// Takes in a complete, checked download: synced, then renamed, so that a file under a digest's name is whole. Blocks.
    pub(super) fn admit(&self, from: &Path, digest: Digest, room: Reservation) -> io::Result<(Artifact, Pin)> {
        let path = self.path(&digest);
        let dir = path.parent().expect("artifacts lie in folders of the cache");
        let file = File::open(from)?;
        file.sync_all()?;
        fs_err::create_dir_all(dir)?;
        fs_err::rename(from, &path)?;
        File::open(dir)?.sync_all()?;
        super::partial::remove(from)?;
        let size = file.metadata()?.len();
        drop(room);
        {
            let mut state = self.lock();
            let entry = state.files.entry(digest).or_insert(Entry { size: 0, used: SystemTime::now(), pins: 0 });
            let before = std::mem::replace(&mut entry.size, size);
            entry.used = SystemTime::now();
            entry.pins += 1;
            state.stored = state.stored - before + size;
        }
        self.tell();
        let pin = Pin(Some((self.clone(), digest)));
        Ok((Artifact { path, digest, size: ByteSize(size) }, pin))
    }

    /// What the location with this key held when last looked at. Blocks for a moment.
    pub(super) fn known(&self, key: &str) -> Option<Known> {
        let text = fs_err::read_to_string(self.root.join("known").join(key)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Remembers what a location holds. Losing it costs a download, so it is not synced. Blocks for a moment.
    pub(super) fn remember(&self, key: &str, known: &Known) -> io::Result<()> {
        let path = self.root.join("known").join(key);
        let new = path.with_extension("new");
        fs_err::write(&new, serde_json::to_vec(known).map_err(io::Error::other)?)
            .and_then(|()| fs_err::rename(&new, &path))
    }

    /// Where the download of the location with this key is put together.
    pub(super) fn partial(&self, key: &str) -> PathBuf {
        self.root.join("partial").join(format!("{key}.part"))
    }

    /// How the cache counts hits and misses.
    pub(super) fn metrics(&self) -> &CacheMetrics {
        &self.metrics
    }

    fn forget(&self, digest: &Digest) {
        let mut state = self.lock();
        if let Some(entry) = state.files.remove(digest) {
            state.stored -= entry.size;
        }
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        let name = digest.to_string();
        self.root.join("sha256").join(&name[..2]).join(name)
    }

    fn tell(&self) {
        let (stored, files) = {
            let state = self.lock();
            (state.stored, state.files.len())
        };
        self.metrics.bytes.set(i64::try_from(stored).unwrap_or(i64::MAX));
        self.metrics.files.set(i64::try_from(files).unwrap_or(i64::MAX));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(cache: &Cache, byte: u8, size: usize) -> Result<(Digest, Pin), Fault> {
        let digest = Digest([byte; 32]);
        let from = cache.partial("x");
        fs_err::write(&from, vec![byte; size]).expect("written");
        let room = cache.reserve(size as u64)?;
        let (_, pin) = cache.admit(&from, digest, room).expect("admitted");
        Ok((digest, pin))
    }

    #[test]
    fn bounded_and_what_is_in_use_stays() {
        let dir = tempfile::tempdir().expect("a folder");
        let open = || Cache::open(dir.path().join("cache"), ByteSize(100), CacheMetrics::default()).expect("opened");
        let cache = open();
        let (first, pin) = put(&cache, 1, 40).expect("room");
        let (second, _) = put(&cache, 2, 40).expect("room");
        let (third, _) = put(&cache, 3, 40).expect("room after an eviction");
        assert!(cache.get(&first).is_some(), "pinned");
        assert!(cache.get(&second).is_none(), "the oldest that is not pinned");
        assert!(cache.get(&third).is_some());
        let too_much = cache.reserve(70).err().expect("the pinned one stays");
        assert_eq!(too_much.category, FailureCategory::Disk);
        drop(pin);
        assert!(cache.reserve(70).is_ok());
        assert!(cache.get(&third).is_none(), "made room");
        let (fourth, _) = put(&cache, 4, 10).expect("room");
        let again = open();
        assert!(again.get(&fourth).is_some(), "found after a restart");
        fs_err::remove_file(again.path(&fourth)).expect("removed by hand");
        assert!(again.get(&fourth).is_none());
    }
}
