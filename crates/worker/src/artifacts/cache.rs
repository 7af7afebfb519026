//! The disk cache: artifacts by their content, bounded, least recently used out first.
//!
//! ```text
//! cache/sha256/ab/abcdef…     artifacts; the name is the digest, the modification time when it was last used
//! cache/partial/KEY.part      downloads under way, with KEY.ranges beside
//! cache/folders/N/PATH         artifacts of several files: hard links, for as long as they are pinned
//! cache/known/KEY             what a location held when last looked at: {"etag", "digest", "size"}
//! ```
//! Everything that lies in it counts, downloads under way and broken ones too; broken ones go first. Files that are
//! being fetched or loaded are pinned and stay; a download for which there is no room beside them fails.

mod index;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use berth_spec::{ByteSize, Digest, FailureCategory};
use fs_err::File;
use serde::{Deserialize, Serialize};

pub use self::index::Pin;
use self::index::{CacheIndex, CachedFile, Eviction, leftover};
use super::{Artifact, Source, partial};
use crate::{fault::Fault, metrics::CacheMetrics};

/// The content of a location at the last look.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ContentRecord {
    /// The store's word for the content, if it gives one.
    pub(super) etag: Option<String>,
    /// Digest of the content, by which the cache has its file.
    pub(super) digest: Digest,
    /// Its size in bytes.
    pub(super) size: u64,
}

/// The artifact cache on disk: fetched files by digest, up to a bound in bytes. Clones share it.
#[derive(Clone)]
pub(super) struct Cache {
    root: PathBuf,
    bound: ByteSize,
    state: Arc<Mutex<CacheIndex>>,
    metrics: CacheMetrics,
}

/// Room on the disk for the download of one location. When it is dropped, what an attempt left behind stays while it can
/// be gone on with and nobody needs the room more.
pub(super) struct Reservation {
    cache: Cache,
    key: String,
    size: u64,
}

impl Reservation {
    /// Makes it larger by `more` bytes, evicting what was not used for longest. Blocks for a moment.
    pub(super) fn extend(&mut self, more: u64) -> Result<(), Fault> {
        self.cache.make_room(self.size, more)?;
        self.size += more;
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let path = self.cache.partial(&self.key);
        let left = leftover(&path);
        let mut state = self.cache.lock();
        state.reserved -= self.size;
        if let Some(left) = left {
            state.broken.insert(std::mem::take(&mut self.key), left);
        }
    }
}

