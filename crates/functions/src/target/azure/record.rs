//! Records of the apps that a function was deployed to, or began to be: what has to be removed once it goes.

use std::{
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

/// An app of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) group: String,
    pub(super) app: String,
    /// Variables of the spec that were set.
    pub(super) env: Vec<String>,
}

/// The records, a file for each function.
#[derive(Debug)]
pub(super) struct Records(PathBuf);

impl Records {
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        fs_err::create_dir_all(root)?;
        Ok(Self(root.to_owned()))
    }

    fn path(&self, function: &str) -> PathBuf {
        self.0.join(format!("{function}.json"))
    }

    /// The apps of a function; several where it moves and has not arrived.
    pub(super) fn read(&self, function: &str) -> Vec<Record> {
        let read = fs_err::read(self.path(function)).ok();
        read.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }

    pub(super) fn write(&self, function: &str, apps: &[Record]) -> io::Result<()> {
        let half = self.0.join(format!(".{function}.new"));
        fs_err::write(&half, serde_json::to_vec(apps).map_err(io::Error::other)?)?;
        fs_err::rename(half, self.path(function))
    }

    pub(super) fn forget(&self, function: &str) -> io::Result<()> {
        match fs_err::remove_file(self.path(function)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Functions that are deployed.
    pub(super) fn all(&self) -> Vec<String> {
        let names = fs_err::read_dir(&self.0).into_iter().flatten().flatten();
        names.filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".json")?.to_owned())).collect()
    }
}
