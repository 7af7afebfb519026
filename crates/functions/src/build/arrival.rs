//! An artifact that another node sends: written beside its place, and put there once its digest is right.
//!
//! ```text
//! Arrival::begin ──write──▶ DIGEST.half ──finish: size and digest──▶ DIGEST.zip
//!                               └── dropped, or wrong: removed
//! ```

use std::{
    io::{self, Write as _},
    path::PathBuf,
};

use sha2::{Digest as _, Sha256};

use crate::{deployment::hex, status::ArtifactStatus};

/// Ending of the names of artifacts that are not whole.
pub(super) const HALF: &str = "half";

/// An artifact that comes piece by piece. Blocks.
#[derive(Debug)]
pub struct Arrival {
    artifact: ArtifactStatus,
    file: fs_err::File,
    hasher: Sha256,
    /// Bytes that are still to come.
    left: u64,
    /// Its place, once it is whole.
    place: PathBuf,
    half: PathBuf,
    is_whole: bool,
}

impl Arrival {
    pub(super) fn begin(artifact: ArtifactStatus, place: PathBuf) -> io::Result<Self> {
        let half = place.with_extension(HALF);
        let file = fs_err::File::create(&half)?;
        let left = artifact.size;
        Ok(Self { artifact, file, hasher: Sha256::new(), left, place, half, is_whole: false })
    }

    /// Takes a piece.
    ///
    /// # Errors
    /// More came than its size, or the disk takes no more.
    pub fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        self.left = self.left.checked_sub(piece.len() as u64).ok_or_else(|| self.wrong("is larger than was said"))?;
        self.hasher.update(piece);
        self.file.write_all(piece)
    }

    /// Puts it into its place.
    ///
    /// # Errors
    /// It is not what was asked for, or the disk fails. Nothing of it stays.
    pub fn finish(mut self) -> io::Result<()> {
        if self.left > 0 {
            return Err(self.wrong("broke off"));
        }
        if hex("sha256:", &self.hasher.clone().finalize()) != self.artifact.digest {
            return Err(self.wrong("has other bytes than its digest says"));
        }
        self.file.sync_all()?;
        fs_err::rename(&self.half, &self.place)?;
        self.is_whole = true;
        Ok(())
    }

    fn wrong(&self, why: &str) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, format!("the artifact {} {why}", self.artifact.digest))
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        if !self.is_whole {
            // What cannot be removed goes at the next start.
            let _ = fs_err::remove_file(&self.half);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{build::ArtifactStore, deployment::digest};

    #[test]
    fn an_artifact_is_there_once_it_is_whole_and_right() {
        let home = tempfile::tempdir().expect("a folder");
        let store = ArtifactStore::open(home.path(), 1).expect("a store");
        let artifact = ArtifactStatus { digest: digest(b"one two"), size: 7 };
        let halves = || {
            let files = fs_err::read_dir(home.path()).expect("a folder").flatten();
            files.filter(|file| file.path().extension().is_some_and(|ending| ending == HALF)).count()
        };
        for (pieces, wrong) in [
            (vec!["one ", "tw"], "broke off"),
            (vec!["one ", "two!"], "is larger"),
            (vec!["one ", "six"], "has other bytes"),
            (vec![], "broke off"),
        ] {
            let mut arrival = store.arrival(&artifact).expect("a file");
            let written = pieces.iter().try_for_each(|piece| arrival.write(piece.as_bytes()));
            let error = written.and_then(|()| arrival.finish()).expect_err(wrong);
            assert!(error.to_string().contains(wrong), "{error}");
            assert!(!store.has(&artifact), "{wrong}");
            assert_eq!(halves(), 0, "{wrong}");
        }
        let mut arrival = store.arrival(&artifact).expect("a file");
        arrival.write(b"one two").expect("written");
        assert!(!store.has(&artifact) && halves() == 1, "not yet");
        arrival.finish().expect("whole");
        assert!(store.has(&artifact) && halves() == 0);

        fs_err::write(home.path().join("left.half"), "of a process that was killed").expect("written");
        ArtifactStore::open(home.path(), 1).expect("a store");
        assert_eq!(halves(), 0);
        for (digest, size) in [("sha256:../../x".to_owned(), 7), (digest(b""), u64::MAX)] {
            let refused = store.arrival(&ArtifactStatus { digest, size }).expect_err("no such artifact");
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        }
    }
}