impl Cache {
    /// Opens or creates the cache below `root`. Blocks.
    pub(super) fn open(root: PathBuf, bound: ByteSize, metrics: CacheMetrics) -> io::Result<Self> {
        // Links of models that went with their process.
        match fs_err::remove_dir_all(root.join("folders")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        for dir in ["sha256", "partial", "known", "folders"] {
            fs_err::create_dir_all(root.join(dir))?;
        }
        let mut state = CacheIndex::default();
        state.find_left(&root.join("partial"))?;
        state.find_files(&root.join("sha256"))?;
        let cache = Self { root, bound, state: Arc::new(Mutex::new(state)), metrics };
        cache.tell();
        Ok(cache)
    }

    /// The artifact with this content, if it is here. Blocks for a moment.
    pub(super) fn get(&self, digest: &Digest) -> Option<(Artifact, Pin)> {
        let path = self.path(digest);
        let (size, pin) = {
            let mut state = self.lock();
            let entry = state.files.get_mut(digest)?;
            entry.used = SystemTime::now();
            (entry.size, entry.pin())
        };
        // The file may have been taken away by hand, or cut short: then it is not here.
        let file = File::options().write(true).open(&path).ok();
        let whole = file.as_ref().and_then(|file| file.metadata().ok()).is_some_and(|meta| meta.len() == size);
        if !whole {
            self.forget(digest);
            return None;
        }
        if let Some(file) = file {
            // Only the order of eviction after a restart depends on it.
            let _ = file.file().set_modified(SystemTime::now());
        }
        Some((Artifact { source: Source::File(path), digest: *digest, size: ByteSize(size) }, pin))
    }

    /// Begins an attempt to download the location with this key: what an earlier one left is its own from now on.
    pub(super) fn claim(&self, key: &str) -> Reservation {
        self.lock().broken.remove(key);
        Reservation { cache: self.clone(), key: key.to_owned(), size: 0 }
    }

    /// Reserves `more` bytes for a download that has `has`.
    fn make_room(&self, has: u64, more: u64) -> Result<(), Fault> {
        let mut evicted = Vec::new();
        {
            let mut state = self.lock();
            let held = state.held();
            if held.saturating_add(more) > self.bound.0 {
                let (size, others) = (ByteSize(has.saturating_add(more)), ByteSize(held - has));
                let message = format!(
                    "the artifact needs at least {size} of the disk cache, whose bound is {} with {others} in use: \
                     raise --cache",
                    self.bound
                );
                return Err(Fault::new(FailureCategory::Disk, message));
            }
            while state.taken().saturating_add(more) > self.bound.0
                && let Some(next) = state.evict()
            {
                evicted.push(next);
            }
            state.reserved += more;
        }
        for gone in evicted {
            // Gone by hand is gone too.
            let _ = match gone {
                Eviction::Partial(key) => partial::remove(&self.partial(&key)),
                Eviction::File(digest) => {
                    tracing::info!(event = "artifact_evicted", digest = digest.short(), reason = "cache_bound");
                    self.metrics.evictions.inc();
                    fs_err::remove_file(self.path(&digest))
                }
            };
        }
        self.tell();
        Ok(())
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
        partial::remove(from)?;
        let size = file.metadata()?.len();
        drop(room);
        let pin = {
            let mut state = self.lock();
            let entry = state.files.entry(digest).or_insert(CachedFile {
                size: 0,
                used: SystemTime::now(),
                pin: Arc::default(),
            });
            let before = std::mem::replace(&mut entry.size, size);
            entry.used = SystemTime::now();
            let pin = entry.pin();
            state.stored = state.stored - before + size;
            pin
        };
        self.tell();
        Ok((Artifact { source: Source::File(path), digest, size: ByteSize(size) }, pin))
    }

    /// The content of the location with this key at the last look. Blocks for a moment.
    pub(super) fn known(&self, key: &str) -> Option<ContentRecord> {
        let text = fs_err::read_to_string(self.root.join("known").join(key)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Remembers what a location holds. Losing it costs a download, so it is not synced. Blocks for a moment.
    pub(super) fn remember(&self, key: &str, known: &ContentRecord) -> io::Result<()> {
        let path = self.root.join("known").join(key);
        let new = path.with_extension("new");
        fs_err::write(&new, serde_json::to_vec(known).map_err(io::Error::other)?)
            .and_then(|()| fs_err::rename(&new, &path))
    }

    /// The place at which a folder is put together.
    pub(super) fn folder(&self, number: u64) -> PathBuf {
        self.root.join("folders").join(number.to_string())
    }

    /// Refuses what would never fit.
    pub(super) fn check_bound(&self, size: u64) -> Result<(), Fault> {
        if size <= self.bound.0 {
            return Ok(());
        }
        let (size, bound) = (ByteSize(size), self.bound);
        let message = format!("the artifact needs {size} of the disk cache, whose bound is {bound}: raise --cache");
        Err(Fault::new(FailureCategory::Disk, message))
    }

    /// The file in which the download of the location with this key is put together.
    pub(super) fn partial(&self, key: &str) -> PathBuf {
        self.root.join("partial").join(format!("{key}.part"))
    }

    /// The counters of hits and misses.
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
            (state.taken() - state.reserved, state.files.len())
        };
        self.metrics.bytes.set(i64::try_from(stored).unwrap_or(i64::MAX));
        self.metrics.files.set(i64::try_from(files).unwrap_or(i64::MAX));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, CacheIndex> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reserve(cache: &Cache, key: &str, size: u64) -> Result<Reservation, Fault> {
        let mut room = cache.claim(key);
        room.extend(size).map(|()| room)
    }

    fn put(cache: &Cache, byte: u8, size: usize) -> Result<(Digest, Pin), Fault> {
        let digest = Digest([byte; 32]);
        let from = cache.partial("x");
        fs_err::write(&from, vec![byte; size]).expect("written");
        let room = reserve(cache, "x", size as u64)?;
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
        let too_much = reserve(&cache, "y", 70).err().expect("the pinned one stays");
        assert_eq!(too_much.category, FailureCategory::Disk);
        drop(pin);
        assert!(reserve(&cache, "y", 70).is_ok());
        assert!(cache.get(&third).is_none(), "made room");
        let (fourth, _) = put(&cache, 4, 10).expect("room");
        let again = open();
        assert!(again.get(&fourth).is_some(), "found after a restart");
        fs_err::remove_file(again.path(&fourth)).expect("removed by hand");
        assert!(again.get(&fourth).is_none());
    }
    #[test]
    fn broken_downloads_count_and_go_first() {
        let dir = tempfile::tempdir().expect("a folder");
        let open = || Cache::open(dir.path().join("cache"), ByteSize(100), CacheMetrics::default()).expect("opened");
        let cache = open();
        let (stored, _) = put(&cache, 1, 40).expect("room");
        let breaks = |key: &str, resumable: bool| {
            let room = reserve(&cache, key, 30).expect("room");
            let etag = resumable.then(|| "e".to_owned());
            partial::Partial::create(&cache.partial(key), etag, 30).expect("created");
            drop(room);
            cache.partial(key).exists()
        };
        assert!(!breaks("gone", false), "it cannot be gone on with");
        assert!(breaks("kept", true));
        assert_eq!(cache.lock().taken(), 70);
        assert_eq!(open().lock().taken(), 70, "counted after a restart");
        assert!(reserve(&cache, "new", 60).is_ok());
        assert!(!cache.partial("kept").exists() && cache.get(&stored).is_some(), "broken downloads go first");
        assert!(breaks("mine", true));
        let mut room = cache.claim("mine");
        assert_eq!(cache.lock().taken(), 40, "its own room is not counted twice");
        assert!(room.extend(60).is_ok() && room.extend(1).is_ok(), "the stored one makes room");
        assert_eq!(room.extend(40).expect_err("beyond the bound").category, FailureCategory::Disk);
    }

    #[test]
    fn stray_files_do_no_harm() {
        let dir = tempfile::tempdir().expect("a folder");
        for folder in ["sha256/ab", "partial/x.part", "partial/y"] {
            fs_err::create_dir_all(dir.path().join(folder)).expect("created");
        }
        for file in ["sha256/.DS_Store", "sha256/ab/notes.txt", "partial/notes.txt"] {
            fs_err::write(dir.path().join(file), "stray").expect("written");
        }
        let digest = dir.path().join("sha256/ab").join(Digest([0xab; 32]).to_string());
        fs_err::create_dir_all(digest).expect("a folder with the name of an artifact");
        let cache = Cache::open(dir.path().to_owned(), ByteSize(100), CacheMetrics::default()).expect("opened");
        assert_eq!(cache.lock().taken(), 0);
    }

    #[test]
    fn a_pin_outlives_its_file() {
        let dir = tempfile::tempdir().expect("a folder");
        let cache = Cache::open(dir.path().to_owned(), ByteSize(100), CacheMetrics::default()).expect("opened");
        let (digest, first) = put(&cache, 1, 10).expect("room");
        fs_err::remove_file(cache.path(&digest)).expect("removed by hand");
        assert!(cache.get(&digest).is_none());
        let (_, second) = put(&cache, 1, 10).expect("room");
        drop(second);
        drop(first);
        assert!(cache.get(&digest).is_some());
    }
}
