//! The folder of an instance: its keys, and what it fetches. It goes with the instance. One that was killed leaves it behind, and the
//! next instance of the same user removes it.
//!
//! Each instance locks its folder. The kernel ends the lock with the process, so one that can be locked has no owner any more.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    thread,
};

use fs_err as fs;
use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock, fstat, lstat, open},
    io::Errno,
    process::geteuid,
};
use tempfile::TempDir;

/// The names of such folders begin so.
const PREFIX: &str = "berth-modelmesh-";

/// Attempts to make a folder. Each that fails met another instance between two steps.
const ATTEMPTS: usize = 16;

/// The data folder of one instance. It is removed with this, under its lock.
pub(super) struct InstanceFolder {
    folder: TempDir,
    _lock: Option<OwnedFd>,
}

impl InstanceFolder {
    /// Makes one in a folder of many users.
    ///
    /// # Errors
    /// Nothing can be written there.
    pub(super) fn create(within: &Path) -> io::Result<Self> {
        for _ in 0..ATTEMPTS {
            let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(within)?;
            match locked(folder.path()) {
                Ok(Some(lock)) => return Ok(Self { folder, _lock: Some(lock) }),
                // Another instance found it before it was locked, and removes it.
                Ok(None) | Err(Errno::NOENT) => {}
                // This file system has no such locks, so nobody else takes it for one without an owner.
                Err(_) => return Ok(Self { folder, _lock: None }),
            }
        }
        Err(io::Error::other(format!("other instances remove what is made in {}", within.display())))
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Removes folders beside it whose instances have ended, on a thread of its own: there may be much in them.
    pub(super) fn remove_others(&self) {
        let within = self.path().parent().map(Path::to_owned);
        let remove = move || within.iter().for_each(|within| remove_left(within));
        // What is not removed now is left to the next instance.
        let _ = thread::Builder::new().name("modelmesh-folders".to_owned()).spawn(remove);
    }
}

/// Removes the folders of this user's instances that have ended.
fn remove_left(within: &Path) {
    let entries = fs::read_dir(within).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()));
    let paths: Vec<PathBuf> = ours.map(|entry| entry.path()).collect();
    for path in paths {
        if let Ok(Some(_lock)) = locked(&path) {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// Locks a folder of this user. `None`: it is another one's, a process has it, or it is gone. Follows no link.
fn locked(folder: &Path) -> Result<Option<OwnedFd>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = open(folder, flags, Mode::empty())?;
    let about = fstat(&handle)?;
    if about.st_uid != geteuid().as_raw() {
        return Ok(None);
    }
    match flock(&handle, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(None),
        Err(error) => return Err(error),
    }
    // Whoever had the lock before may have removed the folder.
    let now = lstat(folder)?;
    Ok(((now.st_dev, now.st_ino) == (about.st_dev, about.st_ino)).then_some(handle))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn folders_without_an_owner_go_and_others_stay() {
        let within = tempfile::tempdir().expect("a folder");
        let at = |name: &str| within.path().join(name);
        let alive = InstanceFolder::create(within.path()).expect("made");
        for folder in ["berth-modelmesh-left", "berth-other", "elsewhere"] {
            fs::create_dir_all(at(folder).join("data")).expect("made");
            fs::write(at(folder).join("data/key"), "secret").expect("written");
        }
        symlink(at("elsewhere"), at("berth-modelmesh-link")).expect("linked");
        fs::write(at("berth-modelmesh-file"), "").expect("written");
        remove_left(within.path());
        assert!(!at("berth-modelmesh-left").exists());
        for stays in ["berth-other/data/key", "elsewhere/data/key", "berth-modelmesh-link", "berth-modelmesh-file"] {
            assert!(at(stays).exists(), "{stays}");
        }
        let path = alive.path().to_owned();
        assert!(path.exists());
        drop(alive);
        assert!(!path.exists(), "it goes with its instance");
    }

    #[test]
    fn instances_that_start_at_once_keep_their_folders() {
        let within = tempfile::tempdir().expect("a folder");
        let folders: Vec<InstanceFolder> = thread::scope(|scope| {
            let start = || {
                let folder = InstanceFolder::create(within.path()).expect("made");
                remove_left(within.path());
                folder
            };
            let starting: Vec<_> = (0..16).map(|_| scope.spawn(start)).collect();
            starting.into_iter().map(|one| one.join().expect("it ends")).collect()
        });
        assert!(folders.iter().all(|folder| folder.path().is_dir()));
    }
}
