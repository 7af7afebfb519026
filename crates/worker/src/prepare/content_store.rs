//! Folders that are made once and used by many: named by their content, bounded, least recently used out first.
//!
//! ```text
//! SHELF/NAME/             whole, for it appears by a rename; NAME/shelf.json: its size; its time: when it was last used
//! SHELF/.making-…/      being made; swept at the next start
//! SHELF/.gone-…/          on its way out; swept, too
//! ```
//! What somebody holds stays. One that does not fit beside what is held is not taken in.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, RandomState},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use berth_spec::{ByteSize, FailureCategory};
use fs_err::File;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use crate::fault::Fault;

/// The file that makes a folder whole.
const LABEL: &str = "shelf.json";

#[derive(Serialize, Deserialize)]
struct Label {
    size: u64,
}

/// A place for folders. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct ContentStore {
    root: PathBuf,
    bound: ByteSize,
    /// The files on it, for people.
    what: &'static str,
    entries: Arc<Mutex<BTreeMap<String, StoredFolder>>>,
    /// Tells apart what is being made and what goes.
    count: Arc<AtomicU64>,
}

#[derive(Debug)]
struct StoredFolder {
    size: u64,
    used: SystemTime,
    pin: Arc<()>,
}

/// A folder that stays where it is while this lives.
#[derive(Debug, Clone)]
pub(super) struct PinnedFolder {
    pub(super) path: PathBuf,
    pub(super) size: ByteSize,
    _pin: Arc<()>,
}

/// A folder that is being made; what was not taken in goes with it.
#[derive(Debug)]
pub(super) struct Making {
    pub(super) path: PathBuf,
    name: String,
    store: ContentStore,
}

impl Drop for Making {
    /// Not on the thread of somebody who must not wait: an environment has thousands of files.
    fn drop(&mut self) {
        let path = std::mem::take(&mut self.path);
        // Taken in, or thrown away already.
        if path.as_os_str().is_empty() {
            return;
        }
        match Handle::try_current() {
            Ok(handle) => drop(handle.spawn_blocking(move || remove(&path))),
            Err(_) => remove(&path),
        }
    }
}

/// Removes a folder; if that fails, the next start does it.
fn remove(path: &Path) {
    let _ = fs_err::remove_dir_all(path);
}

