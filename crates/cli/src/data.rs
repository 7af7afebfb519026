//! The folder of a server's state: one process at a time.
//!
//! Two processes in one folder would take each other's artifacts and routes for their own. The lock is the kernel's: it ends
//! with the process, however that ends, so nothing is left to be removed.

use std::{
    io::{self, Read as _, Write as _},
    path::Path,
};

use fs_err as fs;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::failure::Failure;

/// The file that is locked. It holds the id of the process that has it.
const FILE: &str = "lock";

/// The most of that file that is read: an id is shorter.
const ID: u64 = 32;

/// A folder that this process alone uses, as long as this lives.
#[derive(Debug)]
pub(crate) struct DataFolder {
    _lock: fs::File,
}

impl DataFolder {
    /// Makes the folder, if there is none, and takes it.
    ///
    /// # Errors
    /// [`Failure::Failed`]: another process has it, or it cannot be written.
    pub(crate) fn take(folder: &Path) -> Result<Self, Failure> {
        fs::create_dir_all(folder)?;
        let path = folder.join(FILE);
        let mut lock = fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
        match flock(lock.file(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(taken(folder, &lock)),
            // Some file systems of other machines cannot: better without than not at all.
            Err(Errno::NOTSUP | Errno::NOSYS | Errno::NOLCK) => {
                let folder = folder.display();
                tracing::warn!(event = "data_unlocked", %folder, "this file system has no locks: start one server in it");
            }
            Err(error) => {
                let what = format!("cannot lock {}", path.display());
                return Err(Failure::doing(&what, io::Error::from(error)));
            }
        }
        lock.set_len(0)?;
        writeln!(lock, "{}", std::process::id())?;
        Ok(Self { _lock: lock })
    }
}

fn taken(folder: &Path, lock: &fs::File) -> Failure {
    let mut id = String::new();
    // It is for people: where it cannot be read, they are told less.
    let read = lock.file().take(ID).read_to_string(&mut id);
    let by = match id.trim() {
        id if read.is_ok() && !id.is_empty() => format!("process {id}"),
        _ => "another process".to_owned(),
    };
    Failure::Failed(format!(
        "{by} keeps its state in {}: stop it, or give this one a folder of its own with --data",
        folder.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_for_one() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("state");
        let first = DataFolder::take(&folder).expect("it is free");
        let refused = DataFolder::take(&folder).expect_err("it is taken").to_string();
        let (id, place) = (format!("process {} ", std::process::id()), folder.display().to_string());
        assert!([&*id, &*place, "--data"].iter().all(|part| refused.contains(part)), "{refused}");
        drop(first);
        DataFolder::take(&folder).expect("it is free again");
    }
}
