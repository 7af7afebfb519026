//! The files of some code, and the digest of all of them.

use std::{
    io::{self, Read as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

use super::BuildError;
use crate::deployment::hex;

/// The most files of an artifact: a JavaScript project with its packages has twenty thousand.
const MOST_FILES: usize = 100_000;

/// The SHA-256 of a file in hexadecimal digits, and its bytes.
pub(super) fn digest_of(path: &Path) -> io::Result<(String, u64)> {
    let (mut hasher, mut buffer, mut size) = (Sha256::new(), vec![0; 64 << 10], 0);
    let mut file = fs_err::File::open(path)?;
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok((hex("", &hasher.finalize()), size));
        }
        size += read as u64;
        hasher.update(&buffer[..read]);
    }
}

/// A file of a tree.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TreeFile {
    /// Path inside the tree, with `/` between names.
    pub(super) path: String,
    /// True if it may be run.
    pub(super) runs: bool,
}

/// The files of a folder.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) digest: String,
}

impl Tree {
    /// Reads a folder. Links are refused: they may lead out of it.
    pub(super) fn read(root: &Path) -> Result<Self, BuildError> {
        let files = Self::list(root)?;
        let mut hasher = Sha256::new();
        for file in &files {
            let (content, _) = digest_of(&root.join(&file.path))?;
            hasher.update(format!("{content} {} {}\n", u8::from(file.runs), file.path));
        }
        Ok(Self { digest: hex("sha256:", &hasher.finalize()) })
    }

    /// Lists a folder in the order of paths, without reading its files.
    pub(super) fn list(root: &Path) -> Result<Vec<TreeFile>, BuildError> {
        Self::list_but(root, &[])
    }

    /// Lists a folder without folders of these names.
    pub(super) fn list_but(root: &Path, left_out: &[&str]) -> Result<Vec<TreeFile>, BuildError> {
        let mut files = Vec::new();
        let mut open: Vec<PathBuf> = vec![root.to_owned()];
        while let Some(folder) = open.pop() {
            for entry in fs_err::read_dir(&folder)? {
                let entry = entry?;
                let (path, kind) = (entry.path(), entry.file_type()?);
                let inside = path.strip_prefix(root).unwrap_or(&path);
                let Some(inside) = inside.to_str() else {
                    let message = format!("the code has a file whose name is not UTF-8: {}", inside.display());
                    return Err(BuildError::lasting("InvalidSource", message));
                };
                let name = entry.file_name();
                if left_out.iter().any(|left_out| name == *left_out) {
                    continue;
                }
                if kind.is_dir() {
                    open.push(path);
                } else if kind.is_file() {
                    let runs = entry.metadata()?.permissions().mode() & 0o111 != 0;
                    files.push(TreeFile { path: inside.to_owned(), runs });
                } else if !inside.contains("node_modules/.bin/") {
                    let message = format!("{inside} is neither a file nor a folder: the code must hold no links");
                    return Err(BuildError::lasting("InvalidSource", message));
                }
                if files.len() + open.len() > MOST_FILES {
                    return Err(BuildError::lasting("TooLarge", format!("the code has more than {MOST_FILES} files")));
                }
            }
        }
        files.sort();
        Ok(files)
    }
}
