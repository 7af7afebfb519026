//! Artifacts by digest, and which inputs they came of.
//!
//! ```text
//! artifacts/DIGEST.zip                an artifact
//! artifacts/DIGEST.sbom.json          the packages in it
//! artifacts/DIGEST.provenance.json    its inputs, and the build that made it
//! artifacts/DIGEST.lock               the lock of its packages, where its code has none
//! artifacts/DIGEST.half               an artifact that another node sends
//! artifacts/built/KEY                 the digest that these inputs gave
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use super::{
    BuildError,
    arrival::{Arrival, HALF},
    copies::{Listed, Listing, LocalArtifact, is_digest, platform},
    documents::{Document, provenance_for},
    tree::digest_of,
};
use crate::{deployment::FunctionSpec, status::ArtifactStatus};

/// The largest artifact: functions that bring a model come near it, and a build that went wrong does not fill the disk.
pub(super) const MAX_ARTIFACT_BYTES: u64 = 1 << 30;

/// Artifacts on disk.
#[derive(Debug)]
pub struct ArtifactStore {
    root: PathBuf,
    /// Artifacts that are kept beyond those in use, for a way back.
    kept: usize,
}

impl ArtifactStore {
    /// Opens a folder, of which clean-ups keep `kept` artifacts beyond those in use. Blocks.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn open(root: &Path, kept: usize) -> io::Result<Self> {
        fs_err::create_dir_all(root.join("built"))?;
        // Of copies that the process before was killed amid.
        for entry in fs_err::read_dir(root)?.flatten() {
            if entry.path().extension().is_some_and(|ending| ending == HALF) {
                fs_err::remove_file(entry.path())?;
            }
        }
        Ok(Self { root: root.to_owned(), kept })
    }

    /// The error of an artifact that is not there any more.
    pub(crate) fn gone() -> BuildError {
        BuildError::passing("ArtifactGone", "the artifact is gone from the disk: it is built again")
    }

    /// Path of a document beside an artifact; `None` where the digest is none.
    #[must_use]
    pub fn document(&self, digest: &str, document: Document) -> Option<PathBuf> {
        self.path(digest).map(|zip| zip.with_extension(document.ending()))
    }

    /// A document beside an artifact as that of one function, whose spec is `spec`; `None`: there is none. Blocks.
    pub(crate) fn document_for(&self, digest: &str, document: Document, spec: Option<&FunctionSpec>) -> Option<String> {
        let text = fs_err::read_to_string(self.document(digest, document)?).ok()?;
        if document == Document::Provenance { provenance_for(&text, spec) } else { Some(text) }
    }

    /// Path of an artifact; `None` where the digest is none.
    #[must_use]
    pub fn path(&self, digest: &str) -> Option<PathBuf> {
        let digits = digest.strip_prefix("sha256:").filter(|_| is_digest(digest))?;
        Some(self.root.join(format!("{digits}.zip")))
    }

    /// The artifacts of these digests, for other nodes. Blocks.
    pub(crate) fn listing(&self, used: BTreeSet<String>) -> Listing {
        let listed = |digest: String| {
            let size = self.path(&digest).and_then(|path| path.metadata().ok()).map(|found| found.len());
            let documents = self.documents(&digest).into_iter().map(|document| document.ending().to_owned());
            Listed { size, documents: documents.collect(), digest }
        };
        Listing { platform: platform(), artifacts: used.into_iter().map(listed).collect() }
    }

    /// Every artifact that is here, by its digest. Blocks.
    pub(crate) fn held(&self) -> io::Result<BTreeMap<String, LocalArtifact>> {
        let mut held = BTreeMap::new();
        for entry in fs_err::read_dir(&self.root)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(digits) = name.strip_suffix(".zip") else { continue };
            let digest = format!("sha256:{digits}");
            // One that goes meanwhile is not here.
            if let Ok(found) = entry.metadata() {
                let documents = self.documents(&digest);
                held.insert(digest, LocalArtifact { size: found.len(), documents });
            }
        }
        Ok(held)
    }

    fn documents(&self, digest: &str) -> Vec<Document> {
        let is_there = |document: &Document| self.document(digest, *document).is_some_and(|path| path.is_file());
        Document::ALL.into_iter().filter(is_there).collect()
    }

    /// Begins to take an artifact that another node sends. Blocks.
    ///
    /// # Errors
    /// If it is none, is too large, or the disk does not take it.
    pub fn arrival(&self, artifact: &ArtifactStatus) -> io::Result<Arrival> {
        let place = self.path(&artifact.digest).filter(|_| artifact.size <= MAX_ARTIFACT_BYTES);
        let place = place.ok_or_else(|| {
            let wrong = format!("{} of {} bytes is no artifact", artifact.digest, artifact.size);
            io::Error::new(io::ErrorKind::InvalidInput, wrong)
        })?;
        Arrival::begin(artifact.clone(), place)
    }

    /// Keeps a document that another node sends beside an artifact. Blocks.
    ///
    /// # Errors
    /// If the disk does not take it.
    pub fn keep_document(&self, digest: &str, document: Document, text: &[u8]) -> io::Result<()> {
        let place = self.document(digest, document);
        let place = place.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a digest is none"))?;
        let half = place.with_extension(HALF);
        fs_err::write(&half, text)?;
        fs_err::rename(half, place)
    }

    /// True if the artifact is here.
    #[must_use]
    pub fn has(&self, artifact: &ArtifactStatus) -> bool {
        let size = self.path(&artifact.digest).and_then(|path| path.metadata().ok()).map(|found| found.len());
        size == Some(artifact.size)
    }

    /// The artifact that these inputs gave before.
    pub(super) fn built(&self, key: &str) -> Option<ArtifactStatus> {
        self.find(fs_err::read_to_string(self.record(key)).ok()?)
    }

    /// The artifact of this digest, where it is still kept.
    pub(super) fn find(&self, digest: String) -> Option<ArtifactStatus> {
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

    /// Takes an artifact over with the documents beside it, and notes what it came of.
    pub(super) fn keep(
        &self,
        key: &str,
        made: &Path,
        write: impl Fn(Document, &ArtifactStatus) -> Option<String>,
    ) -> Result<ArtifactStatus, BuildError> {
        let (digits, size) = digest_of(made)?;
        if size > MAX_ARTIFACT_BYTES {
            return Err(BuildError::lasting(
                "TooLarge",
                format!("the artifact has {size} bytes, more than {MAX_ARTIFACT_BYTES}"),
            ));
        }
        fs_err::File::open(made)?.sync_all()?;
        let digest = format!("sha256:{digits}");
        let place = self.path(&digest).ok_or_else(|| BuildError::lasting("Internal", "a digest is none"))?;
        let artifact = ArtifactStatus { digest, size };
        for document in Document::ALL {
            let beside = place.with_extension(document.ending());
            match write(document, &artifact) {
                Some(text) => fs_err::write(beside, text)?,
                // Other code may have given the same bytes before.
                None if beside.exists() => fs_err::remove_file(beside)?,
                None => {}
            }
        }
        fs_err::rename(made, place)?;
        fs_err::write(self.record(key), &artifact.digest)?;
        Ok(artifact)
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
        let gone: Vec<_> = idle.into_iter().skip(self.kept).collect();
        for (_, path) in &gone {
            fs_err::remove_file(path)?;
            for document in Document::ALL {
                // Artifacts of earlier versions have none.
                let _ = std::fs::remove_file(path.with_extension(document.ending()));
            }
        }
        self.forget_records()?;
        Ok(gone.len())
    }

    /// Removes what is noted of artifacts that are gone.
    fn forget_records(&self) -> io::Result<()> {
        for entry in fs_err::read_dir(self.root.join("built"))?.flatten() {
            let digest = fs_err::read_to_string(entry.path())?;
            if self.path(&digest).is_none_or(|zip| !zip.exists()) {
                fs_err::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_artifacts_are_kept_as_are_wanted() {
        let home = tempfile::tempdir().expect("a folder");
        let store = ArtifactStore::open(home.path(), 1).expect("a store");
        let mut kept = Vec::new();
        for content in ["one", "two", "three"] {
            let made = home.path().join("made");
            fs_err::write(&made, content).expect("written");
            let text =
                |document: Document, artifact: &ArtifactStatus| Some(format!("{document:?} {}", artifact.digest));
            let artifact = store.keep(content, &made, text);
            kept.push(artifact.expect("kept"));
        }
        let used = BTreeSet::from([kept[0].digest.clone()]);
        assert_eq!(store.sweep(&used).expect("swept"), 1);
        assert!(store.has(&kept[0]), "it is in use");
        assert_eq!(usize::from(store.has(&kept[1])) + usize::from(store.has(&kept[2])), 1);
        for (artifact, inputs) in kept.iter().zip(["one", "two", "three"]) {
            for document in Document::ALL {
                let beside = store.document(&artifact.digest, document).expect("a path");
                assert_eq!(store.has(artifact), beside.exists(), "documents go with their artifact");
            }
            assert_eq!(store.has(artifact), store.built(inputs).is_some(), "and what is noted of it");
        }
        // Another build gives the same bytes, from code that has a lock.
        let made = home.path().join("made");
        fs_err::write(&made, "one").expect("written");
        let text = |document: Document, _: &ArtifactStatus| (document != Document::Lock).then(|| "text".to_owned());
        let again = store.keep("others", &made, text).expect("kept");
        assert_eq!(again, kept[0]);
        let exists = |document| store.document(&again.digest, document).expect("a path").exists();
        assert!(exists(Document::Sbom) && !exists(Document::Lock), "its documents are those of the last build");
    }
}
