//! Paths in the repository.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The repository's folders.
pub(crate) struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// The repository that this task was built from.
    pub(crate) fn here() -> Self {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        Self { root: manifest.parent().expect("xtask lies in the repository").to_owned() }
    }

    /// Below the root.
    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.root.join(below)
    }

    /// The root itself.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Tools, environments and models that tasks make; deleting it costs only time.
    pub(crate) fn cache(&self, below: &str) -> PathBuf {
        self.root.join(".cache").join(below)
    }

    /// Folder of cargo's binaries of `profile` (`debug`, `release` or `release-lto`).
    pub(crate) fn target(&self, profile: &str) -> PathBuf {
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| self.root.join("target"), PathBuf::from);
        self.root.join(target).join(profile)
    }
}

/// Folder for what all checkouts of this user share; deleting it costs only time.
pub(crate) fn outside(below: &str) -> Result<PathBuf> {
    let cache = match std::env::var_os("XDG_CACHE_HOME") {
        Some(cache) => PathBuf::from(cache),
        None => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    Ok(cache.join("berth").join(below))
}
