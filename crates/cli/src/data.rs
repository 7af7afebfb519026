//! The folder of a server's state: one process at a time, and one user.
//!
//! Two processes in one folder would take each other's artifacts and routes for their own. The lock is the kernel's: it ends
//! with the process, however that ends, so nothing is left to be removed.

use std::{
    fs::Permissions,
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
    path::Path,
};

use fs_err::{self as fs, os::unix::fs::OpenOptionsExt as _};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::failure::Failure;

/// The file that is locked. It holds the id of the process that has it.
const FILE: &str = "lock";

/// Rights of the folder, and of files in it: the owner's alone.
const OWN_FOLDER: u32 = 0o700;
const OWN_FILE: u32 = 0o600;

/// The most of that file that is read: an id is shorter.
const MAX_ID_BYTES: u64 = 32;

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
        std::fs::DirBuilder::new().recursive(true).mode(OWN_FOLDER).create(folder).map_err(|error| {
            let why = Failure::doing(format!("cannot make {}", folder.display()), error);
            why.with(|text| format!("{text}: name a folder of yours with --data DIR"))
        })?;
        close(folder)?;
        let path = folder.join(FILE);
        let mut options = fs::OpenOptions::new();
        let mut lock = options.read(true).write(true).create(true).truncate(false).mode(OWN_FILE).open(&path)?;
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

/// Shuts a folder, and the files in it, to other users: models, code, store and keys are there. Folders in it stay as they
/// are, since nobody gets there.
fn close(folder: &Path) -> Result<(), Failure> {
    let shut = |path: &Path, mode: u32| -> io::Result<()> {
        let about = fs::symlink_metadata(path)?;
        if about.is_symlink() || about.mode() & 0o077 == 0 {
            return Ok(());
        }
        fs::set_permissions(path, Permissions::from_mode(mode))
    };
    // The folder may be a link to where it is.
    let inside = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    for entry in inside {
        if entry.file_type()?.is_file() {
            shut(&entry.path(), OWN_FILE)?;
        }
    }
    shut(&fs::canonicalize(folder)?, OWN_FOLDER).map_err(|error| {
        let place = folder.display();
        Failure::Failed(format!(
            "{place} is open to other users, and cannot be closed ({error}): chmod 700 {place} as its owner"
        ))
    })
}

fn taken(folder: &Path, lock: &fs::File) -> Failure {
    let mut id = String::new();
    // It is for people: where it cannot be read, they are told less.
    let read = lock.file().take(MAX_ID_BYTES).read_to_string(&mut id);
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
    fn a_folder_is_for_one_user() {
        let root = tempfile::tempdir().expect("a folder");
        let mode = |path: &Path| fs::metadata(path).expect("it is there").mode() & 0o777;
        for folder in ["new", "old"].map(|name| root.path().join(name)) {
            if folder.ends_with("old") {
                fs::create_dir_all(folder.join("cache")).expect("made");
                fs::write(folder.join("state.redb"), "").expect("written");
                fs::set_permissions(folder.join("state.redb"), Permissions::from_mode(0o644)).expect("opened");
                fs::set_permissions(&folder, Permissions::from_mode(0o755)).expect("opened");
            }
            let _taken = DataFolder::take(&folder).expect("it is free");
            assert_eq!((mode(&folder), mode(&folder.join("lock"))), (0o700, 0o600));
            if folder.ends_with("old") {
                assert_eq!(mode(&folder.join("state.redb")), 0o600);
            }
        }
    }

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
