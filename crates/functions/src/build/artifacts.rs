//! Artifacts by digest, and which inputs they came of.
//!
//! ```text
//! artifacts/DIGEST.zip       an artifact
//! artifacts/built/KEY        the digest that these inputs gave
//! ```

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use super::{BuildError, tree::digest_of};
use crate::status::ArtifactStatus;

/// Artifacts that are kept beyond those in use, for a way back.
const KEPT: usize = 20;

/// The largest artifact.
const LARGEST: u64 = 1 << 30;

/// Artifacts on disk.
#[derive(Debug)]
pub struct ArtifactStore {
    root: PathBuf,
}

impl ArtifactStore {
    /// Opens a folder. Blocks.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn open(root: &Path) -> io::Result<Self> {
        fs_err::create_dir_all(root.join("built"))?;
        Ok(Self { root: root.to_owned() })
    }

    /// Path of an artifact; `None` where the digest is none.
    #[must_use]
    pub fn path(&self, digest: &str) -> Option<PathBuf> {
        let digits = digest.strip_prefix("sha256:")?;
        let fine = digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        fine.then(|| self.root.join(format!("{digits}.zip")))
    }

    /// True if the artifact is here.
    #[must_use]
    pub fn has(&self, artifact: &ArtifactStatus) -> bool {
        let size = self.path(&artifact.digest).and_then(|path| path.metadata().ok()).map(|found| found.len());
        size == Some(artifact.size)
    }

    /// The artifact that these inputs gave before.
    pub(super) fn built(&self, key: &str) -> Option<ArtifactStatus> {
        let digest = fs_err::read_to_string(self.record(key)).ok()?;
        let path = self.path(&digest)?;
        let size = path.metadata().ok()?.len();
        // Used now: it goes last.
        let _ = fs_err::OpenOptions::new()
            .append(true)
            .open(&path)
            .and_then(|file| file.file().set_modified(SystemTime::now()));
        Some(ArtifactStatus { digest, size })
    }

    fn record(&self, key: &str) -> PathBuf {
        self.root.join("built").join(key.trim_start_matches("sha256:"))
    }

    /// Takes an artifact over, and notes what it came of.
    pub(super) fn keep(&self, key: &str, made: &Path) -> Result<ArtifactStatus, BuildError> {
        let (digits, size) = digest_of(made)?;
        if size > LARGEST {
            return Err(BuildError::lasting("TooLarge", format!("the artifact has {size} bytes, more than {LARGEST}")));
        }
        fs_err::File::open(made)?.sync_all()?;
        let digest = format!("sha256:{digits}");
        let place = self.path(&digest).ok_or_else(|| BuildError::lasting("Internal", "a digest is none"))?;
        fs_err::rename(made, place)?;
        fs_err::write(self.record(key), &digest)?;
        Ok(ArtifactStatus { digest, size })
    }

    /// Removes artifacts that are not in use, but for the newest.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn sweep(&self, used: &BTreeSet<String>) -> io::Result<usize> {
        let mut idle: Vec<(SystemTime, PathBuf)> = Vec::new();
        for entry in fs_err::read_dir(&self.root)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(digits) = name.strip_suffix(".zip") else { continue };
            if !used.contains(&format!("sha256:{digits}")) {
                idle.push((entry.metadata()?.modified()?, entry.path()));
            }
        }
        idle.sort_unstable_by(|a, b| b.cmp(a));
        let gone: Vec<_> = idle.into_iter().skip(KEPT).collect();
        gone.iter().try_for_each(|(_, path)| fs_err::remove_file(path))?;
        Ok(gone.len())
    }
}
