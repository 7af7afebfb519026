//! The folder of a mirror: locked, swept, emptied, made.

use std::{fs::File, io, path::Path, thread, time::Duration};

use fs_err as fs;
use rustix::fs::{FlockOperation, flock};

use crate::{Category, Git, GitError, Stop};

/// Interval between attempts to take a lock that another process holds: short beside a fetch, for which it is held.
const LOCK_PAUSE: Duration = Duration::from_millis(50);

const LOCK: &str = "berth.lock";

/// Object format: the hash that names objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Format {
    #[default]
    Sha1,
    Sha256,
}

impl Format {
    /// Format of the repository in a folder, as far as it is readable.
    pub(super) fn of(folder: &Path) -> Self {
        let config = fs::read_to_string(folder.join("config")).unwrap_or_default().to_ascii_lowercase();
        if config.contains("objectformat = sha256") { Self::Sha256 } else { Self::Sha1 }
    }

    /// Format of a remote, read from git's complaint that ours differs: `mismatched algorithms: client sha1; server
    /// sha256`.
    pub(super) fn wanted(words: &str) -> Option<Self> {
        let (_, server) = words.split_once("mismatched algorithms:")?.1.split_once("server ")?;
        Some(if server.starts_with("sha256") { Self::Sha256 } else { Self::Sha1 })
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
        }
    }
}

/// Makes an empty repository in an empty folder.
pub(super) fn init(git: &Git, folder: &Path, format: Format, stop: &Stop) -> Result<(), GitError> {
    let run = git.run("make a copy of").args(["init", "--quiet", "--bare", "--template="]);
    run.arg(format!("--object-format={}", format.as_str())).arg("--").arg(folder).ok(stop).map(drop)
}

pub(super) fn lock(folder: &Path, stop: &Stop) -> Result<File, GitError> {
    let failed = |error: io::Error| GitError::io("lock the copy of", &error);
    let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(folder.join(LOCK));
    let file = file.map_err(failed)?.into_file();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if !stop.is_reached() => thread::sleep(LOCK_PAUSE.min(stop.left())),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let detail = format!("{} is used by somebody else", folder.display());
                return Err(GitError::new(Category::TimedOut, "lock the copy of", detail));
            }
            Err(error) => return Err(failed(error.into())),
        }
    }
}

/// Removes what an ended git left: its lock files and half packs. What cannot be removed is met again by the next call.
pub(super) fn sweep(folder: &Path) {
    let left = |name: &str| (name.ends_with(".lock") && name != LOCK) || name.starts_with("tmp_");
    let mut rooms = vec![(folder.to_owned(), false), (folder.join("refs"), true), (folder.join("objects/pack"), false)];
    while let Some((room, deep)) = rooms.pop() {
        for entry in fs::read_dir(&room).into_iter().flatten().flatten() {
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder && deep {
                rooms.push((entry.path(), true));
            } else if !is_folder && left(&entry.file_name().to_string_lossy()) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// Empties a folder but for its lock.
pub(super) fn clear(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name() == LOCK {
            continue;
        }
        if entry.file_type()?.is_dir() { fs::remove_dir_all(entry.path())? } else { fs::remove_file(entry.path())? }
    }
    Ok(())
}
