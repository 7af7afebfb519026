//! A file for a secret that is shown once. The file is made first: no secret is made that cannot be kept.

use std::{
    fs::{File, OpenOptions},
    io::{ErrorKind, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use crate::failure::Failure;

/// An empty file that only its owner may read. It is removed again unless a secret is kept in it.
#[derive(Debug)]
pub(super) struct SecretFile {
    path: PathBuf,
    file: File,
    is_kept: bool,
}

impl SecretFile {
    /// Makes the file.
    ///
    /// # Errors
    /// There is one already, or it cannot be made.
    pub(super) fn create(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
            Ok(file) => Ok(Self { path: path.to_owned(), file, is_kept: false }),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Err(Failure::Failed(format!("{shown} is there already: move it away, or name another file with --out")))
            }
            Err(error) => Err(Failure::doing(format!("cannot make {shown}"), error)),
        }
    }

    /// Writes the secret, in a line.
    pub(super) fn keep(mut self, secret: &str) -> Result<(), Failure> {
        let written = self.file.write_all(format!("{secret}\n").as_bytes()).and_then(|()| self.file.sync_all());
        written.map_err(|error| Failure::doing(format!("cannot write {}", self.path.display()), error))?;
        self.is_kept = true;
        Ok(())
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        if !self.is_kept {
            // An empty file is in nobody's way.
            let _ = fs_err::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_secret_is_kept_for_its_owner_and_replaces_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("service.token");
        drop(SecretFile::create(&path).expect("it is not there"));
        assert!(!path.exists(), "no secret was made");
        SecretFile::create(&path).expect("it is not there").keep("berth_x").expect("written");
        assert_eq!(fs_err::read_to_string(&path).expect("it is there"), "berth_x\n");
        assert_eq!(fs_err::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
        let error = SecretFile::create(&path).expect_err("it is there").to_string();
        assert!(error.contains("is there already") && error.contains("--out"), "{error}");
        assert_eq!(fs_err::read_to_string(&path).expect("it is there"), "berth_x\n");
    }
}