impl ContentStore {
    /// Opens or makes the store at `root`, and sweeps it. Blocks.
    pub(super) fn open(root: PathBuf, bound: ByteSize, what: &'static str) -> io::Result<Self> {
        fs_err::create_dir_all(&root)?;
        let mut entries = BTreeMap::new();
        for entry in fs_err::read_dir(&root)?.flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if name.starts_with(".making-") || name.starts_with(".gone-") {
                // What stays costs disk, and is tried again at the next start.
                if let Err(error) = fs_err::remove_dir_all(&path) {
                    tracing::warn!(event = "prepared_not_swept", what, %error);
                }
            } else if let Some((size, used)) = labelled(&path) {
                entries.insert(name, StoredFolder { size, used, pin: Arc::default() });
            }
        }
        // By chance: what could not be swept has a number of an earlier process.
        let first = RandomState::new().hash_one(0);
        Ok(Self { root, bound, what, entries: Arc::new(Mutex::new(entries)), count: Arc::new(first.into()) })
    }

    /// The folder of that name, if it is here. Blocks for a moment.
    pub(super) fn get(&self, name: &str) -> Option<PinnedFolder> {
        let path = self.root.join(name);
        let label = path.join(LABEL);
        let mut entries = self.lock();
        let entry = entries.get_mut(name)?;
        // It may have been taken away by hand.
        let Ok(file) = File::options().write(true).open(label) else {
            entries.remove(name);
            return None;
        };
        entry.used = SystemTime::now();
        // Only the order of eviction after a restart depends on it.
        let _ = file.file().set_modified(entry.used);
        Some(PinnedFolder { path, size: ByteSize(entry.size), _pin: Arc::clone(&entry.pin) })
    }

    /// An empty folder, its own, in which one of that name is made. Blocks.
    pub(super) fn make(&self, name: &str) -> io::Result<Making> {
        let path = self.root.join(format!(".making-{}-{name}", self.count.fetch_add(1, Ordering::Relaxed)));
        // The root, too: it may have been taken away by hand.
        fs_err::create_dir_all(&self.root)?;
        fs_err::create_dir(&path)?;
        Ok(Making { path, name: name.to_owned(), store: self.clone() })
    }

    /// Its place.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The disk space and the number of its folders.
    pub(super) fn taken(&self) -> (ByteSize, usize) {
        let entries = self.lock();
        (ByteSize(entries.values().map(|entry| entry.size).sum()), entries.len())
    }

    /// Makes room for `size` bytes beside what is held.
    fn make_room(&self, size: u64) -> Result<(), Fault> {
        let gone = self.evict(size)?;
        gone.iter().for_each(|path| remove(path));
        Ok(())
    }

    /// Takes off what must go for `size` bytes; gives where it lies now.
    fn evict(&self, size: u64) -> Result<Vec<PathBuf>, Fault> {
        let mut entries = self.lock();
        let held: u64 = entries.values().filter(|entry| entry.is_held()).map(|entry| entry.size).sum();
        if held.saturating_add(size) > self.bound.0 {
            let message = format!(
                "{} of {} do not fit beside the {} that are in use, of {} in all: raise --cache",
                self.what,
                ByteSize(size),
                ByteSize(held),
                self.bound
            );
            return Err(Fault::new(FailureCategory::Disk, message));
        }
        let mut taken: u64 = entries.values().map(|entry| entry.size).sum();
        let mut gone = Vec::new();
        while taken.saturating_add(size) > self.bound.0 {
            let oldest = entries.iter().filter(|(_, entry)| !entry.is_held()).min_by_key(|(_, entry)| entry.used);
            let Some(name) = oldest.map(|(name, _)| name.clone()) else { break };
            taken -= entries.remove(&name).map_or(0, |entry| entry.size);
            tracing::info!(event = "prepared_evicted", what = self.what, name, reason = "cache_bound");
            gone.extend(self.take_off(&name));
        }
        Ok(gone)
    }

    /// Moves it aside, so that nothing under a good name is ever half there. Gone by hand is gone, too.
    fn take_off(&self, name: &str) -> Option<PathBuf> {
        let gone = self.root.join(format!(".gone-{}-{name}", self.count.fetch_add(1, Ordering::Relaxed)));
        fs_err::rename(self.root.join(name), &gone).ok().map(|()| gone)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, StoredFolder>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoredFolder {
    fn is_held(&self) -> bool {
        Arc::strong_count(&self.pin) > 1
    }
}

impl Making {
    /// Throws it away. Blocks.
    pub(super) fn discard(mut self) {
        remove(&std::mem::take(&mut self.path));
    }

    /// Takes the folder in, as it is now. Blocks.
    pub(super) fn finish(mut self) -> Result<PinnedFolder, Fault> {
        let disk = |error: io::Error| Fault::disk(&error);
        let size = size_of(&self.path).map_err(disk)?;
        self.store.make_room(size)?;
        let label = serde_json::to_vec(&Label { size }).map_err(Fault::internal)?;
        fs_err::write(self.path.join(LABEL), label).map_err(disk)?;
        // A machine that loses its power must not find whole names over empty files.
        let root = File::open(&self.store.root).map_err(disk)?;
        rustix::fs::syncfs(&root).map_err(|error| disk(error.into()))?;
        let path = self.store.root.join(&self.name);
        if path.exists() {
            // Not in the store, for nobody makes what is there: left by a hand, or without its label.
            self.store.take_off(&self.name).as_deref().map(remove);
        }
        fs_err::rename(&self.path, &path).map_err(disk)?;
        self.path.clear();
        let entry = StoredFolder { size, used: SystemTime::now(), pin: Arc::default() };
        let held = PinnedFolder { path, size: ByteSize(size), _pin: Arc::clone(&entry.pin) };
        self.store.lock().insert(self.name.clone(), entry);
        Ok(held)
    }
}

fn labelled(folder: &Path) -> Option<(u64, SystemTime)> {
    let label = folder.join(LABEL);
    let Label { size } = serde_json::from_slice(&fs_err::read(&label).ok()?).ok()?;
    let used = fs_err::metadata(label).and_then(|found| found.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    Some((size, used))
}

/// The bytes of all files below a folder. Links are not followed.
pub(super) fn size_of(folder: &Path) -> io::Result<u64> {
    let (mut size, mut rooms) = (0, vec![folder.to_owned()]);
    while let Some(room) = rooms.pop() {
        for entry in fs_err::read_dir(room)? {
            let entry = entry?;
            match entry.metadata()? {
                found if found.is_dir() => rooms.push(entry.path()),
                found => size += found.len(),
            }
        }
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(store: &ContentStore, name: &str, size: usize) -> Result<PinnedFolder, Fault> {
        let making = store.make(name).expect("a folder");
        fs_err::write(making.path.join("file"), vec![0; size]).expect("written");
        making.finish()
    }

    #[test]
    fn bounded_whole_and_what_is_held_stays() {
        let dir = tempfile::tempdir().expect("a folder");
        let open = || ContentStore::open(dir.path().join("store"), ByteSize(1_000), "environments").expect("opened");
        let store = open();
        let first = put(&store, "first", 400).expect("room");
        put(&store, "second", 400).expect("room");
        put(&store, "third", 400).expect("room after an eviction");
        assert!(store.get("first").is_some_and(|held| held.size == first.size), "held");
        assert!(store.get("second").is_none(), "the oldest that nobody holds");
        let refused = put(&store, "large", 700).expect_err("it does not fit beside the first");
        assert_eq!(refused.category, FailureCategory::Disk, "{refused}");
        drop(store.make("half").map(std::mem::forget));
        let again = open();
        assert_eq!(again.taken(), store.taken());
        let left = fs_err::read_dir(dir.path().join("store")).expect("a folder").flatten();
        assert!(left.into_iter().all(|entry| !entry.file_name().to_string_lossy().starts_with('.')), "swept");
        fs_err::remove_dir_all(again.get("third").expect("found after a restart").path).expect("removed by hand");
        assert!(again.get("third").is_none());
        assert!(put(&again, "third", 10).is_ok());
    }

    #[test]
    fn what_was_not_finished_is_not_there() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = ContentStore::open(dir.path().to_owned(), ByteSize(1_000), "checkouts").expect("opened");
        let path = store.make("x").map(|making| making.path.clone()).expect("a folder");
        assert!(!path.exists() && store.get("x").is_none());
    }
}
